// The libraries and drivers that this build needs to use GPUs; printed by --version.
#pragma once

#include <string>

namespace dp {

// "GPUs: with an NVIDIA driver 580 or later (CUDA 13.0), cuDNN 9 and cuBLAS", or "GPUs: none; built
// without CUDA". Does not inspect the machine.
[[nodiscard]] std::string gpu_needs();

}  // namespace dp
