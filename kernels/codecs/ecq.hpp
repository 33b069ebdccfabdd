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

#include <bit>
#include <memory>

#include "kernels/codecs/codec.hpp"
#include "kernels/codecs/entropy_coder.hpp"
#include "kernels/codecs/scaled_blocks.hpp"

namespace dp {

// The wire format, for any memory. HostEcq and CudaEcq (cuda_ecq.cu) have the passes over the
// values. Both write the same bytes.
class Ecq : public Codec {
 public:
  // The longest segment, in floats.
  static constexpr std::size_t kMostFloats = std::size_t{1} << 24;
  static constexpr float kMostCode = 127.0f;
  // A segment is quantised with the given step as it is if its largest magnitude (as a bit pattern)
  // satisfies this. Otherwise the step grows, or nothing is quantised.
  static constexpr bool fits(std::uint32_t largest_bits, float step) {
    return largest_bits >= BlockScales::kTiny && largest_bits < BlockScales::kNonFiniteFrom &&
           std::bit_cast<float>(largest_bits) / kMostCode <= step;
  }

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

  [[nodiscard]] bool needs_host_payload() const override { return true; }
  EncodeResult encode(std::span<const float> partial, float* residual, std::span<std::byte> payload,
                      const EncodeContext& context) const override;
  void decode(std::span<const std::byte> payload, std::span<float> out) const override;
  void decode_add(std::span<const std::byte> payload, std::span<float> out) const override;

 protected:
  enum class Form : std::uint8_t { plain = 0, bf16 = 2, fp32 = 3, q4 = 4, q8 = 5 };
  // A segment to encode: v = partial + residual, or partial if `residual` is null.
  struct Values {
    std::span<const float> partial;
    float* residual;

    [[nodiscard]] std::size_t size() const { return partial.size(); }
  };

  explicit Ecq(const CodecSpec& codec_spec);

  struct Scan {
    std::uint32_t largest_bits = 0;  // the largest magnitude; a bit pattern, so NaN is the largest
    bool is_quantised = false;       // with the likely step
  };
  // Finds the largest magnitude of each block of 256 values, for quantise(), and that of the
  // segment. `maxima`: host memory for a magnitude of each block, at any address. likely_step: the
  // step for quantise() if the segment fits() it, or 0. A GPU then quantises at once, without
  // waiting for the host in between.
  [[nodiscard]] virtual Scan scan(Values values, std::byte* maxima, float likely_step) const = 0;
  // The tiled_sum() of (v * factor)^2 in fp32.
  [[nodiscard]] virtual double squares(Values values, float factor) const = 0;
  // residual += partial
  virtual void keep(Values values) const = 0;
  // Leaves the dropped part in the residual. Call it after scan(), with the same `maxima`. The
  // codes are stored in `memory`, host memory of CodeBlocks::bytes() bytes.
  virtual entropy::CodeBlocks quantise(Values values, float step, const std::byte* maxima,
                                       std::byte* memory) const = 0;
  // Returns the number of bytes written.
  virtual std::size_t write_dense(Form form, Values values, std::span<std::byte> body,
                                  const EncodeContext& context) const = 0;

  virtual void clear(std::span<float> out) const = 0;
  // These add to `out`, and return false (or throw) if no encoder writes such bytes. add_plain():
  // `body` has as many bytes as `out` has floats. add_coded(): `coded` as for entropy::decode_add.
  virtual void add_plain(std::span<const std::byte> body, float step,
                         std::span<float> out) const = 0;
  virtual bool add_coded(std::span<const std::byte> coded, float step,
                         std::span<float> out) const = 0;
  virtual bool add_dense(Form form, std::span<const std::byte> body,
                         std::span<float> out) const = 0;

 private:
  [[nodiscard]] float own_step(Values values, float largest) const;
  [[nodiscard]] float blended(float set, float own) const;

  float step_;            // in root mean squares
  std::size_t quarters_;  // `blend` in quarters
};

class HostEcq final : public Ecq {
 public:
  explicit HostEcq(const CodecSpec& codec_spec);

 private:
  Scan scan(Values values, std::byte* maxima, float likely_step) const override;
  double squares(Values values, float factor) const override;
  void keep(Values values) const override;
  entropy::CodeBlocks quantise(Values values, float step, const std::byte* maxima,
                               std::byte* memory) const override;
  std::size_t write_dense(Form form, Values values, std::span<std::byte> body,
                          const EncodeContext& context) const override;
  void clear(std::span<float> out) const override;
  void add_plain(std::span<const std::byte> body, float step, std::span<float> out) const override;
  bool add_coded(std::span<const std::byte> coded, float step, std::span<float> out) const override;
  bool add_dense(Form form, std::span<const std::byte> body, std::span<float> out) const override;

  std::unique_ptr<const Codec> four_, eight_;  // codecs of two dense forms
};

}  // namespace dp
