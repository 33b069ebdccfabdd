// bfloat16 in kernels: conversions, and packs of neighbouring elements that are read and written in
// one access. A conversion to bf16 rounds to nearest, ties to even, as on the CPU. A NaN becomes
// the NaN 0x7FFF.
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
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return {0x7FFF};
  return {static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16)};
#endif
}

// The number of elements in the 16 bytes that a thread moves in one access.
template <class T>
inline constexpr int kPackCount = 16 / static_cast<int>(sizeof(T));

// kPackCount elements, or one if 16-byte accesses would be unaligned.
template <class T, int N = kPackCount<T>>
struct Pack {
  static constexpr int kCount = N;
  T values[N];
};

template <std::size_t bytes>
struct WordOf;
template <>
struct WordOf<2> {
  using Type = unsigned short;
};
template <>
struct WordOf<4> {
  using Type = unsigned;
};
template <>
struct WordOf<8> {
  using Type = uint2;
};
template <>
struct WordOf<16> {
  using Type = uint4;
};

// `at` must be aligned to the pack's size and in global memory (no __shared__ or local array).
template <class T, int N = kPackCount<T>>
DP_HD inline Pack<T, N> load_pack(const T* at) {
#ifdef __CUDA_ARCH__
  using Word = typename WordOf<sizeof(Pack<T, N>)>::Type;
  return std::bit_cast<Pack<T, N>>(*reinterpret_cast<const Word*>(at));
#else
  Pack<T, N> pack;
  std::memcpy(&pack, at, sizeof pack);
  return pack;
#endif
}
template <class T, int N>
DP_HD inline void store_pack(T* at, const Pack<T, N>& pack) {
#ifdef __CUDA_ARCH__
  using Word = typename WordOf<sizeof(Pack<T, N>)>::Type;
  const Word word = std::bit_cast<Word>(pack);
  if constexpr (sizeof word == 16) {
    // nvcc sometimes splits a plain store into several instructions, so this is assembly.
    asm("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(word.x), "r"(word.y), "r"(word.z),
        "r"(word.w)
        : "memory");
  } else {
    *reinterpret_cast<Word*>(at) = word;
  }
#else
  std::memcpy(at, &pack, sizeof pack);
#endif
}

// A pack of N elements, as floats.
template <int N>
struct Floats {
  float values[N];

  DP_HD float& operator[](int i) { return values[i]; }
  DP_HD float operator[](int i) const { return values[i]; }
};

template <class T, int N>
DP_HD inline Floats<N> to_floats(const Pack<T, N>& pack) {
  Floats<N> floats;
  for (int i = 0; i < N; ++i) floats[i] = to_float(pack.values[i]);
  return floats;
}

template <class T, int N>
DP_HD inline Pack<T, N> to_pack(const Floats<N>& floats) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) == 2 && N == 8) {
    // One instruction rounds two values.
    const auto word = [&](int i) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(floats[2 * i], floats[2 * i + 1]);
      return reinterpret_cast<const unsigned&>(pair);
    };
    return std::bit_cast<Pack<T, N>>(make_uint4(word(0), word(1), word(2), word(3)));
  } else
#endif
  {
    Pack<T, N> pack;
    for (int i = 0; i < N; ++i) pack.values[i] = from_float<T>(floats[i]);
    return pack;
  }
}

template <int N, class T>
DP_HD inline Floats<N> load_floats(const T* at) {
  return to_floats(load_pack<T, N>(at));
}
template <class T, int N>
DP_HD inline void store_floats(T* at, const Floats<N>& floats) {
  store_pack(at, to_pack<T>(floats));
}

// Whether all these addresses allow 16-byte accesses; null pointers do not count.
template <class... Pointers>
inline bool are_aligned(const Pointers*... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

}  // namespace dp::cuda
