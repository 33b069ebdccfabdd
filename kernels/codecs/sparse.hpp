// Sparse codecs: of a segment some values are sent, as they are, with their places. What is not
// sent stays in the residual until it is large enough (Aji and Heafield 2017; Stich et al. 2018).
//
// Here is what threshold.hpp and topk.hpp share: the wire format, and all but the choice of values.
// Wire format of a segment of n floats of which c are sent:
//     u32 count                  c, little-endian; zeros are never sent, so c may be 0
//     value[c]                   binary32, or its upper half (value=bf16, rounded to nearest, ties
//                                to even), little-endian; never zero, an infinity or NaN
//     gaps                       a string of bits, the first lowest in the first byte, filled up
//                                with zero bits to a byte
// Places ascend; gap j is the number of values not sent before the j-th that is. It is written as a
// Rice code: floor(gap / 2^b) zero bits, a one, the b low bits of the gap, lowest first. b follows
// from n and c alone: the least of those that minimise the bound c (b + 1) + floor((n - c) / 2^b)
// on the gaps' bits (the unary parts sum up to at most the last term, whatever the gaps are).
//
// Where every hundredth value is sent at random an index takes 8.1 bits, 8.08 being the entropy (7
// to 8.6 for any gaps; a byte-wise varint takes 10.2, a fixed width per segment about 10); where
// all are sent b is 0 and the gaps are a bit map. A decoder refuses everything that no encoder
// writes: a count above the codec's most, places behind the segment's end, values that are not
// sent, bits behind the last gap.
//
// Nothing is rounded but by value=bf16: a value that is sent leaves exactly zero in the residual,
// and decoded + residual = v, bit for bit. Input that is not finite is c = 0.
//
// Encoding needs no memory beside the payload: places are collected where the values will stand.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/codecs/codec.hpp"
#include "kernels/codecs/sparse_select.hpp"

namespace dp {

namespace sparse {

// b of the Rice codes; 1 <= count <= n.
[[nodiscard]] unsigned rice_parameter(std::size_t n, std::size_t count);
// No string of `count` gaps in n floats has more bits.
[[nodiscard]] std::size_t most_gap_bits(std::size_t n, std::size_t count);
// The number of values that `ratio` of n floats are: ceil(ratio n), at least 1 where there is one.
// What the product's own rounding adds (a millionth of a value) does not count.
[[nodiscard]] std::size_t share_of(std::size_t n, double ratio);

}  // namespace sparse

class SparseCodec : public Codec {
 public:
  // The spec's key `value` is one of "fp32|bf16" where it has one.
  explicit SparseCodec(const CodecSpec& spec);

  [[nodiscard]] bool is_lossless() const final { return false; }
  // With the room that encoding needs: what is sent may be shorter by 8 bytes and, with value=bf16,
  // by half of the values.
  [[nodiscard]] std::size_t max_payload_bytes(std::size_t n) const final;
  [[nodiscard]] std::optional<std::size_t> fixed_payload_bytes(std::size_t) const final {
    return std::nullopt;
  }
  EncodeResult encode(std::span<const float> partial, float* residual, std::span<std::byte> payload,
                      const EncodeContext& context) const final;
  void decode(std::span<const std::byte> payload, std::span<float> out) const final;
  void decode_add(std::span<const std::byte> payload, std::span<float> out) const final;

 protected:
  // No segment of n floats has more values sent.
  [[nodiscard]] virtual std::size_t most_sent(std::size_t n) const = 0;
  // Which values are sent, at most most_sent(n); v is finite, n > 0. `least` is raised to
  // least_sent() where it is below.
  [[nodiscard]] virtual sparse::Cut cut(const float* v, std::size_t n) const = 0;
  // The magnitude bits of the least value that is ever sent: at least smallest_sendable().
  [[nodiscard]] virtual std::uint32_t least_sent() const { return smallest_sendable(); }

  // Smaller magnitudes are zeros on the wire.
  [[nodiscard]] std::uint32_t smallest_sendable() const { return is_bf16_ ? 0x8001u : 1u; }
  [[nodiscard]] bool is_bf16() const { return is_bf16_; }

 private:
  template <bool kAdd>
  void decode_values(std::span<const std::byte> payload, std::span<float> out) const;

  bool is_bf16_;
};

}  // namespace dp
