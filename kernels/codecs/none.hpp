// none: fp32 as it is.
//
// Wire format of a segment of n floats:
//     float32 value[n]           little-endian
// Lossless, so there is no residual. As in every codec, input with NaN or an infinity is sent as
// zeros and reported.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/base/hd.hpp"
#include "kernels/codecs/code_layout.hpp"
#include "kernels/codecs/codec_spec.hpp"

namespace dp::none {

class Format {
 public:
  static constexpr bool kIsLossless = true;
  static constexpr bool kNeedsBlockMaximum = false;
  static constexpr bool kDraws = false;
  static constexpr std::uint32_t kNonFiniteFrom = 0x7F800000u;
  static constexpr unsigned kCodeBits = 32;
  static constexpr std::uint32_t kPadding = 0;

  explicit Format(const CodecSpec&) {}
  DP_HD std::size_t payload_bytes(std::size_t n) const { return n * sizeof(float); }
  double contraction() const { return 0.0; }

  // The functions that the loops of every device call (explained in linear.hpp). Values are not
  // grouped in blocks, so Block is empty.
  struct Block {};
  DP_HD static Block block_of(std::uint32_t) { return {}; }
  DP_HD static std::size_t code_start(std::size_t) { return 0; }
  DP_HD static code_layout::Coded code_of(float v, const Block&) {
    return {std::bit_cast<std::uint32_t>(v), v};
  }
  DP_HD static float value_of(std::uint32_t code, const Block&) {
    return std::bit_cast<float>(code);
  }
  DP_HD static bool is_code(std::uint32_t code) { return (code & 0x7FFFFFFFu) < kNonFiniteFrom; }

  void encode_block(const float* partial, float*, std::size_t begin, std::size_t m, std::size_t,
                    std::uint32_t, std::byte* payload) const {
    std::memcpy(payload + begin * sizeof(float), partial, m * sizeof(float));
  }

  // Returns false if a value is not finite.
  template <bool kAdd>
  [[nodiscard]] bool decode_block(const std::byte* payload, std::size_t begin, std::size_t m,
                                  std::size_t, float* out) const {
    const std::byte* in = payload + begin * sizeof(float);
    // Signed, because every vector unit has a max instruction for signed integers.
    std::int32_t largest = 0;
#pragma omp simd reduction(max : largest)
    for (std::size_t i = 0; i < m; ++i) {
      std::int32_t bits = 0;
      std::memcpy(&bits, in + sizeof bits * i, sizeof bits);
      const std::int32_t magnitude = bits & 0x7FFFFFFF;
      largest = magnitude > largest ? magnitude : largest;
      if constexpr (kAdd) {
        out[i] += std::bit_cast<float>(bits);
      } else {
        out[i] = std::bit_cast<float>(bits);
      }
    }
    return static_cast<std::uint32_t>(largest) < kNonFiniteFrom;
  }
};

}  // namespace dp::none
