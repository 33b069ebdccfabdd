#include "tests/cuda_on_cpu/fake_libraries.hpp"

#include <bit>
#include <cstdint>

namespace dp::cuda_on_cpu {

float round_to_tf32(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7F800000u) == 0x7F800000u) return value;
  return std::bit_cast<float>((bits + 0x0FFFu + ((bits >> 13) & 1u)) & ~0x1FFFu);
}

}  // namespace dp::cuda_on_cpu

namespace dp::cuda {

const CudnnApi& cudnn_api() { return cuda_on_cpu::fake_cudnn(); }
const CublasApi& cublas_api() { return cuda_on_cpu::fake_cublas(); }
std::string Libraries::why_missing() { return {}; }

}  // namespace dp::cuda
