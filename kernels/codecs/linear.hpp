// q16, q8, q4: symmetric linear bins, one scale per block, round to nearest.
//
// Wire format of a segment of n floats in blocks of `block` (the last one may be shorter):
//     float32 scale[blocks]      little-endian; finite, >= 0
//     codes                      16, 8 or 4 bits a value, block after block; value = code * scale
//   q16: int16, -32767..32767. q8: int8, -127..127.
//   q4: a nibble, code + 8, codes -7..7. Byte i of a block of m floats holds float i in its low
//   nibble and float i + (m+1)/2 in its high one (8, that is zero, where there is none): two
//   contiguous streams, which vectorise.
// With L = 32767, 127 or 7: scale = absmax / L, code = round(v * (L / absmax)), ties to even.
// The largest value of a block is reproduced up to rounding, zero exactly.
// A block with absmax < 2^-100 is sent as zeros (scale 0), so no division overflows and no product
// is denormal. A magnitude of 2^126 or more counts as not finite, so no decoded value overflows.
//
// Error: |v - decoded| <= scale / 2 + 2^-22 |v|.
// Contraction: the error is at most |v| where v rounds to zero, at most scale / 2 elsewhere and
// nothing at the largest value. The worst block has one value L * scale and all others at scale /
// 2, so c^2 = K / (1 + K) with K = (block - 1) / (4 L^2): q4 of 2048: 0.955, q8: 0.175, q16:
// 0.0007.
//
// Same bytes everywhere: one division per block, correctly rounded; multiply, nearbyint and
// subtract are IEEE operations and never contracted (-ffp-contract=off, --fmad=false); the maximum
// is taken over bit patterns, so its order does not matter, and NaN is the largest.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/base/hd.hpp"

namespace dp::linear {

inline constexpr std::uint32_t kNonFiniteBits = 0x7E800000u;  // 2^126: at or above is not finite
inline constexpr std::uint32_t kTinyBits = 0x0D800000u;       // 2^-100: below, the block is zeros

DP_HD constexpr int levels(int bits) { return (1 << (bits - 1)) - 1; }

// The two factors of a block: v * inverse is the code before rounding, code * scale the value.
struct Scale {
  float scale;
  float inverse;
};
DP_HD inline Scale block_scale(std::uint32_t absmax_bits, int bits) {
  if (absmax_bits < kTinyBits) return {0.0f, 0.0f};
  const float absmax = std::bit_cast<float>(absmax_bits);
  const auto l = static_cast<float>(levels(bits));
  return {absmax / l, l / absmax};
}

// One value: its code, as a float that is a whole number.
DP_HD inline float quantise(float v, float inverse) { return std::nearbyintf(v * inverse); }

template <int kBits>
class Format {
  static_assert(kBits == 16 || kBits == 8 || kBits == 4);

 public:
  static constexpr bool kIsLossless = false;
  static constexpr bool kNeedsBlockMaximum = true;
  static constexpr std::uint32_t kNonFiniteFrom = kNonFiniteBits;

  DP_HD explicit Format(std::size_t block) : block_(block) {}

  DP_HD std::size_t payload_bytes(std::size_t n) const { return code_start(n) + code_bytes(n); }
  double contraction() const {
    const double l = levels(kBits), k = static_cast<double>(block_ - 1) / (4.0 * l * l);
    // 2^-12 covers the rounding of the largest value (2^-22 of it) in the small c of q16.
    return std::sqrt(k / (1.0 + k)) * (1.0 + 0x1p-12) + 0x1p-21;
  }

  // Encodes floats [begin, begin + m) of a segment of n, one block; m <= block.
  void encode_block(const float* partial, float* residual, std::size_t begin, std::size_t m,
                    std::size_t n, std::uint32_t absmax_bits, std::byte* payload) const {
    const Scale s = block_scale(absmax_bits, kBits);
    std::memcpy(payload + begin / block_ * sizeof(float), &s.scale, sizeof(float));
    std::byte* codes = payload + code_start(n) + code_bytes(begin);
    const float scale = s.scale, inverse = s.inverse;
    if (residual != nullptr) {
      pack(codes, m, [=](std::size_t i) {
        const float v = partial[i] + residual[i], q = quantise(v, inverse);
        residual[i] = v - q * scale;
        return static_cast<int>(q);
      });
    } else {
      pack(codes, m,
           [=](std::size_t i) { return static_cast<int>(quantise(partial[i], inverse)); });
    }
  }

