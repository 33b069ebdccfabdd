// ecq: an entropy-coded quantiser. Values become whole multiples of one step size, called the
// *step* below. The step is several times the values' root mean square, so most values become zero.
// An entropy coder writes the result, and error feedback sends the dropped part later.
//
// Wire format of a segment of n floats:
//     float32 step               little-endian, 2^-100 to 2^119; or 0: all values are zero, and
//                                nothing follows
//     u8 form                    0: plain, 2: bf16, 3: fp32, 4: q4, 5: q8, 64 to 127: coded;
//                                others are refused
//     body                       plain: int8 code[n], used if coded would be longer
//                                coded: see entropy_coder.hpp; `form` is its head byte
//                                bf16: see bf16.hpp; fp32: float32 value[n]; q4, q8: see
//                                linear.hpp, in blocks of 2,048. These four forms have
//                                step = 1.
// value = code * step. code = v / step, rounded to the nearest whole number (ties to even), within
// -127..127. A plain or coded payload is at most n + 5 bytes; the length of the other forms follows
// from their bits.
//
// Dense forms (bf16, fp32, q4, q8) are sent if EncodeContext::dense_bits is set. The caller sets it
// if the link has room for dense payloads anyway, because these are finer and cheaper to encode
// than coded ones.
//
// In coded and plain payloads the step is EncodeContext::quantiser_step if that is set (the *set
// step*). If not, it is the segment's *own step*: the key `step` times the root mean square of v in
// the segment, but at most the largest magnitude. A step below 1/127 of the largest magnitude is
// raised to this limit, so no value is clipped. Clipping large values trains badly even with
// feedback (final loss 1.96 instead of 1.51, at 2 bits a value).
//
// The key `blend` = a mixes the set step with the segment's own step:
//
//     set^(1 - a) * own^a                a = 0, 1/4 or 1/2; computed with square roots
//
// Segments of small values thus get a finer step than one common step would give them.
//
// Rounding is plain, without a dead zone (a wider interval around zero that becomes zero). For a
// single vector a dead zone gives a smaller error, but with feedback the model trains worse. In a
// prototype of this codec, the final loss was 0.939 at 0.89 bits a value with a dead zone, and
// 0.858 at 0.66 bits a value without it. (The bits were computed as the entropy of the codes.)
//
// Error: at most step / 2. With a set step that is not blended, no residual therefore exceeds half
// of the set step or 1/254 of the largest magnitude, whichever is larger. With the segment's own
// step the largest value always gets a code of at least 1 and loses at most half of itself. For n
// floats, at most kMostFloats, c^2 is therefore 1 - 0.75 / n. This bound allows for segments in
// which only one of many values of equal size is sent. Typical gradients lose 20 % of their squared
// norm at 0.6 bits a value, and 45 % at 0.15 bits.
#pragma once

#include <memory>

#include "kernels/codecs/codec.hpp"

namespace dp {

class Ecq final : public Codec {
 public:
  // The longest segment, in floats.
  static constexpr std::size_t kMostFloats = std::size_t{1} << 24;

  explicit Ecq(const CodecSpec& codec_spec);

  [[nodiscard]] bool takes_step() const override { return true; }
  [[nodiscard]] bool is_lossless() const override { return false; }
  // Includes scratch space for encoding. Except for dense payloads, no payload is longer than n + 5
  // bytes.
  [[nodiscard]] std::size_t max_payload_bytes(std::size_t n) const override;
  [[nodiscard]] std::optional<std::size_t> fixed_payload_bytes(std::size_t) const override {
    return std::nullopt;
  }
  // An estimate from the bits per value that were measured on gradients with this step.
  [[nodiscard]] std::size_t expected_payload_bytes(std::size_t n) const override;
  [[nodiscard]] double contraction() const override;

  EncodeResult encode(std::span<const float> partial, float* residual, std::span<std::byte> payload,
                      const EncodeContext& context) const override;
  void decode(std::span<const std::byte> payload, std::span<float> out) const override;
  void decode_add(std::span<const std::byte> payload, std::span<float> out) const override;

 private:
  [[nodiscard]] float own_step(const float* partial, const float* residual, std::size_t n,
                               float largest) const;
  [[nodiscard]] float blended(float set, float own) const;
  [[nodiscard]] std::size_t write_dense(std::span<const float> partial, float* residual,
                                        std::span<std::byte> payload,
                                        const EncodeContext& context) const;

  float step_;                                 // in root mean squares
  std::size_t quarters_;                       // `blend` in quarters
  std::unique_ptr<const Codec> four_, eight_;  // codecs of two dense forms
};

}  // namespace dp
