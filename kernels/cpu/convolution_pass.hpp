// One direction of a convolution (forward, backward to the input, backward to the weights),
// computed by one algorithm: planned once and run in every training step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kernels/conv2d.hpp"
#include "kernels/cpu/device.hpp"

namespace dp::cpu {

enum class Direction : std::uint8_t { forward, backward_data, backward_weights };

class ConvolutionPass {
 public:
  virtual ~ConvolutionPass() = default;

  // data: the two operands and the result. forward: x, weights, y. backward_data: dy, weights, dx.
  // backward_weights: x, dy, and the gradient of the weights. scratch: scratch_bytes() bytes of any
  // content, aligned to 64.
  virtual void run(std::span<void* const> data, std::byte* scratch) = 0;
  [[nodiscard]] virtual std::size_t scratch_bytes() const = 0;
};

// Makes oneDNN's direct convolution in the activations' own layout. If `is_any`, makes the
// implementation that oneDNN prefers instead, with activations reordered. Returns null if oneDNN
// has no optimised implementation for this processor. Throws dnnl::error.
[[nodiscard]] std::unique_ptr<ConvolutionPass> make_onednn_pass(CpuDevice& device,
                                                                const Conv2dDesc& desc,
                                                                Direction direction, bool is_any);

// Makes Winograd's F(4x4, 3x3) (winograd.cpp). It needs a 3x3 kernel, stride 1, padding of at most
// 2, a batch that is not empty, and for input and output a number of channels that is a multiple of
// 16 and a channel block that is a multiple of a vector. Returns null for other convolutions.
[[nodiscard]] std::unique_ptr<ConvolutionPass> make_winograd_pass(CpuDevice& device,
                                                                  const Conv2dDesc& desc,
                                                                  Direction direction);

}  // namespace dp::cpu
