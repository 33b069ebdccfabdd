// The GPU twins of the operations in kernels/: the same functions, in namespace dp::cuda. Contracts
// are those of the operation headers. Convolution runs on cuDNN, linear layers and Muon's products
// on cuBLAS, the rest are kernels of ours. Everything is enqueued on the device's stream and may be
// captured in a graph: no operation allocates, waits or reads a result on the host.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "kernels/adam.hpp"
#include "kernels/augment.hpp"
#include "kernels/batch_norm.hpp"
#include "kernels/channel_bias.hpp"
#include "kernels/conv2d.hpp"
#include "kernels/device.hpp"
#include "kernels/dropout.hpp"
#include "kernels/input_link.hpp"
#include "kernels/lars.hpp"
#include "kernels/mix.hpp"
#include "kernels/muon.hpp"
#include "kernels/pooling.hpp"
#include "kernels/sgd.hpp"
#include "kernels/softmax_cross_entropy.hpp"

namespace dp::cuda {

class CudaDevice;

// A batch with more than `most_elements` in a tensor runs in equal parts; 0: as cuDNN needs it.
[[nodiscard]] std::unique_ptr<Conv2d> make_conv2d(CudaDevice& device, const Conv2dDesc& desc,
                                                  std::size_t most_elements = 0);
[[nodiscard]] std::unique_ptr<BatchNorm> make_batch_norm(CudaDevice& device,
                                                         const BatchNormDesc& desc);

[[nodiscard]] std::unique_ptr<ChannelBias> make_channel_bias(CudaDevice& device,
                                                             const TensorDesc& y);
void dropout(CudaDevice& device, const TensorView& x, const DropoutRule& rule,
             const StepPosition* position, const TensorView& y);
void gelu_forward(CudaDevice& device, const TensorView& x, const TensorView& y);
void gelu_backward(CudaDevice& device, const TensorView& x, const TensorView& dy,
                   const TensorView& dx);

void relu_forward(CudaDevice& device, const TensorView& x, const TensorView& y);
void relu_backward(CudaDevice& device, const TensorView& y, const TensorView& dy,
                   const TensorView& dx);
void scale(CudaDevice& device, const TensorView& x, float factor, const TensorView& y);
void add(CudaDevice& device, const TensorView& a, const TensorView& b, const TensorView& y);
void copy(CudaDevice& device, const TensorView& x, const TensorView& y);

void average_pool_forward(CudaDevice& device, const TensorView& x, const Pooling& pooling,
                          const TensorView& y);
void average_pool_backward(CudaDevice& device, const TensorView& dy, const Pooling& pooling,
                           const TensorView& dx);
void global_average_pool_forward(CudaDevice& device, const TensorView& x, const TensorView& y);
void global_average_pool_backward(CudaDevice& device, const TensorView& dy, const TensorView& dx);

void max_pool_forward(CudaDevice& device, const TensorView& x, const Pooling& pooling,
                      const TensorView& y, std::uint8_t* places);
void max_pool_backward(CudaDevice& device, const TensorView& dy, const std::uint8_t* places,
                       const Pooling& pooling, const TensorView& dx);

void concatenate(CudaDevice& device, std::span<const TensorView> parts, const TensorView& y);
void split(CudaDevice& device, const TensorView& y, std::span<const TensorView> parts);

void pad_shortcut_forward(CudaDevice& device, const TensorView& x, std::size_t stride,
                          const TensorView& y);
void pad_shortcut_backward(CudaDevice& device, const TensorView& dy, std::size_t stride,
                           const TensorView& dx);

void linear_forward(CudaDevice& device, const TensorView& x, const float* weights,
                    const float* bias, const TensorView& y);
void linear_backward_data(CudaDevice& device, const TensorView& dy, const float* weights,
                          const TensorView& dx);
void linear_backward_weights(CudaDevice& device, const TensorView& x, const TensorView& dy,
                             float* weight_gradient, float* bias_gradient);

void softmax_cross_entropy(CudaDevice& device, const TensorView& logits, const std::int32_t* labels,
                           float smoothing, double divisor, const TensorView& d_logits,
                           LossSums* sums);

void sgd_update(CudaDevice& device, std::span<float> parameters, std::span<const float> gradients,
                std::span<float> velocity, const SgdStep* step, const double* squares);
void sum_of_squares(CudaDevice& device, std::span<const float> values, double* sum);
void adam_update(CudaDevice& device, std::span<float> parameters, std::span<const float> gradients,
                 std::span<float> mean, std::span<float> square, const AdamStep* step,
                 const double* squares);
void lars_update(CudaDevice& device, std::span<float> parameters, std::span<const float> gradients,
                 std::span<float> velocity, const LarsStep* step, const LarsNorms* norms,
                 const double* squares);
void muon_direction(CudaDevice& device, std::span<const float> gradients, std::span<float> velocity,
                    std::span<float> x, const MuonStep* step, const double* squares);
void muon_normalise(CudaDevice& device, std::span<float> x, const double* squares);
void muon_orthogonalise(CudaDevice& device, std::span<float> x, std::size_t rows,
                        std::size_t columns, std::span<float> workspace);
void muon_apply(CudaDevice& device, std::span<float> parameters, std::span<const float> x,
                std::size_t rows, const MuonStep* step, const double* squares);

void add_values(CudaDevice& device, std::span<const float> x, std::span<float> y, float factor);
void blend_values(CudaDevice& device, std::span<const float> x, std::span<float> y, float weight);
void subtract_from_values(CudaDevice& device, std::span<const float> x, std::span<float> y,
                          float weight);
void swap_values(CudaDevice& device, std::span<float> x, std::span<float> y);

void augment_images(CudaDevice& device, const std::uint8_t* images, const ImageCrop* crops,
                    const PixelTable* table, const TensorView& y);

[[nodiscard]] std::unique_ptr<InputLink> make_input_link(CudaDevice& device,
                                                         std::size_t largest_batch,
                                                         const ImageShape& image,
                                                         const PixelTable& table);

}  // namespace dp::cuda
