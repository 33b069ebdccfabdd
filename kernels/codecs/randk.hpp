// randk: sends k values of a segment, at random places (Stich et al. 2018, rand_k).
//
// Wire format of a segment of n floats:
//     u64     key                the places are derived from it; little-endian
//     float32 value[k]           k = ceil(ratio n), at least 1; in the order of the places
// The places are not sent. The key is derived from the seed, the training step, the bucket and the
// segment's place in the gradient. With scale=off all ranks draw the same places, so that their
// sums line up; with scale=on the rank is part of the key.
//
// The segment is cut into k runs of nearly equal length, floor(j n / k) to floor((j + 1) n / k).
// One place is drawn in each run. One more draw shifts all places, wrapping around the segment's
// end. Every place is therefore drawn with probability k/n, and no place is drawn twice.
//
// scale=off sends the values as they are. That is biased and needs feedback; a value that is sent
// leaves exactly zero in the residual.
//
// scale=on multiplies the values by n/k in the encoder. Then E[decoded] = v up to rounding, and
// there is no feedback. Each rank draws its own places. If all ranks drew the same places, each
// rank of a ring would scale the same values once more. Each encoding on a value's way adds a
// variance of (n/k - 1) times the value's square, and the factors of several encodings multiply.
// The topology `direct`, with its two encodings, is therefore better than `ring`. If a product
// overflows, the input counts as not finite.
//
// Contraction: for scale=off, E[norm(v - decoded)^2] = (1 - k/n) norm(v)^2 over draws; for a single
// draw c = 1. With scale=on the error may be n/k - 1 times the value.
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
  // Throws Error(communication) for a payload that no encoder writes.
  template <bool kAdd>
  void decode_values(std::span<const std::byte> payload, std::span<float> out) const;

  double ratio_;
  bool is_scaled_;
};

}  // namespace dp
