// The GPU implementations ("twins") of the operations in kernels/, in namespace dp::cuda.
// Convolution runs on cuDNN, linear layers and Muon's products on cuBLAS; all other operations are
// kernels of our own. Everything is enqueued on the device's stream and may be captured in a graph:
// no operation allocates, waits or reads a result on the host.
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
using TwinDevice = CudaDevice;

// If a tensor of the batch has more than `most_elements` elements, the batch runs in equal parts.
// 0 stands for the limit of cuDNN.
[[nodiscard]] std::unique_ptr<Conv2d> make_conv2d(CudaDevice& device, const Conv2dDesc& desc,
                                                  std::size_t most_elements = 0);

#include "kernels/twin_functions.hpp"

void augment_images(CudaDevice& device, const std::uint8_t* images, const ImageCrop* crops,
                    const PixelTable* table, const TensorView& y);

[[nodiscard]] std::unique_ptr<InputLink> make_input_link(CudaDevice& device,
                                                         std::size_t largest_batch,
                                                         const ImageShape& image,
                                                         const PixelTable& table);

}  // namespace dp::cuda
