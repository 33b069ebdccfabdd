// Forwards each operation to its device's twin, and nothing else.
#include <algorithm>

#include "kernels/adam.hpp"
#include "kernels/augment.hpp"
#include "kernels/base/error.hpp"
#include "kernels/batch_norm.hpp"
#include "kernels/channel_bias.hpp"
#include "kernels/concatenate.hpp"
#include "kernels/conv2d.hpp"
#include "kernels/cpu/device.hpp"
#include "kernels/cpu/twins.hpp"
#include "kernels/device.hpp"
#include "kernels/dropout.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/gelu.hpp"
#include "kernels/input_link.hpp"
#include "kernels/lars.hpp"
#include "kernels/linear.hpp"
#include "kernels/max_pool.hpp"
#include "kernels/mix.hpp"
#include "kernels/muon.hpp"
#include "kernels/pad_shortcut.hpp"
#include "kernels/pool.hpp"
#include "kernels/sgd.hpp"
#include "kernels/softmax_cross_entropy.hpp"

#ifdef DP_HAVE_CUDA
#include "kernels/cuda/device.hpp"
#include "kernels/cuda/twins.hpp"
#endif

// DP_SEND(operation, device, arguments...) calls the operation's twin in dp::cpu or dp::cuda.
#ifdef DP_HAVE_CUDA
#define DP_SEND(operation, device, ...)                                                \
  ((device).kind() == DeviceKind::cuda ? cuda::operation(on_cuda(device), __VA_ARGS__) \
                                       : cpu::operation(on_cpu(device), __VA_ARGS__))
#else
#define DP_SEND(operation, device, ...) cpu::operation(on_cpu(device), __VA_ARGS__)
#endif

