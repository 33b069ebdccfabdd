// Sparse codecs send some values of a segment unchanged, with their places. The other values stay
// in the residual until they are large enough (Aji and Heafield 2017; Stich et al. 2018).
//
// threshold.hpp and topk.hpp are built on this file; they only choose the values.
//
// Wire format of a segment of n floats, of which c are sent:
//     u32 count                  c, little-endian; zeros are never sent, so c may be 0
//     value[c]                   binary32, or its upper half (value=bf16, rounded to nearest, ties
//                                to even), little-endian; never zero, an infinity or NaN
//     gaps                       a string of bits, which fill each byte from its lowest bit; zero
//                                bits pad the last byte
// Places ascend. Gap j is the number of values between sent value j - 1 (or the segment's start)
// and sent value j. It is written as a Rice code: floor(gap / 2^b) zero bits, a one, then the b low
// bits of the gap, lowest first.
//
// Both sides compute b from n and c. All gaps together take at most c (b + 1) + floor((n - c) /
// 2^b) bits, because the gaps add up to at most n - c. b is the smallest number that minimises this
// bound.
//
// If 1 % of the values are sent, at random places, a gap takes 8.1 bits on average; the entropy is
// 8.08 bits. (With other distributions a gap takes 7 to 8.6 bits. A byte-wise varint would take
// 10.2 bits, and a fixed width per segment about 10 bits.) If all values are sent, b is 0 and the
// gaps form a bit map.
//
// A decoder refuses everything that no encoder writes: too large a count, places beyond the
// segment's end, values that are never sent, bits after the last gap.
//
// Only value=bf16 rounds. With value=fp32 a value that is sent leaves exactly zero in the residual,
// and decoded + residual = v, bit for bit. For input that is not finite, c = 0.
//
// Encoding needs no memory except the payload: places are collected where the values will be
// stored.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/codecs/codec.hpp"
#include "kernels/codecs/sparse_select.hpp"

namespace dp {

namespace sparse {

// The parameter b of the Rice codes; 1 <= count <= n.
[[nodiscard]] unsigned rice_parameter(std::size_t n, std::size_t count);
// The expected number of bits of `count` gaps in n floats, with places at random. 0 if count is 0.
[[nodiscard]] double expected_gap_bits(std::size_t n, std::size_t count);
// The most bits that `count` gaps in n floats can take.
[[nodiscard]] std::size_t most_gap_bits(std::size_t n, std::size_t count);
// The number of values in a fraction `ratio` of n floats: ceil(ratio n), and at least 1 unless n is
// 0. If ratio n exceeds a whole number by at most a millionth, that whole number is returned,
// because the excess may be a rounding error.
[[nodiscard]] std::size_t share_of(std::size_t n, double ratio);

}  // namespace sparse

class SparseCodec : public Codec {
 public:
  // The spec's key `value`, if it has one, is "fp32" or "bf16".
  explicit SparseCodec(const CodecSpec& spec);

  [[nodiscard]] bool is_lossless() const final { return false; }
  // Includes scratch space for encoding. A payload is at least 8 bytes shorter. With value=bf16 it
  // is shorter by another 2 bytes per value.
  [[nodiscard]] std::size_t max_payload_bytes(std::size_t n) const final;
  [[nodiscard]] std::optional<std::size_t> fixed_payload_bytes(std::size_t) const final {
    return std::nullopt;
  }
  // Assumes expected_sent(n) values at random places.
  [[nodiscard]] std::size_t expected_payload_bytes(std::size_t n) const final;
  EncodeResult encode(std::span<const float> partial, float* residual, std::span<std::byte> payload,
                      const EncodeContext& context) const final;
  void decode(std::span<const std::byte> payload, std::span<float> out) const final;
  void decode_add(std::span<const std::byte> payload, std::span<float> out) const final;

 protected:
  // The largest number of values that the payload of n floats can contain.
  [[nodiscard]] virtual std::size_t most_sent(std::size_t n) const = 0;
  // The number of values that the payload of n floats usually contains.
  [[nodiscard]] virtual std::size_t expected_sent(std::size_t n) const { return most_sent(n); }
  // Chooses the values to send, at most most_sent(n); v is finite, n > 0. The caller raises a lower
  // cut to least_sent().
  [[nodiscard]] virtual sparse::Cut cut(const float* v, std::size_t n) const = 0;
  // The magnitude bits of the smallest value that is ever sent: at least smallest_sendable().
  [[nodiscard]] virtual std::uint32_t least_sent() const { return smallest_sendable(); }

  // The magnitude bits of the smallest value that is not zero on the wire.
  [[nodiscard]] std::uint32_t smallest_sendable() const { return is_bf16_ ? 0x8001u : 1u; }
  [[nodiscard]] bool is_bf16() const { return is_bf16_; }

 private:
  template <bool kAdd>
  void decode_values(std::span<const std::byte> payload, std::span<float> out) const;

  bool is_bf16_;
};

}  // namespace dp
