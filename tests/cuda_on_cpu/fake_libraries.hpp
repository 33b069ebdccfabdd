// cuDNN and cuBLAS for the emulator: the tables of kernels/cuda/libraries.hpp with functions that
// check their arguments as the libraries do, and compute in double on the stream's worker.
//
// Replaces kernels/cuda/libraries.cpp, which finds the real ones.
#pragma once

#include "kernels/cuda/libraries.hpp"

namespace dp::cuda_on_cpu {

[[nodiscard]] const cuda::CudnnApi& fake_cudnn();
[[nodiscard]] const cuda::CublasApi& fake_cublas();

// An fp32 number as tensor cores read it: TF32, 10 bits of mantissa, rounded to nearest.
[[nodiscard]] float round_to_tf32(float value);

}  // namespace dp::cuda_on_cpu
