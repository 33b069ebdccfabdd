// q16, q8, q4: symmetric linear bins, one scale per block.
//
// Wire format: as in scaled_blocks.hpp, with codes of 16, 8 or 4 bits; value = code * scale.
//   q16: int16, -32767..32767. q8: int8, -127..127.
//   q4: a nibble, code + 8, codes -7..7. Byte i of a block of m floats holds float i in its low
//   nibble and float i + (m+1)/2 in its high one (8, which is zero, if there is no such float).
// With L = 32767, 127 or 7: scale = absmax / L, x = v * (L / absmax), and the code is x rounded:
//   round=nearest      to the nearest whole number, ties to even;
//   round=stochastic   up with the probability of its fractional part, else down, by comparison
//                      with a uniform draw (draws.hpp); then clamped to -L..L.
// The largest value of a block is reproduced up to rounding, zero exactly.
//
// Error, nearest: |v - decoded| <= scale / 2 + 2^-22 |v|. Stochastic: below scale + 2^-22 |v|, and
// the mean over draws is v up to 2^-22 |v| + 2^-23 scale (QSGD, Alistarh et al. 2017, with the
// maximum norm). Errors therefore average out over ranks and training steps, without feedback.
//
// Contraction, nearest: the error is at most |v| if v rounds to zero, at most scale / 2 otherwise,
// and zero for the largest value. The worst block has one value L * scale, and all other values are
// scale / 2, so c^2 = K / (1 + K) with K = (block - 1) / (4 L^2). With blocks of 2048, c is 0.955
// for q4, 0.175 for q8 and 0.0007 for q16. Stochastic rounding is no contraction, because a small
// value may be rounded to a whole scale.
#pragma once

#include <cmath>

#include "kernels/codecs/draws.hpp"
#include "kernels/codecs/scaled_blocks.hpp"

namespace dp::linear {

DP_HD constexpr int levels(int bits) { return (1 << (bits - 1)) - 1; }

// The two factors of a block: v * inverse is the code before rounding, code * scale is the decoded
// value.
struct Scale {
  float scale;
  float inverse;
};

template <int kBits>
class Format : public ScaledBlocks<kBits, kBits == 4 ? 8 : 0> {
  static_assert(kBits == 16 || kBits == 8 || kBits == 4);
  using Base = ScaledBlocks<kBits, kBits == 4 ? 8 : 0>;

 public:
  static constexpr bool kDraws = true;
  using Base::kPadding;

  explicit Format(const CodecSpec& spec)
      : Base(spec), is_stochastic_(spec.has_choice("round", "stochastic")) {}

  double contraction() const {
    if (is_stochastic_) return 1.0;
    const double l = levels(kBits), k = static_cast<double>(this->block() - 1) / (4.0 * l * l);
    // The largest value has a rounding error of 2^-22 of itself. The factor with 2^-12 covers this
    // error for q16, because its c is small.
    return std::sqrt(k / (1.0 + k)) * (1.0 + 0x1p-12) + 0x1p-21;
  }

  // The functions that the loops of every device call. A Block holds the values needed to encode or
  // decode one block. block_of() makes a Block from the block's largest magnitude. read_head()
  // makes a Block from the 4 bytes that a payload has for each block, and returns false for bytes
  // that no encoder writes.
  using Block = Scale;
  DP_HD static Block block_of(std::uint32_t absmax_bits) {
    if (absmax_bits < Base::kTiny) return {0.0f, 0.0f};
    const float absmax = std::bit_cast<float>(absmax_bits);
    constexpr auto kLevels = static_cast<float>(levels(kBits));
    return {absmax / kLevels, kLevels / absmax};
  }
  DP_HD static std::uint32_t head_of(const Block& block) {
    return std::bit_cast<std::uint32_t>(block.scale);
  }
  DP_HD static bool read_head(std::uint32_t head, Block& block) {
    block.scale = std::bit_cast<float>(head);
    return head <= Base::largest_scale(levels(kBits));
  }
  DP_HD static code_layout::Coded nearest(float v, const Block& block) {
    return coded(std::nearbyintf(v * block.inverse), block);
  }
  DP_HD static code_layout::Coded stochastic(float v, const Block& block, float draw) {
    constexpr auto kLevels = static_cast<float>(levels(kBits));
    const float x = v * block.inverse, below = std::floor(x);
    const float q = below + (draw < x - below ? 1.0f : 0.0f);
    // Rounding may push the largest value beyond L.
    return coded(q > kLevels ? kLevels : q < -kLevels ? -kLevels : q, block);
  }
  DP_HD code_layout::Coded code_of(float v, const Block& block, const Draws& draws,
                                   std::uint32_t index) const {
    return is_stochastic_ ? stochastic(v, block, draws.uniform(index)) : nearest(v, block);
  }
  DP_HD static float value_of(std::uint32_t bits, const Block& block) {
    int code = static_cast<int>(bits) - static_cast<int>(kPadding);
    if constexpr (kBits == 8) code = static_cast<std::int8_t>(bits);
    if constexpr (kBits == 16) code = static_cast<std::int16_t>(bits);
    return static_cast<float>(code) * block.scale;
  }
  // Accepts every code, even the one below -L (Codec::decode explains why).
  DP_HD static bool is_code(std::uint32_t) { return true; }

  // Encodes one block: floats [begin, begin + m) of a segment of n floats.
  void encode_block(const float* partial, float* residual, std::size_t begin, std::size_t m,
                    std::size_t n, std::uint32_t absmax_bits, std::byte* payload,
                    const Draws& draws) const {
    const Block block = block_of(absmax_bits);
    this->write_scale(payload, begin, block.scale);
    std::byte* codes = this->codes_of(payload, begin, n);
    if (is_stochastic_) {
      code_layout::encode<kBits, kPadding>(
          codes, partial, residual, m, [=](float v, std::size_t i) {
            return stochastic(v, block, draws.uniform(static_cast<std::uint32_t>(begin + i)));
          });
    } else {
      code_layout::encode<kBits, kPadding>(codes, partial, residual, m,
                                           [=](float v, std::size_t) { return nearest(v, block); });
    }
  }

  // Decodes the same block; `out` points to the block's first float. Returns false if no encoder
  // writes such a scale or padding.
  template <bool kAdd>
  [[nodiscard]] bool decode_block(const std::byte* payload, std::size_t begin, std::size_t m,
                                  std::size_t n, float* out) const {
    Block block{};
    if (!read_head(Base::read_head(payload, begin), block)) return false;
    const std::byte* codes = this->codes_of(payload, begin, n);
    if (!code_layout::is_padded<kBits, kPadding>(codes, m)) return false;
    code_layout::decode<kBits, kAdd>(codes, m, out,
                                     [=](std::uint32_t code) { return value_of(code, block); });
    return true;
  }

 private:
  DP_HD static code_layout::Coded coded(float q, const Block& block) {
    const int code = static_cast<int>(q) + static_cast<int>(kPadding);
    return {static_cast<std::uint32_t>(code), q * block.scale};
  }

  bool is_stochastic_;
};

}  // namespace dp::linear
