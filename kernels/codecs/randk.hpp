// randk: k values of a segment at places drawn at random (Stich et al. 2018, rand_k).
//
// Wire format of a segment of n floats:
//     u64     key                what the places are derived from, little-endian
//     float32 value[k]           k = ceil(ratio n), at least 1; in the places' order
// So the places are not sent: the key follows from (seed, step, bucket, the segment's place in the
// gradient) and all ranks draw the same ones, hence their sums line up. One place is drawn in each
// of k runs of nearly equal length, floor(j n / k) to floor((j + 1) n / k), and all are shifted by
// one more draw, round the segment's end; so every place is drawn with probability k/n and none
// twice.
//
// scale=off sends the values as they are: biased, with feedback; a value sent leaves exactly zero.
// scale=on multiplies them by n/k in the encoder: E[decoded] = v up to a rounding, so it runs
// without feedback. Its places are drawn anew by each rank: were they the same, a value already
// scaled would be scaled again by each rank of a ring that passes it on. The variance is (n/k - 1)
// of a value's square for each encoding on its way, and multiplies: direct, with two of them,
// rather than ring. Values whose product overflows count as input that is not finite.
//
// Contraction: E[norm(v - decoded)^2] = (1 - k/n) norm(v)^2 for scale=off, over draws; for one draw
// c = 1. With scale=on the error may be n/k - 1 times the value.
#pragma once

#include "kernels/codecs/codec.hpp"

namespace dp {

class RandK final : public Codec {
 public:
  explicit RandK(const CodecSpec& spec);

  [[nodiscard]] bool is_lossless() const override { return false; }
  [[nodiscard]] std::size_t max_payload_bytes(std::size_t n) const override;
  [[nodiscard]] std::optional<std::size_t> fixed_payload_bytes(std::size_t n) const override {
    return max_payload_bytes(n);
  }
  [[nodiscard]] double contraction() const override;
  EncodeResult encode(std::span<const float> partial, float* residual, std::span<std::byte> payload,
                      const EncodeContext& context) const override;
  void decode(std::span<const std::byte> payload, std::span<float> out) const override;
  void decode_add(std::span<const std::byte> payload, std::span<float> out) const override;

 private:
  // Throws where the payload cannot be.
  template <bool kAdd>
  void decode_values(std::span<const std::byte> payload, std::span<float> out) const;

  double ratio_;
  bool is_scaled_;
};

}  // namespace dp
