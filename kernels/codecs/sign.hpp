// sign: one bit per value and one scale per block.
//
// Wire format: as in scaled_blocks.hpp, with codes of 1 bit, which is 1 for negative values
// (including -0). The scale is s, the mean magnitude of the block; a value decodes to s or -s. Byte
// i of a block of m floats holds the floats i, i + w, ..., i + 7w with w = ceil(m / 8), the first
// in its lowest bit. Bits beyond the last float are 0.
//
// The mean magnitude is the scale with the smallest squared error, sum v^2 - (sum |v|)^2 / n (1-bit
// SGD, Seide et al. 2014; signSGD with error feedback, Karimireddy et al. 2019).
//
// Contraction: (sum |v|)^2 >= sum v^2, with equality if only one value is not zero. Therefore c =
// sqrt(1 - 1 / block), which is hardly below 1. For normally distributed values c is 0.60.
//
// For the mean, each magnitude is divided by the largest one, and the quotients are added in a
// fixed order (lane_sum.hpp).
#pragma once

#include <cmath>

#include "kernels/codecs/lane_sum.hpp"
#include "kernels/codecs/scaled_blocks.hpp"

namespace dp::sign {

class Format : public ScaledBlocks<1> {
 public:
  using ScaledBlocks::ScaledBlocks;

  double contraction() const {
    // Rounding gives the scale a relative error e, which reduces the fraction 1 / block by e^2.
    return std::sqrt(1.0 - (1.0 - 0x1p-36) / static_cast<double>(block()));
  }

  void encode_block(const float* partial, float* residual, std::size_t begin, std::size_t m,
                    std::size_t n, std::uint32_t absmax_bits, std::byte* payload) const {
    const float scale = absmax_bits < kTiny ? 0.0f
                                            : mean_magnitude(partial, residual, m,
                                                             std::bit_cast<float>(absmax_bits));
    write_scale(payload, begin, scale);
    code_layout::encode<1, 0>(
        codes_of(payload, begin, n), partial, residual, m,
        [=](float v, std::size_t) -> code_layout::Coded {
          return {std::bit_cast<std::uint32_t>(v) >> 31, std::copysign(scale, v)};
        });
  }

  // Returns false if no encoder writes such a scale or padding.
  template <bool kAdd>
  [[nodiscard]] bool decode_block(const std::byte* payload, std::size_t begin, std::size_t m,
                                  std::size_t n, float* out) const {
    const std::uint32_t head = read_head(payload, begin);
    const std::byte* codes = codes_of(payload, begin, n);
    if (head > largest_scale(1) || !code_layout::is_padded<1, kPadding>(codes, m)) return false;
    code_layout::decode<1, kAdd>(
        codes, m, out, [=](std::uint32_t code) { return std::bit_cast<float>(head | code << 31); });
    return true;
  }

 private:
  static float mean_magnitude(const float* partial, const float* residual, std::size_t m,
                              float absmax) {
    const float inverse = 1.0f / absmax;
    const float sum =
        residual != nullptr
            ? lane_sum<float>(
                  m, [=](std::size_t i) { return std::fabs(partial[i] + residual[i]) * inverse; })
            : lane_sum<float>(m, [=](std::size_t i) { return std::fabs(partial[i]) * inverse; });
    return sum / static_cast<float>(m) * absmax;
  }
};

}  // namespace dp::sign
