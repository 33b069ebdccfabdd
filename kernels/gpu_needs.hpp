// What a machine must have so that this build uses its GPUs; for --version.
#pragma once

#include <string>

namespace dp {

// "GPUs: with an NVIDIA driver 580 or later (CUDA 13.0), cuDNN 9 and cuBLAS", or that this build
// was made without CUDA. Asks nothing of the machine.
[[nodiscard]] std::string gpu_needs();

}  // namespace dp
