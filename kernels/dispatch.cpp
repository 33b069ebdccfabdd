// Sends each operation to the twin of its device. Nothing else happens here.
#include <algorithm>

#include "kernels/base/error.hpp"
#include "kernels/batch_norm.hpp"
#include "kernels/conv2d.hpp"
#include "kernels/cpu/device.hpp"
#include "kernels/cpu/twins.hpp"
#include "kernels/device.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/linear.hpp"
#include "kernels/pad_shortcut.hpp"
#include "kernels/pool.hpp"
#include "kernels/sgd.hpp"
#include "kernels/softmax_cross_entropy.hpp"

namespace dp {

namespace {

[[noreturn]] void no_cuda() {
  throw_error(ErrorKind::device,
              "--device cuda: this dptrain was built without CUDA; allowed: cpu, auto");
}

// The CPU's device, or an error for any other kind.
cpu::CpuDevice& on_cpu(Device& device) {
  if (device.kind() != DeviceKind::cpu) no_cuda();
  return static_cast<cpu::CpuDevice&>(device);
}

}  // namespace

std::string to_string(const TensorDesc& desc) {
  const Shape& s = desc.shape;
  return fmt::format(
      "{}x{}x{}x{} {} {}", s.n, s.h, s.w, s.c, name_of(desc.type),
      desc.is_nhwc() ? std::string("nhwc") : fmt::format("nChw{}c", desc.channel_block));
}

Shape conv2d_output(const Shape& x, std::size_t out_channels, std::size_t kernel,
                    std::size_t stride, std::size_t padding) {
  DP_ASSERT(stride >= 1 && kernel >= 1 && std::min(x.h, x.w) + 2 * padding >= kernel,
            "a {0}x{0} kernel with stride {1} on {2}x{3} pixels with padding {4}", kernel, stride,
            x.h, x.w, padding);
  return {x.n, (x.h + 2 * padding - kernel) / stride + 1, (x.w + 2 * padding - kernel) / stride + 1,
          out_channels};
}

std::unique_ptr<Device> make_device(const DeviceOptions& options) {
  if (options.kind != DeviceKind::cpu) no_cuda();
  return cpu::make_device(options);
}

std::unique_ptr<Conv2d> make_conv2d(Device& device, const Conv2dDesc& desc) {
  return cpu::make_conv2d(on_cpu(device), desc);
}

std::unique_ptr<BatchNorm> make_batch_norm(Device& device, const BatchNormDesc& desc) {
  return cpu::make_batch_norm(on_cpu(device), desc);
}

void relu_forward(Device& device, const TensorView& x, const TensorView& y) {
  cpu::relu_forward(on_cpu(device), x, y);
}
void relu_backward(Device& device, const TensorView& y, const TensorView& dy,
                   const TensorView& dx) {
  cpu::relu_backward(on_cpu(device), y, dy, dx);
}
void add(Device& device, const TensorView& a, const TensorView& b, const TensorView& y) {
  cpu::add(on_cpu(device), a, b, y);
}
void copy(Device& device, const TensorView& x, const TensorView& y) {
  cpu::copy(on_cpu(device), x, y);
}

void average_pool_forward(Device& device, const TensorView& x, std::size_t window,
                          std::size_t stride, const TensorView& y) {
  cpu::average_pool_forward(on_cpu(device), x, window, stride, y);
}
void average_pool_backward(Device& device, const TensorView& dy, std::size_t window,
                           std::size_t stride, const TensorView& dx) {
  cpu::average_pool_backward(on_cpu(device), dy, window, stride, dx);
}
void global_average_pool_forward(Device& device, const TensorView& x, const TensorView& y) {
  cpu::global_average_pool_forward(on_cpu(device), x, y);
}
void global_average_pool_backward(Device& device, const TensorView& dy, const TensorView& dx) {
  cpu::global_average_pool_backward(on_cpu(device), dy, dx);
}

void pad_shortcut_forward(Device& device, const TensorView& x, std::size_t stride,
                          const TensorView& y) {
  cpu::pad_shortcut_forward(on_cpu(device), x, stride, y);
}
void pad_shortcut_backward(Device& device, const TensorView& dy, std::size_t stride,
                           const TensorView& dx) {
  cpu::pad_shortcut_backward(on_cpu(device), dy, stride, dx);
}

void linear_forward(Device& device, const TensorView& x, const float* weights, const float* bias,
                    const TensorView& y) {
  cpu::linear_forward(on_cpu(device), x, weights, bias, y);
}
void linear_backward_data(Device& device, const TensorView& dy, const float* weights,
                          const TensorView& dx) {
  cpu::linear_backward_data(on_cpu(device), dy, weights, dx);
}
void linear_backward_weights(Device& device, const TensorView& x, const TensorView& dy,
                             float* weight_gradient, float* bias_gradient) {
  cpu::linear_backward_weights(on_cpu(device), x, dy, weight_gradient, bias_gradient);
}

LossSums softmax_cross_entropy(Device& device, const TensorView& logits,
                               std::span<const std::int32_t> labels, float smoothing,
                               double divisor, const TensorView& d_logits) {
  return cpu::softmax_cross_entropy(on_cpu(device), logits, labels, smoothing, divisor, d_logits);
}

void sgd_update(Device& device, std::span<float> parameters, std::span<const float> gradients,
                std::span<float> velocity, const SgdStep& step) {
  cpu::sgd_update(on_cpu(device), parameters, gradients, velocity, step);
}
double sum_of_squares(Device& device, std::span<const float> values) {
  return cpu::sum_of_squares(on_cpu(device), values);
}

}  // namespace dp
