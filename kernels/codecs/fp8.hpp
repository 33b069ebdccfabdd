// fp8: an 8-bit float (E4M3 of Micikevicius et al. 2022, "FP8 formats for deep learning"), one
// scale per block.
//
// Wire format: as in scaled_blocks.hpp, with codes of 8 bits: 1 sign, 4 exponent (bias 7) and 3
// mantissa bits, with denormals. 0x7F and 0xFF, E4M3's NaN, are never sent.
//     value = E4M3 * scale,   scale = absmax / 448   (448 is the largest E4M3)
// Rounds to nearest, ties to even. Zero is exact, and the largest value of a block is reproduced up
// to rounding.
//
// In contrast to q8 and q8n, all values between the largest magnitude of a block and 2^-15 of that
// magnitude have about the same relative error (2.6 % rms), so a block's small values stay useful.
// The squared error of the whole block is dominated by its large values; it is smaller with q8 and
// smallest with q8n.
//
// Error: at most |v| / 17 if |v| >= 2^-6 scale, else at most 2^-10 scale; in both cases plus 2^-22
// |v|. (From 2^e on, codes are 2^(e-3) apart. The value with the largest relative error is the
// middle of the first gap, 17/16 2^e.)
//
// Contraction: the largest value of a block is 448 times the scale and loses nothing. In the worst
// block all other values are in the middle of the first gap of the same binade: 272, between 256
// and 288. With K = block - 1, c^2 = K 16^2 / (K 272^2 + 448^2): c is 0.0588 at 2048, and 1/17 in
// the limit. (Values of 2^-10 scale become zero and are lost entirely, but they are too small to
// matter.)
#pragma once

#include <cmath>

#include "kernels/codecs/scaled_blocks.hpp"

namespace dp::fp8 {

inline constexpr float kLargest = 448.0f;

// The code of a magnitude up to 448 (1 + 2^-22), without sign.
DP_HD inline std::uint32_t from_magnitude(float y) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(y);
  // Below 2^-6, adding 2^14 rounds the value: floats just above 2^14 are 2^-9 apart, and so are
  // E4M3's denormals.
  const std::uint32_t small = std::bit_cast<std::uint32_t>(y + 0x1p14f) - 0x46800000u;
  // From 2^-6 on, change the exponent's bias and round off 20 bits, ties to even.
  const std::uint32_t odd = (bits >> 20) & 1u;
  const std::uint32_t normal = (bits - 0x3C000000u + 0x7FFFFu + odd) >> 20;
  return bits < 0x3C800000u ? small : normal;
}

// Converts E4M3 to float, exactly.
DP_HD inline float to_float(std::uint32_t code) {
  // Read as a float, the bit pattern is too small by a factor of 2^120, and is multiplied by it.
  // The product is exact, also for denormals.
  const float v = std::bit_cast<float>((code & 0x7Fu) << 20) * 0x1p120f;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(v) | (code & 0x80u) << 24);
}

struct Scale {
  float scale;
  float inverse;
};

class Format : public ScaledBlocks<8> {
 public:
  using ScaledBlocks<8>::ScaledBlocks;

  double contraction() const {
    const auto others = static_cast<double>(block() - 1);
    // 2^-21 covers the rounding of the scale and of the products.
    return 16.0 * std::sqrt(others / (others * 272.0 * 272.0 + 448.0 * 448.0)) + 0x1p-21;
  }

  // The functions that the loops of every device call (explained in linear.hpp).
  using Block = Scale;
  DP_HD static Block block_of(std::uint32_t absmax_bits) {
    if (absmax_bits < kTiny) return {0.0f, 0.0f};
    const float absmax = std::bit_cast<float>(absmax_bits);
    return {absmax / kLargest, kLargest / absmax};
  }
  DP_HD static std::uint32_t head_of(const Block& block) {
    return std::bit_cast<std::uint32_t>(block.scale);
  }
  DP_HD static bool read_head(std::uint32_t head, Block& block) {
    block.scale = std::bit_cast<float>(head);
    return head <= largest_scale(448);
  }
  DP_HD static code_layout::Coded code_of(float v, const Block& block) {
    const float y = v * block.inverse;
    const std::uint32_t sign = std::bit_cast<std::uint32_t>(y) >> 24 & 0x80u;
    const std::uint32_t code = from_magnitude(std::fabs(y)) | sign;
    return {code, to_float(code) * block.scale};
  }
  DP_HD static float value_of(std::uint32_t code, const Block& block) {
    return to_float(code) * block.scale;
  }
  DP_HD static bool is_code(std::uint32_t code) { return (code & 0x7Fu) != 0x7Fu; }

  void encode_block(const float* partial, float* residual, std::size_t begin, std::size_t m,
                    std::size_t n, std::uint32_t absmax_bits, std::byte* payload) const {
    const Block block = block_of(absmax_bits);
    write_scale(payload, begin, block.scale);
    code_layout::encode<8, kPadding>(codes_of(payload, begin, n), partial, residual, m,
                                     [=](float v, std::size_t) { return code_of(v, block); });
  }

  // Returns false if no encoder writes such a scale or code.
  template <bool kAdd>
  [[nodiscard]] bool decode_block(const std::byte* payload, std::size_t begin, std::size_t m,
                                  std::size_t n, float* out) const {
    Block block{};
    if (!read_head(BlockScales::read_head(payload, begin), block)) return false;
    const std::byte* codes = codes_of(payload, begin, n);
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(codes);
    std::uint8_t largest = 0;
#pragma omp simd reduction(max : largest)
    for (std::size_t i = 0; i < m; ++i) {
      const auto magnitude = static_cast<std::uint8_t>(bytes[i] & 0x7Fu);
      largest = magnitude > largest ? magnitude : largest;
    }
    if (!is_code(largest)) return false;
    code_layout::decode<8, kAdd>(codes, m, out,
                                 [=](std::uint32_t code) { return value_of(code, block); });
    return true;
  }
};

}  // namespace dp::fp8
