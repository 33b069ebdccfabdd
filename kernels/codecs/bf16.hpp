// bf16: the upper half of a float, rounded.
//
// Wire format of a segment of n floats:
//     bfloat16 value[n]          little-endian; 1 sign, 8 exponent, 7 mantissa bits
// Rounds to nearest, ties to even. Magnitudes above the largest bfloat16, 0x1.FEp127, become that
// value. Denormals are kept. NaN and infinities are never sent.
//
// Error: |v - decoded| <= max(2^-8 |v|, 2^-134). Contraction c = 2^-8 for values in the normal
// range. Compared with fp16, bf16 has only an eighth of the precision. But it has the range of
// fp32, so no value is clamped or vanishes.
//
// The bytes are the same everywhere, because rounding is integer arithmetic.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/base/hd.hpp"
#include "kernels/codecs/code_layout.hpp"
#include "kernels/codecs/codec_spec.hpp"

namespace dp::bfloat16 {

// v must be finite.
DP_HD inline std::uint16_t from_float(float v) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(v);
  const std::uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
  const std::uint32_t rounded = (magnitude + 0x7FFFu + ((magnitude >> 16) & 1u)) >> 16;
  return static_cast<std::uint16_t>(sign | (rounded < 0x7F7Fu ? rounded : 0x7F7Fu));
}
// The conversion is exact.
DP_HD inline float to_float(std::uint16_t half) {
  return std::bit_cast<float>(std::uint32_t{half} << 16);
}

class Format {
 public:
  static constexpr bool kIsLossless = false;
  static constexpr bool kNeedsBlockMaximum = false;
  static constexpr bool kDraws = false;
  static constexpr std::uint32_t kNonFiniteFrom = 0x7F800000u;
  static constexpr unsigned kCodeBits = 16;
  static constexpr std::uint32_t kPadding = 0;

  explicit Format(const CodecSpec&) {}
  DP_HD std::size_t payload_bytes(std::size_t n) const { return 2 * n; }
  double contraction() const { return 0x1p-8; }

  // The functions that the loops of every device call (explained in linear.hpp). Values are not
  // grouped in blocks, so Block is empty.
  struct Block {};
  DP_HD static Block block_of(std::uint32_t) { return {}; }
  DP_HD static std::size_t code_start(std::size_t) { return 0; }
  DP_HD static code_layout::Coded code_of(float v, const Block&) {
    const std::uint16_t half = from_float(v);
    return {half, to_float(half)};
  }
  DP_HD static float value_of(std::uint32_t code, const Block&) {
    return to_float(static_cast<std::uint16_t>(code));
  }
  DP_HD static bool is_code(std::uint32_t code) { return (code & 0x7FFFu) < 0x7F80u; }

  void encode_block(const float* partial, float* residual, std::size_t begin, std::size_t m,
                    std::size_t, std::uint32_t, std::byte* payload) const {
    code_layout::encode<16, kPadding>(payload + 2 * begin, partial, residual, m,
                                      [](float v, std::size_t) { return code_of(v, {}); });
  }

  // Returns false if a value is not finite.
  template <bool kAdd>
  [[nodiscard]] bool decode_block(const std::byte* payload, std::size_t begin, std::size_t m,
                                  std::size_t, float* out) const {
    return code_layout::decode_halves<kAdd>(payload + 2 * begin, m, out, [](std::uint16_t half) {
             return to_float(half);
           }) < 0x7F80u;
  }
};

}  // namespace dp::bfloat16
