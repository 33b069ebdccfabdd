// The layout of a block's codes, shared by all formats with codes of a fixed width.
//
// Codes of 8, 16 or 32 bits follow each other, little-endian. Narrower codes form s = 8 / bits
// *streams*. With w = ceil(m / s), byte i of a block of m floats holds s codes: those of floats i,
// i + w, i + 2w, ..., the first in the lowest bits. Neighbouring bytes thus hold codes of
// neighbouring floats, so loops vectorise on a CPU and memory accesses coalesce on a GPU. Positions
// beyond a stream's end hold the format's padding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/base/hd.hpp"

namespace dp::code_layout {

// A value's code (in the low bits) and the value that a decoder makes of it.
struct Coded {
  std::uint32_t bits;
  float value;
};

// The number of streams in a block.
DP_HD constexpr unsigned streams(unsigned bits) { return bits < 8 ? 8 / bits : 1; }
// A *position* holds one code of each stream. Returns the number of its bytes.
DP_HD constexpr unsigned position_bytes(unsigned bits) { return bits < 8 ? 1 : bits / 8; }
// The number of positions in a block of m floats.
DP_HD constexpr std::size_t positions(std::size_t m, unsigned bits) {
  return (m + streams(bits) - 1) / streams(bits);
}
// The number of bytes for the codes of m floats. The codes of a whole block fill whole bytes,
// because a block's length is a multiple of 8.
DP_HD constexpr std::size_t bytes(std::size_t m, unsigned bits) {
  return positions(m, bits) * position_bytes(bits);
}

// Host: calls code_of(i) once for every i < m and stores the codes.
template <unsigned kBits, std::uint32_t kPadding, class CodeOf>
void pack(std::byte* codes, std::size_t m, CodeOf code_of) {
  if constexpr (kBits < 8) {
    constexpr unsigned kStreams = streams(kBits);
    auto* out = reinterpret_cast<std::uint8_t*>(codes);
    const std::size_t width = positions(m, kBits);
    const std::size_t last = (kStreams - 1) * width, full = m > last ? m - last : 0;
#pragma omp simd
    for (std::size_t i = 0; i < full; ++i) {
      std::uint32_t byte = 0;
      for (unsigned k = 0; k < kStreams; ++k) byte |= code_of(i + k * width) << (k * kBits);
      out[i] = static_cast<std::uint8_t>(byte);
    }
    for (std::size_t i = full; i < width; ++i) {
      std::uint32_t byte = 0;
      for (unsigned k = 0; k < kStreams; ++k) {
        byte |= (i + k * width < m ? code_of(i + k * width) : kPadding) << (k * kBits);
      }
      out[i] = static_cast<std::uint8_t>(byte);
    }
  } else if constexpr (kBits == 8) {
    auto* out = reinterpret_cast<std::uint8_t*>(codes);
#pragma omp simd
    for (std::size_t i = 0; i < m; ++i) out[i] = static_cast<std::uint8_t>(code_of(i));
  } else {
    static_assert(kBits == 16);
#pragma omp simd
    for (std::size_t i = 0; i < m; ++i) {
      // Uses memcpy(), because the payload need not be aligned.
      const auto code = static_cast<std::uint16_t>(code_of(i));
      std::memcpy(codes + 2 * i, &code, 2);
    }
  }
}

// Host: calls use(i, code) once for every i < m.
template <unsigned kBits, class Use>
void unpack(const std::byte* codes, std::size_t m, Use use) {
  if constexpr (kBits < 8) {
    constexpr unsigned kStreams = streams(kBits);
    constexpr std::uint32_t kMask = (1u << kBits) - 1;
    const auto* in = reinterpret_cast<const std::uint8_t*>(codes);
    const std::size_t width = positions(m, kBits);
    const std::size_t last = (kStreams - 1) * width, full = m > last ? m - last : 0;
#pragma omp simd
    for (std::size_t i = 0; i < full; ++i) {
      const std::uint32_t byte = in[i];
      for (unsigned k = 0; k < kStreams; ++k) use(i + k * width, (byte >> (k * kBits)) & kMask);
    }
    for (std::size_t i = full; i < width; ++i) {
      const std::uint32_t byte = in[i];
      for (unsigned k = 0; k < kStreams && i + k * width < m; ++k) {
        use(i + k * width, (byte >> (k * kBits)) & kMask);
      }
    }
  } else if constexpr (kBits == 8) {
    const auto* in = reinterpret_cast<const std::uint8_t*>(codes);
#pragma omp simd
    for (std::size_t i = 0; i < m; ++i) use(i, std::uint32_t{in[i]});
  } else {
    static_assert(kBits == 16);
#pragma omp simd
    for (std::size_t i = 0; i < m; ++i) {
      std::uint16_t code = 0;
      std::memcpy(&code, codes + 2 * i, 2);
      use(i, std::uint32_t{code});
    }
  }
}

// Whether all positions beyond the streams' ends hold padding, for a block of m floats.
template <unsigned kBits, std::uint32_t kPadding>
DP_HD bool is_padded(const std::byte* codes, std::size_t m) {
  if constexpr (kBits < 8) {
    constexpr std::uint32_t kMask = (1u << kBits) - 1;
    const std::size_t width = positions(m, kBits), last = (streams(kBits) - 1) * width;
    for (std::size_t i = m > last ? m - last : 0; i < width; ++i) {
      for (unsigned k = 1; k < streams(kBits); ++k) {
        const std::uint32_t code = static_cast<std::uint32_t>(codes[i]) >> (k * kBits) & kMask;
        if (i + k * width >= m && code != kPadding) return false;
      }
    }
  }
  return true;
}

// Host: encodes a block of m floats; most formats use this function. v is partial + residual, or
// partial if `residual` is null. coded_of(v, i) gives the code and the value that a decoder makes
// of it; the difference between v and that value goes to `residual`.
template <unsigned kBits, std::uint32_t kPadding, class CodedOf>
void encode(std::byte* codes, const float* partial, float* residual, std::size_t m,
            CodedOf coded_of) {
  if (residual != nullptr) {
    pack<kBits, kPadding>(codes, m, [=](std::size_t i) {
      const float v = partial[i] + residual[i];
      const Coded coded = coded_of(v, i);
      residual[i] = v - coded.value;
      return coded.bits;
    });
  } else {
    pack<kBits, kPadding>(codes, m, [=](std::size_t i) { return coded_of(partial[i], i).bits; });
  }
}

// Host: assigns value_of(code) to each of m floats or, with kAdd, adds value_of(code) to the float.
template <unsigned kBits, bool kAdd, class ValueOf>
void decode(const std::byte* codes, std::size_t m, float* out, ValueOf value_of) {
  unpack<kBits>(codes, m, [=](std::size_t i, std::uint32_t code) {
    if constexpr (kAdd) {
      out[i] += value_of(code);
    } else {
      out[i] = value_of(code);
    }
  });
}

// Host: decode() for 16-bit floats of any kind. Returns the bits of the largest magnitude among the
// codes.
template <bool kAdd, class ValueOf>
std::uint32_t decode_halves(const std::byte* codes, std::size_t m, float* out, ValueOf value_of) {
  std::uint32_t largest = 0;
#pragma omp simd reduction(max : largest)
  for (std::size_t i = 0; i < m; ++i) {
    std::uint16_t half = 0;
    std::memcpy(&half, codes + 2 * i, 2);
    const std::uint32_t magnitude = half & 0x7FFFu;
    largest = magnitude > largest ? magnitude : largest;
    if constexpr (kAdd) {
      out[i] += value_of(half);
    } else {
      out[i] = value_of(half);
    }
  }
  return largest;
}

}  // namespace dp::code_layout