namespace dp {

namespace {

cpu::CpuDevice& on_cpu(Device& device) {
  DP_ASSERT(device.kind() == DeviceKind::cpu, "an operation for CPUs was called on another device");
  return static_cast<cpu::CpuDevice&>(device);
}

#ifdef DP_HAVE_CUDA
cuda::CudaDevice& on_cuda(Device& device) {
  DP_ASSERT(device.kind() == DeviceKind::cuda,
            "an operation for GPUs was called on another device");
  return cuda::as_cuda(device);
}
#endif

}  // namespace

std::string to_string(const TensorDesc& desc) {
  const Shape& s = desc.shape;
  return fmt::format(
      "{}x{}x{}x{} {} {}", s.n, s.h, s.w, s.c, name_of(desc.type),
      desc.is_nhwc() ? std::string("nhwc") : fmt::format("nChw{}c", desc.channel_block));
}

Shape conv2d_output(const Shape& x, std::size_t out_channels, Extent kernel, std::size_t stride,
                    Extent padding) {
  const std::size_t height = x.h + 2 * padding.h, width = x.w + 2 * padding.w;
  DP_ASSERT(stride >= 1 && kernel.area() >= 1 && height >= kernel.h && width >= kernel.w,
            "a {}x{} kernel with stride {} does not fit {}x{} pixels with padding {}x{}", kernel.h,
            kernel.w, stride, x.h, x.w, padding.h, padding.w);
  return {x.n, (height - kernel.h) / stride + 1, (width - kernel.w) / stride + 1, out_channels};
}

std::unique_ptr<Device> make_device(const DeviceOptions& options) {
  return options.kind == DeviceKind::cpu ? cpu::make_device(options) : make_gpu(options);
}

std::unique_ptr<Conv2d> make_conv2d(Device& device, const Conv2dDesc& desc) {
  return DP_SEND(make_conv2d, device, desc);
}

std::unique_ptr<BatchNorm> make_batch_norm(Device& device, const BatchNormDesc& desc) {
  return DP_SEND(make_batch_norm, device, desc);
}

std::unique_ptr<ChannelBias> make_channel_bias(Device& device, const TensorDesc& y) {
  return DP_SEND(make_channel_bias, device, y);
}

void dropout(Device& device, const TensorView& x, const DropoutRule& rule,
             const StepPosition* position, const TensorView& y) {
  DP_ASSERT(x.desc == y.desc && rule.probability >= 0 && rule.probability < 1, "{} of {}",
            rule.probability, to_string(x.desc));
  DP_SEND(dropout, device, x, rule, position, y);
}

void gelu_forward(Device& device, const TensorView& x, const TensorView& y) {
  DP_SEND(gelu_forward, device, x, y);
}
void gelu_backward(Device& device, const TensorView& x, const TensorView& dy,
                   const TensorView& dx) {
  DP_SEND(gelu_backward, device, x, dy, dx);
}

void relu_forward(Device& device, const TensorView& x, const TensorView& y) {
  DP_SEND(relu_forward, device, x, y);
}
void relu_backward(Device& device, const TensorView& y, const TensorView& dy,
                   const TensorView& dx) {
  DP_SEND(relu_backward, device, y, dy, dx);
}
void add(Device& device, const TensorView& a, const TensorView& b, const TensorView& y) {
  DP_SEND(add, device, a, b, y);
}
void scale(Device& device, const TensorView& x, float factor, const TensorView& y) {
  DP_SEND(scale, device, x, factor, y);
}
void copy(Device& device, const TensorView& x, const TensorView& y) { DP_SEND(copy, device, x, y); }

void average_pool_forward(Device& device, const TensorView& x, const Pooling& pooling,
                          const TensorView& y) {
  DP_SEND(average_pool_forward, device, x, pooling, y);
}
void average_pool_backward(Device& device, const TensorView& dy, const Pooling& pooling,
                           const TensorView& dx) {
  DP_SEND(average_pool_backward, device, dy, pooling, dx);
}
void global_average_pool_forward(Device& device, const TensorView& x, const TensorView& y) {
  DP_SEND(global_average_pool_forward, device, x, y);
}
void global_average_pool_backward(Device& device, const TensorView& dy, const TensorView& dx) {
  DP_SEND(global_average_pool_backward, device, dy, dx);
}

void max_pool_forward(Device& device, const TensorView& x, const Pooling& pooling,
                      const TensorView& y, std::uint8_t* places) {
  DP_SEND(max_pool_forward, device, x, pooling, y, places);
}
void max_pool_backward(Device& device, const TensorView& dy, const std::uint8_t* places,
                       const Pooling& pooling, const TensorView& dx) {
  DP_SEND(max_pool_backward, device, dy, places, pooling, dx);
}

void concatenate(Device& device, std::span<const TensorView> parts, const TensorView& y) {
  DP_SEND(concatenate, device, parts, y);
}
void split(Device& device, const TensorView& y, std::span<const TensorView> parts) {
  DP_SEND(split, device, y, parts);
}

void pad_shortcut_forward(Device& device, const TensorView& x, std::size_t stride,
                          const TensorView& y) {
  DP_SEND(pad_shortcut_forward, device, x, stride, y);
}
void pad_shortcut_backward(Device& device, const TensorView& dy, std::size_t stride,
                           const TensorView& dx) {
  DP_SEND(pad_shortcut_backward, device, dy, stride, dx);
}

void linear_forward(Device& device, const TensorView& x, const float* weights, const float* bias,
                    const TensorView& y) {
  DP_SEND(linear_forward, device, x, weights, bias, y);
}
void linear_backward_data(Device& device, const TensorView& dy, const float* weights,
                          const TensorView& dx) {
  DP_SEND(linear_backward_data, device, dy, weights, dx);
}
void linear_backward_weights(Device& device, const TensorView& x, const TensorView& dy,
                             float* weight_gradient, float* bias_gradient) {
  DP_SEND(linear_backward_weights, device, x, dy, weight_gradient, bias_gradient);
}

void softmax_cross_entropy(Device& device, const TensorView& logits, const std::int32_t* labels,
                           float smoothing, double divisor, const TensorView& d_logits,
                           LossSums* sums) {
  DP_SEND(softmax_cross_entropy, device, logits, labels, smoothing, divisor, d_logits, sums);
}

void sgd_update(Device& device, std::span<float> parameters, std::span<const float> gradients,
                std::span<float> velocity, const SgdStep* step, const double* squares) {
  DP_ASSERT(parameters.size() == gradients.size() && parameters.size() == velocity.size(),
            "the numbers of parameters ({}), gradients ({}) and velocities ({}) differ",
            parameters.size(), gradients.size(), velocity.size());
  DP_SEND(sgd_update, device, parameters, gradients, velocity, step, squares);
}
void sum_of_squares(Device& device, std::span<const float> values, double* sum) {
  DP_SEND(sum_of_squares, device, values, sum);
}
void adam_update(Device& device, std::span<float> parameters, std::span<const float> gradients,
                 std::span<float> mean, std::span<float> square, const AdamStep* step,
                 const double* squares) {
  DP_ASSERT(parameters.size() == gradients.size() && parameters.size() == mean.size() &&
                parameters.size() == square.size(),
            "the numbers of parameters ({}), gradients ({}), means ({}) and squares ({}) differ",
            parameters.size(), gradients.size(), mean.size(), square.size());
  DP_SEND(adam_update, device, parameters, gradients, mean, square, step, squares);
}
void lars_update(Device& device, std::span<float> parameters, std::span<const float> gradients,
                 std::span<float> velocity, const LarsStep* step, const LarsNorms* norms,
                 const double* squares) {
  DP_ASSERT(parameters.size() == gradients.size() && parameters.size() == velocity.size(),
            "the numbers of parameters ({}), gradients ({}) and velocities ({}) differ",
            parameters.size(), gradients.size(), velocity.size());
  DP_SEND(lars_update, device, parameters, gradients, velocity, step, norms, squares);
}
void muon_direction(Device& device, std::span<const float> gradients, std::span<float> velocity,
                    std::span<float> x, const MuonStep* step, const double* squares) {
  DP_ASSERT(x.size() == gradients.size() && x.size() == velocity.size(),
            "the numbers of values ({}), gradients ({}) and velocities ({}) differ", x.size(),
            gradients.size(), velocity.size());
  DP_SEND(muon_direction, device, gradients, velocity, x, step, squares);
}
void muon_normalise(Device& device, std::span<float> x, const double* squares) {
  DP_SEND(muon_normalise, device, x, squares);
}
std::size_t muon_workspace(std::size_t rows, std::size_t columns) {
  const std::size_t n = std::min(rows, columns);
  return 2 * n * n + rows * columns;
}
void muon_orthogonalise(Device& device, std::span<float> x, std::size_t rows, std::size_t columns,
                        std::span<float> workspace) {
  DP_ASSERT(x.size() == rows * columns, "{} values do not fill a matrix of {} x {}", x.size(), rows,
            columns);
  DP_SEND(muon_orthogonalise, device, x, rows, columns, workspace);
}
void muon_apply(Device& device, std::span<float> parameters, std::span<const float> x,
                std::size_t rows, const MuonStep* step, const double* squares) {
  DP_ASSERT(parameters.size() == x.size(), "{} parameters, {} values", parameters.size(), x.size());
  DP_SEND(muon_apply, device, parameters, x, rows, step, squares);
}

void add_values(Device& device, std::span<const float> x, std::span<float> y, float factor) {
  DP_ASSERT(x.size() == y.size(), "{} and {} values", x.size(), y.size());
  DP_SEND(add_values, device, x, y, factor);
}
void blend_values(Device& device, std::span<const float> x, std::span<float> y, float weight) {
  DP_ASSERT(x.size() == y.size(), "{} and {} values", x.size(), y.size());
  DP_SEND(blend_values, device, x, y, weight);
}
void subtract_from_values(Device& device, std::span<const float> x, std::span<float> y,
                          float weight) {
  DP_ASSERT(x.size() == y.size(), "{} and {} values", x.size(), y.size());
  DP_SEND(subtract_from_values, device, x, y, weight);
}
void swap_values(Device& device, std::span<float> x, std::span<float> y) {
  DP_ASSERT(x.size() == y.size(), "{} and {} values", x.size(), y.size());
  DP_SEND(swap_values, device, x, y);
}

// ---- what only GPUs have ------------------------------------------------------------------------

void augment_images(Device& device, [[maybe_unused]] const std::uint8_t* images,
                    [[maybe_unused]] const ImageCrop* crops,
                    [[maybe_unused]] const PixelTable* table,
                    [[maybe_unused]] const TensorView& y) {
  DP_ASSERT(device.kind() == DeviceKind::cuda, "on a CPU, the loader augments the images");
#ifdef DP_HAVE_CUDA
  cuda::augment_images(on_cuda(device), images, crops, table, y);
#endif
}

std::unique_ptr<InputLink> make_input_link(Device& device,
                                           [[maybe_unused]] std::size_t largest_batch,
                                           [[maybe_unused]] const ImageShape& image,
                                           [[maybe_unused]] const PixelTable& table) {
  DP_ASSERT(device.kind() == DeviceKind::cuda, "only a GPU needs a link to host memory");
#ifdef DP_HAVE_CUDA
  return cuda::make_input_link(on_cuda(device), largest_batch, image, table);
#else
  return nullptr;
#endif
}

}  // namespace dp
