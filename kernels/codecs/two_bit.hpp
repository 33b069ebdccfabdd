// q2: a value becomes -s, 0 or s, with the s that has the smallest squared error for its block.
//
// Wire format: as in scaled_blocks.hpp, with codes of 2 bits. The scale is s, and a code is 0 for
// zero, 1 for s, 3 for -s (2 is never sent). Byte i of a block of m floats holds the floats i, i +
// w, i + 2w, i + 3w with w = ceil(m / 4), the first in its lowest bits, and 0 beyond the last
// float. A value is sent if its magnitude is above s / 2.
//
// three_levels.hpp describes how the scale is found, and derives error and contraction. (If the
// scale were the largest magnitude, as in q4, values below half of it would never be sent. That
// would be hardly a contraction, and an exchange over a ring would diverge.)
#pragma once

#include "kernels/codecs/scaled_blocks.hpp"
#include "kernels/codecs/three_levels.hpp"

namespace dp::two_bit {

class Format : public ScaledBlocks<2> {
 public:
  using ScaledBlocks::ScaledBlocks;

  double contraction() const { return three_levels::contraction(block()); }

  void encode_block(const float* partial, float* residual, std::size_t begin, std::size_t m,
                    std::size_t n, std::uint32_t absmax_bits, std::byte* payload) const {
    const float scale =
        absmax_bits < kTiny
            ? 0.0f
            : three_levels::best_scale(partial, residual, m, std::bit_cast<float>(absmax_bits));
    write_scale(payload, begin, scale);
    // If the scale is 0, no value may be sent, so the threshold must be positive.
    const float above = scale > 0.0f ? 0.5f * scale : std::bit_cast<float>(kTiny);
    code_layout::encode<2, 0>(
        codes_of(payload, begin, n), partial, residual, m,
        [=](float v, std::size_t) -> code_layout::Coded {
          const std::uint32_t sign = std::bit_cast<std::uint32_t>(v) >> 31;
          const bool is_sent = std::fabs(v) > above;
          return {is_sent ? 1u + 2u * sign : 0u, is_sent ? std::copysign(scale, v) : 0.0f};
        });
  }

  // Returns false if no encoder writes such a scale, code or padding.
  template <bool kAdd>
  [[nodiscard]] bool decode_block(const std::byte* payload, std::size_t begin, std::size_t m,
                                  std::size_t n, float* out) const {
    const std::uint32_t head = read_head(payload, begin);
    if (head > largest_scale(1)) return false;
    const auto scale = std::bit_cast<float>(head);
    const std::byte* codes = codes_of(payload, begin, n);
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(codes);
    std::uint32_t unknown = 0;  // the upper bit of a code without the lower one
#pragma omp simd reduction(| : unknown)
    for (std::size_t i = 0; i < code_layout::bytes(m, 2); ++i) {
      unknown |= static_cast<std::uint32_t>(bytes[i] & 0xAAu) & ~(std::uint32_t{bytes[i]} << 1);
    }
    if (unknown != 0 || !code_layout::is_padded<2, kPadding>(codes, m)) return false;
    code_layout::decode<2, kAdd>(codes, m, out, [=](std::uint32_t code) {
      // Two's complement of two bits.
      return static_cast<float>(static_cast<std::int32_t>(code << 30) >> 30) * scale;
    });
    return true;
  }
};

}  // namespace dp::two_bit
