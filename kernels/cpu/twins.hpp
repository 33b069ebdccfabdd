// The CPU twins of the operations in kernels/: the same functions, in namespace dp::cpu, taking the
// CPU's device. Contracts are those of the operation headers. Convolution runs on oneDNN, linear
// layers and Muon's products on Eigen, the rest are loops of ours over OpenMP threads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "kernels/adam.hpp"
#include "kernels/batch_norm.hpp"
#include "kernels/channel_bias.hpp"
#include "kernels/conv2d.hpp"
#include "kernels/device.hpp"
#include "kernels/dropout.hpp"
#include "kernels/lars.hpp"
#include "kernels/mix.hpp"
#include "kernels/muon.hpp"
#include "kernels/pooling.hpp"
#include "kernels/sgd.hpp"
#include "kernels/softmax_cross_entropy.hpp"

namespace dp::cpu {

class CpuDevice;

[[nodiscard]] std::unique_ptr<Device> make_device(const DeviceOptions& options);

[[nodiscard]] std::unique_ptr<Conv2d> make_conv2d(CpuDevice& device, const Conv2dDesc& desc);
[[nodiscard]] std::unique_ptr<BatchNorm> make_batch_norm(CpuDevice& device,
                                                         const BatchNormDesc& desc);

[[nodiscard]] std::unique_ptr<ChannelBias> make_channel_bias(CpuDevice& device,
                                                             const TensorDesc& y);
void dropout(CpuDevice& device, const TensorView& x, const DropoutRule& rule,
             const StepPosition* position, const TensorView& y);
void gelu_forward(CpuDevice& device, const TensorView& x, const TensorView& y);
void gelu_backward(CpuDevice& device, const TensorView& x, const TensorView& dy,
                   const TensorView& dx);

void relu_forward(CpuDevice& device, const TensorView& x, const TensorView& y);
void relu_backward(CpuDevice& device, const TensorView& y, const TensorView& dy,
                   const TensorView& dx);
void scale(CpuDevice& device, const TensorView& x, float factor, const TensorView& y);
void add(CpuDevice& device, const TensorView& a, const TensorView& b, const TensorView& y);
void copy(CpuDevice& device, const TensorView& x, const TensorView& y);

void average_pool_forward(CpuDevice& device, const TensorView& x, const Pooling& pooling,
                          const TensorView& y);
void average_pool_backward(CpuDevice& device, const TensorView& dy, const Pooling& pooling,
                           const TensorView& dx);
void global_average_pool_forward(CpuDevice& device, const TensorView& x, const TensorView& y);
void global_average_pool_backward(CpuDevice& device, const TensorView& dy, const TensorView& dx);

void max_pool_forward(CpuDevice& device, const TensorView& x, const Pooling& pooling,
                      const TensorView& y, std::uint8_t* places);
void max_pool_backward(CpuDevice& device, const TensorView& dy, const std::uint8_t* places,
                       const Pooling& pooling, const TensorView& dx);

void concatenate(CpuDevice& device, std::span<const TensorView> parts, const TensorView& y);
void split(CpuDevice& device, const TensorView& y, std::span<const TensorView> parts);

void pad_shortcut_forward(CpuDevice& device, const TensorView& x, std::size_t stride,
                          const TensorView& y);
void pad_shortcut_backward(CpuDevice& device, const TensorView& dy, std::size_t stride,
                           const TensorView& dx);

void linear_forward(CpuDevice& device, const TensorView& x, const float* weights, const float* bias,
                    const TensorView& y);
void linear_backward_data(CpuDevice& device, const TensorView& dy, const float* weights,
                          const TensorView& dx);
void linear_backward_weights(CpuDevice& device, const TensorView& x, const TensorView& dy,
                             float* weight_gradient, float* bias_gradient);

void softmax_cross_entropy(CpuDevice& device, const TensorView& logits, const std::int32_t* labels,
                           float smoothing, double divisor, const TensorView& d_logits,
                           LossSums* sums);

void sgd_update(CpuDevice& device, std::span<float> parameters, std::span<const float> gradients,
                std::span<float> velocity, const SgdStep* step, const double* squares);
void sum_of_squares(CpuDevice& device, std::span<const float> values, double* sum);
void adam_update(CpuDevice& device, std::span<float> parameters, std::span<const float> gradients,
                 std::span<float> mean, std::span<float> square, const AdamStep* step,
                 const double* squares);
void lars_update(CpuDevice& device, std::span<float> parameters, std::span<const float> gradients,
                 std::span<float> velocity, const LarsStep* step, const LarsNorms* norms,
                 const double* squares);
void muon_direction(CpuDevice& device, std::span<const float> gradients, std::span<float> velocity,
                    std::span<float> x, const MuonStep* step, const double* squares);
void muon_normalise(CpuDevice& device, std::span<float> x, const double* squares);
void muon_orthogonalise(CpuDevice& device, std::span<float> x, std::size_t rows,
                        std::size_t columns, std::span<float> workspace);
void muon_apply(CpuDevice& device, std::span<float> parameters, std::span<const float> x,
                std::size_t rows, const MuonStep* step, const double* squares);

void add_values(CpuDevice& device, std::span<const float> x, std::span<float> y, float factor);
void blend_values(CpuDevice& device, std::span<const float> x, std::span<float> y, float weight);
void subtract_from_values(CpuDevice& device, std::span<const float> x, std::span<float> y,
                          float weight);
void swap_values(CpuDevice& device, std::span<float> x, std::span<float> y);

}  // namespace dp::cpu
