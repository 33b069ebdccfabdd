// What a machine must have so that this build can use its GPUs; shown by --version.
#pragma once

#include <string>

namespace dp {

// "GPUs: with an NVIDIA driver 580 or later (CUDA 13.0), cuDNN 9 and cuBLAS", or "GPUs: none; built
// without CUDA". Does not look at the machine.
[[nodiscard]] std::string gpu_needs();

}  // namespace dp
