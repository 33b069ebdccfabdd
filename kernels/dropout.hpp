// Dropout: each value is set to zero with probability p, and the others are divided by 1 - p, so
// that the mean is unchanged (Srivastava et al. 2014).
//
// Whether a value is kept is a function of the run's seed, the training step, the layer's stream
// and the value's position: the index of its image in the batch of all ranks, and its place in the
// image in NHWC order. The mask is therefore the same on every device, for any number of threads,
// and for any number of ranks that share the batch. It is not stored: backward draws it again.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/base/hd.hpp"
#include "kernels/base/random.hpp"
#include "kernels/device.hpp"
#include "kernels/tensor.hpp"

namespace dp {

// The inputs of a mask that change from one training step to the next. Operations read it when they
// run, so it must be in memory from Device::allocate_host. Image n of this rank is image
// first_image + n * image_stride of the batch of all ranks.
struct StepPosition {
  std::uint64_t seed = 0, step = 0, first_image = 0, image_stride = 1;
};

struct DropoutRule {
  double probability;        // of a zero, in [0, 1)
  std::uint64_t stream = 0;  // a different one per layer, so that layers have different masks
};

// y = x * mask / (1 - p). The gradient is the same function: dx = dy * mask / (1 - p). Overwrites
// y, which may be x. Both tensors have the same data type and channel block.
void dropout(Device& device, const TensorView& x, const DropoutRule& rule,
             const StepPosition* position, const TensorView& y);

// ---- the mask -----------------------------------------------------------------------------------

DP_HD constexpr CounterRng dropout_rng(const StepPosition& position, std::uint64_t stream) {
  return CounterRng(position.seed, RandomStream::dropout, position.step, stream);
}
// A value is kept if the upper 53 bits drawn for it are at least this threshold.
[[nodiscard]] inline std::uint64_t dropout_threshold(double probability) {
  return static_cast<std::uint64_t>(std::ceil(probability * 0x1.0p53));
}
DP_HD constexpr bool is_kept(const CounterRng& rng, std::uint64_t element,
                             std::uint64_t threshold) {
  return rng.bits(element) >> 11 >= threshold;
}

}  // namespace dp
