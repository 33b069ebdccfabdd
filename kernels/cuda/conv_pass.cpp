// form_of() plans one direction. It divides the batch into parts, so that no tensor is larger than
// cuDNN allows, and decides which operands are copied to which place in scratch memory.
// ConvPass::run iterates over the parts: it copies the inputs that the plan needs in another form,
// runs the plan, and copies the output back. Weight gradients of parts are summed in fp32.
#include "kernels/cuda/conv_pass.hpp"

#include <algorithm>
#include <cstdint>

#include "kernels/base/error.hpp"
#include "kernels/cuda/libraries.hpp"

namespace dp::cuda {

namespace {

std::size_t padded_channels(std::size_t channels, DataType type) {
  return type == DataType::f32 ? channels : (channels + 7) / 8 * 8;
}
// The alignment of all pointers as declared to cuDNN (cudnn_plan.cpp).
constexpr std::size_t kAlignment = 16;
bool is_aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % kAlignment == 0;
}

// The most elements that a tensor of one part may have.
struct PartLimits {
  // Many of cuDNN's engines count in 32 bits.
  static constexpr std::size_t kHard = (std::size_t{1} << 31) - 1;
  // fp32 engines copy x and y into their workspace (H200, A100). For parts of this size the copies
  // take half a GiB. For larger parts the fast engines would need more workspace than ConvPlanner
  // allows. A part of this size still keeps the whole GPU busy.
  static constexpr std::size_t kFp32 = std::size_t{1} << 26;
};

// The smallest number of equal parts of n images for which no part is too large.
std::size_t count_parts(std::size_t n, std::size_t elements, std::size_t most_elements) {
  std::size_t parts = 1;
  while (parts < n && (n % parts != 0 || elements / parts > most_elements)) ++parts;
  return parts;
}
std::size_t count_parts_for(const Conv2dDesc& desc, std::size_t elements) {
  const std::size_t n = desc.x.shape.n;
  if (desc.y.type == DataType::f32) {
    const std::size_t parts = count_parts(n, elements, PartLimits::kFp32);
    // More parts than this mean that the batch has no suitable divisor. The parts would be too
    // small, so the larger limit applies.
    if (parts <= 4 * (elements / PartLimits::kFp32 + 1)) return parts;
  }
  return count_parts(n, elements, PartLimits::kHard);
}

}  // namespace

ConvPassForm form_of(ConvDirection direction, const Conv2dDesc& desc, bool allows_tf32,
                     std::size_t most_elements) {
  const DataType type = desc.y.type;
  ConvPassForm f;
  Shape x = desc.x.shape, y = desc.y.shape;
  x.c = padded_channels(x.c, type);
  y.c = padded_channels(y.c, type);
  const std::size_t elements = std::max(x.elements(), y.elements());
  f.parts = most_elements > 0 ? count_parts(x.n, elements, most_elements)
                              : count_parts_for(desc, elements);
  x.n /= f.parts;
  y.n /= f.parts;
  f.problem = {.direction = direction,
               .x = x,
               .y = y,
               .kernel = desc.kernel,
               .stride = desc.stride,
               .padding = desc.padding,
               .x_type = type,
               .w_type = type,
               .y_type = type,
               .allows_tf32 = allows_tf32};
  const std::size_t taps = desc.kernel.area();
  f.x = {{x.n * x.pixels(), desc.x.shape.c, desc.x.type}, {x.n * x.pixels(), x.c, type}};
  f.y = {{y.n * y.pixels(), desc.y.shape.c, desc.y.type}, {y.n * y.pixels(), y.c, type}};
  f.w = {{desc.y.shape.c * taps, desc.x.shape.c, DataType::f32}, {y.c * taps, x.c, type}};
  // Parts after the first one may begin at an address without the alignment that cuDNN requires.
  for (ConvOperand* operand : {&f.x, &f.y}) {
    if (f.parts > 1 && operand->outside.bytes() % kAlignment != 0) operand->is_copied = true;
  }

  const auto take = [&](ConvOperand& operand) {
    operand.offset = f.scratch_bytes;
    f.scratch_bytes += aligned(operand.inside.bytes());
  };
  if (f.x.is_copied) take(f.x);
  if (f.y.is_copied) take(f.y);
  // Weights need room even if their form is right, because their address may lack the alignment
  // that cuDNN requires.
  if (direction == ConvDirection::backward_weights || !f.w.is_copied) take(f.w);
  return f;
}

void ConvPass::run(const CudnnPlan& plan, const ConvPassData& data, void* packed_weights,
                   std::byte* scratch) {
  const bool is_forward = form_.problem.direction == ConvDirection::forward;
  const bool is_weights = form_.problem.direction == ConvDirection::backward_weights;
  const bool is_data = form_.problem.direction == ConvDirection::backward_data;
  DP_ASSERT(is_aligned(data.x) && is_aligned(data.y), "tensors must be aligned to 16 bytes");
  std::byte* const workspace = scratch + form_.scratch_bytes;

  void* w = data.w;
  bool copies_gradient = false;
  if (is_weights) {
    copies_gradient = form_.w.is_copied || form_.parts > 1 || !is_aligned(w);
    if (copies_gradient) w = scratch + form_.w.offset;
  } else if (form_.w.is_copied) {
    w = packed_weights;
    if (is_forward) repack(stream(), data.w, form_.w.outside, w, form_.w.inside);
  } else if (!is_aligned(w)) {
    w = scratch + form_.w.offset;
    repack(stream(), data.w, form_.w.outside, w, form_.w.inside);
  }

  for (std::size_t part = 0; part < form_.parts; ++part) {
    std::byte* const x_outside = static_cast<std::byte*>(data.x) + part * form_.x.outside.bytes();
    std::byte* const y_outside = static_cast<std::byte*>(data.y) + part * form_.y.outside.bytes();
    void* const x = into(form_.x, x_outside, !is_data, scratch);
    void* const y = into(form_.y, y_outside, !is_forward, scratch);
    pointers_.set(x, w, y, workspace);
    plan.run(device_->libraries().cudnn(), pointers_);
    if (is_data) out_of(form_.x, x, x_outside);
    if (is_forward) out_of(form_.y, y, y_outside);
    if (copies_gradient) {
      repack(stream(), w, form_.w.inside, data.w, form_.w.outside, part > 0);
    }
  }
}

// Returns the address where the plan reads or writes an operand; copies an input there.
void* ConvPass::into(const ConvOperand& operand, void* outside, bool is_input,
                     std::byte* scratch) const {
  if (!operand.is_copied) return outside;
  void* const inside = scratch + operand.offset;
  if (is_input) repack(stream(), outside, operand.outside, inside, operand.inside);
  return inside;
}
void ConvPass::out_of(const ConvOperand& operand, const void* inside, void* outside) const {
  if (operand.is_copied) repack(stream(), inside, operand.inside, outside, operand.outside);
}

}  // namespace dp::cuda
