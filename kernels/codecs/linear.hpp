// q16, q8, q4: symmetric linear bins, one scale per block, round to nearest.
//
// Wire format of a segment of n floats in blocks of `block` (the last one may be shorter):
//     float32 scale[blocks]      little-endian; finite, >= 0
//     codes                      16, 8 or 4 bits a value, block after block; value = code * scale
//   q16: int16, -32767..32767. q8: int8, -127..127.
//   q4: a nibble, code + 8, codes -7..7. Byte i of a block of m floats holds float i in its low
//   nibble and float i + (m+1)/2 in its high one (8, that is zero, where there is none): see
//   code_layout.hpp.
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
#include "kernels/codecs/code_layout.hpp"
#include "kernels/codecs/codec_spec.hpp"

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
  static constexpr bool kDraws = false;
  static constexpr std::uint32_t kNonFiniteFrom = kNonFiniteBits;
  static constexpr unsigned kCodeBits = kBits;
  static constexpr std::uint32_t kPadding = kBits == 4 ? 8 : 0;

  explicit Format(const CodecSpec& spec) : block_(spec.block) {}

  DP_HD std::size_t payload_bytes(std::size_t n) const {
    return code_start(n) + code_layout::bytes(n, kBits);
  }
  double contraction() const {
    const double l = levels(kBits), k = static_cast<double>(block_ - 1) / (4.0 * l * l);
    // 2^-12 covers the rounding of the largest value (2^-22 of it) in the small c of q16.
    return std::sqrt(k / (1.0 + k)) * (1.0 + 0x1p-12) + 0x1p-21;
  }

  // The pieces that every device's loops are made of. A block, as its codes need it; from the
  // largest magnitude in it, or from its head, the first 4 bytes of it in the payload (false where
  // no encoder writes such a head).
  using Block = Scale;
  DP_HD static Block block_of(std::uint32_t absmax_bits) { return block_scale(absmax_bits, kBits); }
  DP_HD static std::uint32_t head_of(const Block& block) {
    return std::bit_cast<std::uint32_t>(block.scale);
  }
  DP_HD static bool read_head(std::uint32_t head, Block& block) {
    block.scale = std::bit_cast<float>(head);
    // Negative scales and NaN have larger bit patterns than any scale an encoder writes.
    return head < kNonFiniteBits;
  }
  DP_HD static code_layout::Coded code_of(float v, const Block& block) {
    const float q = quantise(v, block.inverse);
    const int code = static_cast<int>(q) + static_cast<int>(kPadding);
    return {static_cast<std::uint32_t>(code), q * block.scale};
  }
  DP_HD static float value_of(std::uint32_t bits, const Block& block) {
    int code = static_cast<int>(bits) - static_cast<int>(kPadding);
    if constexpr (kBits == 8) code = static_cast<std::int8_t>(bits);
    if constexpr (kBits == 16) code = static_cast<std::int16_t>(bits);
    return static_cast<float>(code) * block.scale;
  }
  DP_HD static bool is_code(std::uint32_t) { return true; }
  DP_HD std::size_t code_start(std::size_t n) const {
    return (n + block_ - 1) / block_ * sizeof(float);
  }

  // Encodes floats [begin, begin + m) of a segment of n, one block; m <= block.
  void encode_block(const float* partial, float* residual, std::size_t begin, std::size_t m,
                    std::size_t n, std::uint32_t absmax_bits, std::byte* payload) const {
    const Block block = block_of(absmax_bits);
    std::memcpy(payload + begin / block_ * sizeof(float), &block.scale, sizeof(float));
    std::byte* codes = payload + code_start(n) + code_layout::bytes(begin, kBits);
    if (residual != nullptr) {
      code_layout::pack<kBits, kPadding>(codes, m, [=](std::size_t i) {
        const float v = partial[i] + residual[i];
        const code_layout::Coded coded = code_of(v, block);
        residual[i] = v - coded.value;
        return coded.bits;
      });
    } else {
      code_layout::pack<kBits, kPadding>(
          codes, m, [=](std::size_t i) { return code_of(partial[i], block).bits; });
    }
  }

  // Decodes the same block into `out` (its first float); false where the scale cannot be.
  template <bool kAdd>
  [[nodiscard]] bool decode_block(const std::byte* payload, std::size_t begin, std::size_t m,
                                  std::size_t n, float* out) const {
    std::uint32_t head = 0;
    std::memcpy(&head, payload + begin / block_ * sizeof head, sizeof head);
    Block block{};
    if (!read_head(head, block)) return false;
    const std::byte* codes = payload + code_start(n) + code_layout::bytes(begin, kBits);
    code_layout::unpack<kBits>(codes, m, [=](std::size_t i, std::uint32_t code) {
      const float v = value_of(code, block);
      if constexpr (kAdd) {
        out[i] += v;
      } else {
        out[i] = v;
      }
    });
    return true;
  }

 private:
  std::size_t block_;
};

}  // namespace dp::linear