  // Decodes the same block into `out` (its first float); false where the scale cannot be.
  template <bool kAdd>
  [[nodiscard]] bool decode_block(const std::byte* payload, std::size_t begin, std::size_t m,
                                  std::size_t n, float* out) const {
    float scale = 0.0f;
    std::memcpy(&scale, payload + begin / block_ * sizeof(float), sizeof(float));
    // Negative scales and NaN have larger bit patterns than any scale an encoder writes.
    if (std::bit_cast<std::uint32_t>(scale) >= kNonFiniteBits) return false;
    unpack(payload + code_start(n) + code_bytes(begin), m, [=](std::size_t i, int code) {
      const float v = static_cast<float>(code) * scale;
      if constexpr (kAdd) {
        out[i] += v;
      } else {
        out[i] = v;
      }
    });
    return true;
  }

 private:
  DP_HD std::size_t code_start(std::size_t n) const {
    return (n + block_ - 1) / block_ * sizeof(float);
  }
  // Whole blocks end on a byte, since blocks are a multiple of 8.
  DP_HD static std::size_t code_bytes(std::size_t n) { return (n * kBits + 7) / 8; }

  // Calls code_of(i) once for every i < m and stores the codes.
  template <class CodeOf>
  static void pack(std::byte* codes, std::size_t m, CodeOf code_of) {
    if constexpr (kBits == 4) {
      auto* bytes = reinterpret_cast<std::uint8_t*>(codes);
      const std::size_t half = (m + 1) / 2, pairs = m / 2;
#pragma omp simd
      for (std::size_t i = 0; i < pairs; ++i) {
        const int low = code_of(i) + 8, high = code_of(i + half) + 8;
        bytes[i] = static_cast<std::uint8_t>(low | (high << 4));
      }
      if (pairs < half) bytes[pairs] = static_cast<std::uint8_t>((code_of(pairs) + 8) | (8 << 4));
    } else if constexpr (kBits == 8) {
      auto* bytes = reinterpret_cast<std::int8_t*>(codes);
#pragma omp simd
      for (std::size_t i = 0; i < m; ++i) bytes[i] = static_cast<std::int8_t>(code_of(i));
    } else {
#pragma omp simd
      for (std::size_t i = 0; i < m; ++i) {
        // memcpy: the payload may lie at any address.
        const auto code = static_cast<std::int16_t>(code_of(i));
        std::memcpy(codes + 2 * i, &code, 2);
      }
    }
  }

  // Calls use(i, code) once for every i < m.
  template <class Use>
  static void unpack(const std::byte* codes, std::size_t m, Use use) {
    if constexpr (kBits == 4) {
      const auto* bytes = reinterpret_cast<const std::uint8_t*>(codes);
      const std::size_t half = (m + 1) / 2, pairs = m / 2;
#pragma omp simd
      for (std::size_t i = 0; i < pairs; ++i) {
        use(i, (bytes[i] & 15) - 8);
        use(i + half, (bytes[i] >> 4) - 8);
      }
      if (pairs < half) use(pairs, (bytes[pairs] & 15) - 8);
    } else if constexpr (kBits == 8) {
      const auto* bytes = reinterpret_cast<const std::int8_t*>(codes);
#pragma omp simd
      for (std::size_t i = 0; i < m; ++i) use(i, bytes[i]);
    } else {
#pragma omp simd
      for (std::size_t i = 0; i < m; ++i) {
        std::int16_t code = 0;
        std::memcpy(&code, codes + 2 * i, 2);
        use(i, code);
      }
    }
  }

  std::size_t block_;
};

}  // namespace dp::linear
