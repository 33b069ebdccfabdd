// ternary: a value becomes -s, 0 or s; five values share a byte.
//
// Wire format of a segment of n floats in blocks of `block` (the last one may be shorter):
//     float32 scale[blocks]      s; little-endian, as in scaled_blocks.hpp
//     digits                     block after block, ceil(m / 5) bytes for a block of m floats
// Byte i of a block is the sum of 3^k times the digit of float i + k w, k = 0..4, with w = ceil(m /
// 5). A digit is 0 for -s, 1 for zero, 2 for s, and 1 beyond the last float. A byte is therefore at
// most 242, and a value takes 1.6 bits.
//   round=nearest      the s with the smallest squared error; a value goes to the nearest level.
//                      q2 decodes to the same values, but its codes take a quarter more bytes.
//                      three_levels.hpp derives the error and the contraction.
//   round=stochastic   s is the largest magnitude, and a value is sent as +-s with probability
//                      |v| / s, else as zero (TernGrad, Wen et al. 2017, with a scale per block
//                      and without its clipping, which is biased). The mean over draws differs
//                      from v by at most 2^-23 s. This is not a contraction: the expected squared
//                      error is sum |v| (s - |v|).
#pragma once

#include "kernels/codecs/draws.hpp"
#include "kernels/codecs/scaled_blocks.hpp"
#include "kernels/codecs/three_levels.hpp"

namespace dp::ternary {

class Format : public BlockScales {
 public:
  static constexpr bool kDraws = true;
  static constexpr std::size_t kDigits = 5;  // of a byte

  explicit Format(const CodecSpec& spec)
      : BlockScales(spec), is_stochastic_(spec.has_choice("round", "stochastic")) {}

  std::size_t payload_bytes(std::size_t n) const {
    return code_start(n) + n / block() * digit_bytes(block()) + digit_bytes(n % block());
  }
  double contraction() const { return is_stochastic_ ? 1.0 : three_levels::contraction(block()); }

  void encode_block(const float* partial, float* residual, std::size_t begin, std::size_t m,
                    std::size_t n, std::uint32_t absmax_bits, std::byte* payload,
                    const Draws& draws) const {
    const float absmax = std::bit_cast<float>(absmax_bits);
    float scale = 0.0f, inverse = 0.0f;
    if (absmax_bits >= kTiny) {
      scale = is_stochastic_ ? absmax : three_levels::best_scale(partial, residual, m, absmax);
      inverse = 1.0f / absmax;
    }
    write_scale(payload, begin, scale);
    if (is_stochastic_) {
      encode_digits(
          partial, residual, m, scale, digits_of(payload, begin, n), [=](float v, std::size_t i) {
            return draws.uniform(static_cast<std::uint32_t>(begin + i)) < std::fabs(v) * inverse;
          });
    } else {
      const float above = scale > 0.0f ? 0.5f * scale : std::bit_cast<float>(kTiny);
      encode_digits(partial, residual, m, scale, digits_of(payload, begin, n),
                    [=](float v, std::size_t) { return std::fabs(v) > above; });
    }
  }

  // Returns false if no encoder writes such a scale, byte or padding.
  template <bool kAdd>
  [[nodiscard]] bool decode_block(const std::byte* payload, std::size_t begin, std::size_t m,
                                  std::size_t n, float* out) const {
    const std::uint32_t head = read_head(payload, begin);
    if (head > largest_scale(1)) return false;
    const auto scale = std::bit_cast<float>(head);
    const auto* in = reinterpret_cast<const std::uint8_t*>(digits_of(payload, begin, n));
    const std::size_t width = digit_bytes(m), full = full_bytes(m, width);
    std::int32_t largest = 0;
#pragma omp simd reduction(max : largest)
    for (std::size_t i = 0; i < width; ++i) {
      largest = largest > std::int32_t{in[i]} ? largest : std::int32_t{in[i]};
    }
    if (largest > 242) return false;
    const auto take = [=](std::size_t i, std::uint32_t digit) {
      const float v = static_cast<float>(static_cast<std::int32_t>(digit) - 1) * scale;
      if constexpr (kAdd) {
        out[i] += v;
      } else {
        out[i] = v;
      }
    };
#pragma omp simd
    for (std::size_t i = 0; i < full; ++i) {
      std::uint32_t rest = in[i];
      for (std::size_t k = 0; k < kDigits; ++k) {
        const std::uint32_t third = rest * 171 >> 9;  // rest / 3, for rest < 256
        take(i + k * width, rest - 3 * third);
        rest = third;
      }
    }
    bool is_padded = true;
    for (std::size_t i = full; i < width; ++i) {
      std::uint32_t rest = in[i];
      for (std::size_t k = 0; k < kDigits; ++k, rest /= 3) {
        if (i + k * width < m) {
          take(i + k * width, rest % 3);
        } else {
          is_padded = is_padded && rest % 3 == 1;
        }
      }
    }
    return is_padded;
  }

 private:
  static std::size_t digit_bytes(std::size_t m) { return (m + kDigits - 1) / kDigits; }
  // The number of bytes without padding. They come first in the block.
  static std::size_t full_bytes(std::size_t m, std::size_t width) {
    const std::size_t last = (kDigits - 1) * width;
    return m > last ? m - last : 0;
  }
  template <class Bytes>
  [[nodiscard]] Bytes* digits_of(Bytes* payload, std::size_t begin, std::size_t n) const {
    return payload + code_start(n) + begin / block() * digit_bytes(block());
  }

  // is_sent(v, i): whether v becomes +-scale.
  template <class IsSent>
  static void encode_digits(const float* partial, float* residual, std::size_t m, float scale,
                            std::byte* digits, IsSent is_sent) {
    const auto code_of = [=](float v, std::size_t i) {
      return is_sent(v, i) ? std::copysign(1.0f, v) : 0.0f;
    };
    const auto digit = [](float code) {
      return static_cast<std::uint32_t>(static_cast<std::int32_t>(code) + 1);
    };
    if (residual != nullptr) {
      pack(digits, m, [=](std::size_t i) {
        const float v = partial[i] + residual[i], code = code_of(v, i);
        residual[i] = v - code * scale;
        return digit(code);
      });
    } else {
      pack(digits, m, [=](std::size_t i) { return digit(code_of(partial[i], i)); });
    }
  }

  // Calls digit_of(i) once for every i < m.
  template <class DigitOf>
  static void pack(std::byte* digits, std::size_t m, DigitOf digit_of) {
    auto* out = reinterpret_cast<std::uint8_t*>(digits);
    const std::size_t width = digit_bytes(m), full = full_bytes(m, width);
#pragma omp simd
    for (std::size_t i = 0; i < full; ++i) {
      std::uint32_t byte = 0, power = 1;
      for (std::size_t k = 0; k < kDigits; ++k, power *= 3) {
        byte += power * digit_of(i + k * width);
      }
      out[i] = static_cast<std::uint8_t>(byte);
    }
    for (std::size_t i = full; i < width; ++i) {
      std::uint32_t byte = 0, power = 1;
      for (std::size_t k = 0; k < kDigits; ++k, power *= 3) {
        byte += power * (i + k * width < m ? digit_of(i + k * width) : 1u);
      }
      out[i] = static_cast<std::uint8_t>(byte);
    }
  }

  bool is_stochastic_;
};

}  // namespace dp::ternary
