// One direction of a convolution in the form that cuDNN needs: what is planned, and the copies that
// bring operands into the plan's form. In fp32 operands have that form already. In bf16 the plan's
// form is bf16 with channels filled up with zeros to a multiple of 8:
//   - activations of ordinary layers have that form already; the network's images (fp32, 3
//     channels) and layers of odd widths are copied into scratch memory
//   - weights are fp32; forward rounds them into memory of the convolution, and backward_data reads
//     them there
//   - weight gradients come out in bf16, rounded once from sums in fp32 (cuDNN has no engine that
//     writes fp32 from bf16), and are copied to fp32
#pragma once

#include <cstddef>

#include "kernels/conv2d.hpp"
#include "kernels/cuda/cudnn_plan.hpp"
#include "kernels/cuda/device.hpp"
#include "kernels/cuda/pack.hpp"

namespace dp::cuda {

// Sizes of blocks that lie one behind the other.
inline std::size_t aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

// One operand: its form in memory, and the form in which the plan wants it. `offset`: in scratch.
struct ConvOperand {
  PackForm outside, inside;
  bool is_copied = false;
  std::size_t offset = 0;

  ConvOperand() = default;
  ConvOperand(const PackForm& in_memory, const PackForm& wanted)
      : outside(in_memory), inside(wanted), is_copied(in_memory != wanted) {}
};

// The three operands of a direction and how its batch is cut.
struct ConvPassForm {
  ConvProblem problem;  // of one part
  ConvOperand x, w, y;  // of one part
  std::size_t parts = 1;
  std::size_t scratch_bytes = 0;  // without the plan's workspace
};

// How a direction is computed. `most_elements`: of a tensor of one part; 0: as cuDNN needs it.
[[nodiscard]] ConvPassForm form_of(ConvDirection direction, const Conv2dDesc& desc,
                                   bool allows_tf32, std::size_t most_elements);

// The pointers of a call, as the operation's caller knows them.
struct ConvPassData {
  void* x;
  void* w;
  void* y;
};

class ConvPass {
 public:
  ConvPass(CudaDevice& device, const ConvPassForm& form) : device_(&device), form_(form) {}

  // `packed_weights`: weights in the plan's form, where that is another than theirs. `scratch`:
  // form().scratch_bytes, then the plan's workspace.
  void run(const CudnnPlan& plan, const ConvPassData& data, void* packed_weights,
           std::byte* scratch);

  [[nodiscard]] const ConvPassForm& form() const { return form_; }

 private:
  [[nodiscard]] cudaStream_t stream() const { return device_->stream(); }
  void* into(const ConvOperand& operand, void* outside, bool is_input, std::byte* scratch) const;
  void out_of(const ConvOperand& operand, const void* inside, void* outside) const;

  CudaDevice* device_;
  ConvPassForm form_;
  ConvPointers pointers_;
};

}  // namespace dp::cuda
