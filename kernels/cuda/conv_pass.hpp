// One direction of a convolution in the form that cuDNN needs: the planned problem, and the copies
// that convert operands to the plan's form. In fp32 operands already have that form. In bf16 the
// plan's form is bf16 with channels padded with zeros to a multiple of 8:
//   - activations of ordinary layers already have that form; the network's images (fp32, 3
//     channels) and layers of odd widths are copied into scratch memory
//   - weights are fp32; forward rounds them into the convolution's own memory, and backward_data
//     reads them there
//   - weight gradients are summed in fp32, rounded once to bf16 (no engine of cuDNN reads bf16 and
//     writes fp32), and copied to fp32
#pragma once

#include <cstddef>

#include "kernels/conv2d.hpp"
#include "kernels/cuda/cudnn_plan.hpp"
#include "kernels/cuda/device.hpp"
#include "kernels/cuda/pack.hpp"

namespace dp::cuda {

// Rounds up the size of a buffer, so that consecutive buffers are aligned.
inline std::size_t aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

// One operand: its form in memory, and the form that the plan needs. `offset`: its place in the
// scratch memory if it is copied.
struct ConvOperand {
  PackForm outside, inside;
  bool is_copied = false;
  std::size_t offset = 0;

  ConvOperand() = default;
  ConvOperand(const PackForm& in_memory, const PackForm& wanted)
      : outside(in_memory), inside(wanted), is_copied(in_memory != wanted) {}
};

// The three operands of a direction, and the division of its batch into parts.
struct ConvPassForm {
  ConvProblem problem;  // of one part
  ConvOperand x, w, y;  // of one part
  std::size_t parts = 1;
  std::size_t scratch_bytes = 0;  // without the plan's workspace
};

// Plans the form of a direction. No tensor of a part may have more than `most_elements` elements. 0
// stands for the limit of cuDNN.
[[nodiscard]] ConvPassForm form_of(ConvDirection direction, const Conv2dDesc& desc,
                                   bool allows_tf32, std::size_t most_elements);

// The pointers that the caller of the operation passes.
struct ConvPassData {
  void* x;
  void* w;
  void* y;
};

class ConvPass {
 public:
  ConvPass(CudaDevice& device, const ConvPassForm& form) : device_(&device), form_(form) {}

  // `packed_weights`: memory for the weights in the plan's form; needed if the caller's weights
  // have another form. `scratch`: form().scratch_bytes, followed by the plan's workspace.
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
