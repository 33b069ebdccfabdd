// The CPU implementations ("twins") of the operations in kernels/, in namespace dp::cpu.
// Convolution runs on oneDNN and on our own Winograd loops (winograd.cpp), linear layers and Muon's
// products on Eigen; all other operations are loops of our own over OpenMP threads.
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
using TwinDevice = CpuDevice;

[[nodiscard]] std::unique_ptr<Device> make_device(const DeviceOptions& options);

[[nodiscard]] std::unique_ptr<Conv2d> make_conv2d(CpuDevice& device, const Conv2dDesc& desc);

#include "kernels/twin_functions.hpp"

}  // namespace dp::cpu
