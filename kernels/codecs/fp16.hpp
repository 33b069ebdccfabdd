// fp16: IEEE half precision, clamped to its largest value.
//
// Wire format of a segment of n floats:
//     binary16 value[n]          little-endian; 1 sign, 5 exponent, 10 mantissa bits
// Rounds to nearest, ties to even. Magnitudes above 65504 become 65504, and magnitudes of 2^-25 or
// less become zero. Half precision's denormals are kept. NaN and infinities are never sent.
//
// Error: |v - decoded| <= max(2^-11 |v|, 2^-25) up to 65504, |v| - 65504 beyond.
//
// Contraction c = 2^-11 for values in the normal range, 2^-14 to 65504. Smaller values are rounded
// to multiples of 2^-24. Values below 2^-25 are thus not sent until feedback has accumulated
// enough.
//
// The bytes are the same everywhere: the conversion is correctly rounded, so the processor's
// instruction (F16C) and the integer arithmetic below agree; a test compares them.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/base/hd.hpp"
#include "kernels/codecs/code_layout.hpp"
#include "kernels/codecs/codec_spec.hpp"

#if defined(__F16C__) && !defined(__CUDACC__)
#include <immintrin.h>
#endif

namespace dp::fp16 {

inline constexpr float kLargest = 65504.0f;

DP_HD inline float clamp(float v) {
  const float low = v < -kLargest ? -kLargest : v;
  return low > kLargest ? kLargest : low;
}

// Converts a finite float of magnitude up to 65504 to half precision.
DP_HD inline std::uint16_t from_float(float v) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(v);
  const std::uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
  // Below 2^-14, adding 0.5 rounds the value: floats just above 0.5 are 2^-24 apart, and so are
  // half precision's denormals.
  const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
  const std::uint32_t small = std::bit_cast<std::uint32_t>(shifted) - 0x3F000000u;
  // From 2^-14 on, change the exponent's bias and round off 13 bits, ties to even.
  const std::uint32_t odd = (magnitude >> 13) & 1u;
  const std::uint32_t normal = (magnitude - 0x38000000u + 0xFFFu + odd) >> 13;
  return static_cast<std::uint16_t>(sign | (magnitude < 0x38800000u ? small : normal));
}

// Converts half precision to float, exactly. Infinities and NaN (never sent) come out as numbers
// above 65504.
DP_HD inline float to_float(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000u) << 16, magnitude = half & 0x7FFFu;
  // A float has an exponent bias of 127. Read as a float, the bit pattern is therefore too small by
  // a factor of 2^112, and is multiplied by it. The product is exact, also for denormals.
  const float v = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(v) | sign);
}

class Format {
 public:
  static constexpr bool kIsLossless = false;
  static constexpr bool kNeedsBlockMaximum = false;
  static constexpr bool kDraws = false;
  static constexpr std::uint32_t kNonFiniteFrom = 0x7F800000u;
  static constexpr float kLargestValue = kLargest;
  static constexpr unsigned kCodeBits = 16;
  static constexpr std::uint32_t kPadding = 0;

  explicit Format(const CodecSpec&) {}
  DP_HD std::size_t payload_bytes(std::size_t n) const { return 2 * n; }
  double contraction() const { return 0x1p-11; }

  // The functions that the loops of every device call (explained in linear.hpp). Values are not
  // grouped in blocks, so Block is empty.
  struct Block {};
  DP_HD static Block block_of(std::uint32_t) { return {}; }
  DP_HD static std::size_t code_start(std::size_t) { return 0; }
  DP_HD static code_layout::Coded code_of(float v, const Block&) {
    const std::uint16_t half = from_float(clamp(v));
    return {half, to_float(half)};
  }
  DP_HD static float value_of(std::uint32_t code, const Block&) {
    return to_float(static_cast<std::uint16_t>(code));
  }
  DP_HD static bool is_code(std::uint32_t code) { return (code & 0x7FFFu) < 0x7C00u; }

  void encode_block(const float* partial, float* residual, std::size_t begin, std::size_t m,
                    std::size_t, std::uint32_t, std::byte* payload) const {
    std::byte* out = payload + 2 * begin;
    std::size_t i = 0;
#if defined(__F16C__) && !defined(__CUDACC__)
    const __m256 most = _mm256_set1_ps(kLargest), least = _mm256_set1_ps(-kLargest);
    for (; i + 8 <= m; i += 8) {
      __m256 v = _mm256_loadu_ps(partial + i);
      if (residual != nullptr) v = _mm256_add_ps(v, _mm256_loadu_ps(residual + i));
      const __m128i half = _mm256_cvtps_ph(_mm256_max_ps(_mm256_min_ps(v, most), least),
                                           _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 2 * i), half);
      if (residual != nullptr) {
        _mm256_storeu_ps(residual + i, _mm256_sub_ps(v, _mm256_cvtph_ps(half)));
      }
    }
#endif
    for (; i < m; ++i) {
      const float v = residual != nullptr ? partial[i] + residual[i] : partial[i];
      const std::uint16_t half = from_float(clamp(v));
      std::memcpy(out + 2 * i, &half, 2);
      if (residual != nullptr) residual[i] = v - to_float(half);
    }
  }

  // Returns false if a value is not finite.
  template <bool kAdd>
  [[nodiscard]] bool decode_block(const std::byte* payload, std::size_t begin, std::size_t m,
                                  std::size_t, float* out) const {
    return code_layout::decode_halves<kAdd>(payload + 2 * begin, m, out, [](std::uint16_t half) {
             return to_float(half);
           }) < 0x7C00u;
  }
};

}  // namespace dp::fp16
