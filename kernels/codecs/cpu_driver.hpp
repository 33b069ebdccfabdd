// The generic CPU driver: implements the interface of codec.hpp for a codec's Format (each has its
// own header, such as linear.hpp).
//
// A Format is made from a CodecSpec. It defines the length of a payload and how one block is
// encoded and decoded; if it draws random numbers (kDraws), its encode_block takes a Draws as well.
// The driver iterates over the blocks, finds their largest magnitudes, checks lengths, and handles
// input that is not finite.
//
// Encoding makes two passes over a segment (maxima, then codes), because the residual must not
// change before the whole segment is known to be finite. A segment of the default size stays in the
// second-level cache between the passes. A Format that needs the blocks' maxima begins its payload
// with 4 bytes per block; the driver keeps the maxima there between the passes. A Format that
// clamps has kLargestValue; the clamped values are counted in a separate pass.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/base/error.hpp"
#include "kernels/codecs/codec.hpp"
#include "kernels/codecs/draws.hpp"
#include "kernels/codecs/payload_errors.hpp"

namespace dp {

// The largest bit pattern of |partial + residual|, as an unsigned number; residual may be null.
[[nodiscard]] std::uint32_t largest_magnitude_bits(const float* partial, const float* residual,
                                                   std::size_t n);

// Counts the values of partial + residual whose magnitude is above `largest`, and notes the index
// of the first one. residual may be null.
void count_clamped(std::span<const float> partial, const float* residual, float largest,
                   EncodeResult& result);

// Zeros, encoded in place of input that is not finite.
extern const float kZeroBlock[kMaxBlock];

template <class Format>
class CpuCodec final : public Codec {
 public:
  explicit CpuCodec(const CodecSpec& codec_spec) : Codec(codec_spec), format_(codec_spec) {}

  [[nodiscard]] bool is_lossless() const override { return Format::kIsLossless; }
  [[nodiscard]] std::size_t max_payload_bytes(std::size_t n) const override {
    return format_.payload_bytes(n);
  }
  [[nodiscard]] std::optional<std::size_t> fixed_payload_bytes(std::size_t n) const override {
    return format_.payload_bytes(n);
  }
  [[nodiscard]] double contraction() const override { return format_.contraction(); }

  EncodeResult encode(std::span<const float> partial, float* residual, std::span<std::byte> payload,
                      const EncodeContext& context) const override {
    const std::size_t n = partial.size(), bytes = format_.payload_bytes(n);
    DP_ASSERT(payload.size() >= bytes, "the buffer has {} bytes, but the payload needs {}",
              payload.size(), bytes);
    if constexpr (Format::kIsLossless) residual = nullptr;
    std::uint32_t largest = 0;
    for (std::size_t begin = 0; begin < n; begin += tile()) {
      const std::size_t m = std::min(tile(), n - begin);
      const std::uint32_t bits = largest_magnitude_bits(
          partial.data() + begin, residual == nullptr ? nullptr : residual + begin, m);
      largest = std::max(largest, bits);
      if constexpr (Format::kNeedsBlockMaximum) {
        std::memcpy(payload.data() + begin / tile() * sizeof bits, &bits, sizeof bits);
      }
    }
    const bool finite = largest < Format::kNonFiniteFrom;
    EncodeResult result{.payload_bytes = bytes, .finite = finite};
    if constexpr (requires { Format::kLargestValue; }) {
      if (finite && largest > std::bit_cast<std::uint32_t>(Format::kLargestValue)) {
        count_clamped(partial, residual, Format::kLargestValue, result);
      }
    }
    [[maybe_unused]] const Draws draws(context);
    for (std::size_t begin = 0; begin < n; begin += tile()) {
      const std::size_t m = std::min(tile(), n - begin);
      std::uint32_t bits = 0;
      if constexpr (Format::kNeedsBlockMaximum) {
        if (finite) std::memcpy(&bits, payload.data() + begin / tile() * sizeof bits, sizeof bits);
      }
      const float* from = finite ? partial.data() + begin : kZeroBlock;
      float* rest = finite && residual != nullptr ? residual + begin : nullptr;
      if constexpr (Format::kDraws) {
        format_.encode_block(from, rest, begin, m, n, bits, payload.data(), draws);
      } else {
        format_.encode_block(from, rest, begin, m, n, bits, payload.data());
      }
    }
    return result;
  }

  void decode(std::span<const std::byte> payload, std::span<float> out) const override {
    decode_blocks<false>(payload, out);
  }
  void decode_add(std::span<const std::byte> payload, std::span<float> out) const override {
    decode_blocks<true>(payload, out);
  }

 private:
  // The number of floats encoded at a time: a block, or for formats without blocks as many as stay
  // in the first-level cache.
  [[nodiscard]] std::size_t tile() const { return block() > 1 ? block() : 2048; }

  template <bool kAdd>
  void decode_blocks(std::span<const std::byte> payload, std::span<float> out) const {
    const std::size_t n = out.size();
    if (payload.size() != format_.payload_bytes(n)) {
      throw_payload_length(spec(), payload.size(), format_.payload_bytes(n), n);
    }
    for (std::size_t begin = 0; begin < n; begin += tile()) {
      const std::size_t m = std::min(tile(), n - begin);
      if (!format_.template decode_block<kAdd>(payload.data(), begin, m, n, out.data() + begin)) {
        throw_payload_content(spec());
      }
    }
  }

  Format format_;
};

}  // namespace dp
