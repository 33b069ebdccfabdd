// bfloat16 in kernels: conversions, and vectors of 16 bytes. Rounds to nearest, ties to even, as the
// CPU's twins do; NaN stays NaN.
#pragma once

#include <cuda_bf16.h>

#include <bit>
#include <cstdint>
#include <cstring>

#include "kernels/base/hd.hpp"
#include "kernels/tensor.hpp"

namespace dp::cuda {

DP_HD inline float to_float(float v) { return v; }
DP_HD inline float to_float(bf16 v) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(v.bits) << 16);
}

template <class T>
DP_HD T from_float(float v);
template <>
DP_HD inline float from_float<float>(float v) {
  return v;
}
template <>
DP_HD inline bf16 from_float<bf16>(float v) {
#ifdef __CUDA_ARCH__
  return {__bfloat16_as_ushort(__float2bfloat16_rn(v))};
#else
  const auto bits = std::bit_cast<std::uint32_t>(v);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) {
    return {static_cast<std::uint16_t>((bits >> 16) | 0x0040u)};
  }
  return {static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16)};
#endif
}

// 16 bytes of T, read and written at once; `at` is aligned to 16 bytes.
template <class T>
struct Pack {
  static constexpr int kCount = 16 / static_cast<int>(sizeof(T));
  T values[kCount];
};
template <class T>
DP_HD inline Pack<T> load_pack(const T* at) {
#ifdef __CUDA_ARCH__
  const int4 raw = *reinterpret_cast<const int4*>(at);
  return std::bit_cast<Pack<T>>(raw);
#else
  Pack<T> pack;
  std::memcpy(&pack, at, sizeof pack);
  return pack;
#endif
}
template <class T>
DP_HD inline void store_pack(T* at, const Pack<T>& pack) {
#ifdef __CUDA_ARCH__
  *reinterpret_cast<int4*>(at) = std::bit_cast<int4>(pack);
#else
  std::memcpy(at, &pack, sizeof pack);
#endif
}

}  // namespace dp::cuda
