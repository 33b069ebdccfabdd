// Codecs: how one segment of a gradient becomes bytes and floats again.
//
// A *segment* is a run of floats that is encoded as one unit; its length is a multiple of the
// codec's *block*, except at the end of a chunk. The *payload* is the encoded segment. The
// *residual* holds, per float, what earlier payloads dropped (error feedback).
//
// A codec works on the memory of one device: the host's, or a GPU's. Codecs of the host have no
// state: every method may be called from any thread and allocates nothing. Codecs of a GPU share
// one queue (cuda_queue.hpp); one thread at a time uses them, and they allocate when a segment is
// longer than all before. The same input gives the same payload on every machine and every device
// (scaled_blocks.hpp says what that takes).
//
// A new codec is one header beside this one and one row in codec_rows.hpp. A payload that no
// encoder writes is Error(communication).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "kernels/codecs/codec_spec.hpp"
#include "kernels/codecs/segment_memory.hpp"
#include "kernels/device.hpp"

namespace dp {

// What an encode depends on beside the values and the spec, and what may change from step to step:
// where in a run the segment is, and how finely to round. Codecs that draw random numbers take them
// from here alone. Ranks need not agree on it, and a decoder is never told: what it must know of it
// (randk's key) an encoder writes into the payload.
struct EncodeContext {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  std::uint32_t bucket = 0;
  std::uint32_t rank = 0;
  std::uint64_t offset = 0;  // of the segment's first float in the flat gradient
  // The distance of neighbouring values of a uniform quantiser, for codecs whose step can be set;
  // 0: the codec's own choice.
  float quantiser_step = 0.0f;
  // For the same codecs: all values are sent in so many bits, without a step: 4 or 8 as q4 or q8,
  // 16 as bf16, 32 as fp32; 0: as usual.
  unsigned dense_bits = 0;
};

struct [[nodiscard]] EncodeResult {
  std::size_t payload_bytes = 0;
  bool finite = true;  // false: the input held NaN, an infinity or more than the codec can carry
  // Finite values that the host's codec clamped to its largest one, and the index of the first.
  std::size_t clamped = 0, first_clamped = 0;
};

class Codec {
 public:
  explicit Codec(CodecSpec spec) : spec_(std::move(spec)) {}
  virtual ~Codec() = default;
  Codec(const Codec&) = delete;
  Codec& operator=(const Codec&) = delete;

  [[nodiscard]] const CodecSpec& spec() const { return spec_; }
  // True for a GPU's codec: `partial`, `out` and `residual` are memory of the GPU, `payload` is
  // memory that the GPU reaches (its own, or Device::allocate_host), and everything has ended when
  // a call returns. Work that others have enqueued on that memory must have ended before.
  [[nodiscard]] virtual bool is_on_device() const { return false; }
  // The memory that this codec works on, for sums over it.
  [[nodiscard]] virtual const SegmentMemory& memory() const { return host_memory(); }
  // The length of a segment is a multiple of it.
  [[nodiscard]] std::size_t block() const { return spec_.block; }
  // Whether EncodeContext::quantiser_step and dense_bits have an effect.
  [[nodiscard]] virtual bool takes_step() const { return false; }
  // True where decode(encode(x)) is x, bit for bit, for every finite x.
  [[nodiscard]] virtual bool is_lossless() const = 0;
  // No payload of n floats is longer.
  [[nodiscard]] virtual std::size_t max_payload_bytes(std::size_t n) const = 0;
  // The length of every payload of n floats; nothing where it depends on the values.
  [[nodiscard]] virtual std::optional<std::size_t> fixed_payload_bytes(std::size_t n) const = 0;
  // About how long a payload of n floats is: exactly where every one has the same length, for
  // others as their headers say. To plan by, and no bound.
  [[nodiscard]] virtual std::size_t expected_payload_bytes(std::size_t n) const {
    return fixed_payload_bytes(n).value_or(max_payload_bytes(n));
  }
  // A number c with norm(v - decode(encode(v))) <= c * norm(v) for every v whose values are within
  // the codec's normal range, which its header states. It is 0 for lossless codecs. Codecs with
  // feedback have one below 1, except those whose error has another bound (absolute_error, or a
  // mean over draws in randk): they say 1. Specs that round at random (CodecSpec::is_biased is
  // false) are no contractions and say 1 or more.
  [[nodiscard]] virtual double contraction() const = 0;
  // If above 0, a bound: |v - decoded| is smaller for every value that is not sent.
  [[nodiscard]] virtual double absolute_error() const { return 0.0; }

  // Encodes v = partial + residual into `payload` (at least max_payload_bytes) and leaves
  // v - decode(payload) in `residual`. With a null `residual`, v is `partial` and the difference is
  // dropped. Lossless codecs drop nothing and do not read `residual`.
  // Where the input is not finite, the payload stands for zeros, the residual stays as it was, and
  // the result says finite=false.
  virtual EncodeResult encode(std::span<const float> partial, float* residual,
                              std::span<std::byte> payload, const EncodeContext& context) const = 0;

  // decode assigns the decoded floats to `out`, and decode_add adds them. `out` has the segment's
  // length. Both throw Error(communication) on a payload with a length, a scale, a code or a
  // padding that no encoder writes, and may have written a part of `out` by then. Decoded values
  // are finite whatever the bytes are.
  // Some damage is not noticed. Where codes are whole numbers (q16, q8, q4, q8n, q4n), decoders
  // accept the least one, -32768, -128 or -8, though encoders do not send it: a check would make
  // decode_add a fifth slower on data in cache. Scales are not compared with their codes, and any
  // key of randk is valid. A payload that was changed into another valid one cannot be noticed
  // here; checksums of the network and the hash of the replicas are for that.
  virtual void decode(std::span<const std::byte> payload, std::span<float> out) const = 0;
  virtual void decode_add(std::span<const std::byte> payload, std::span<float> out) const = 0;

  // What a rank does with a segment that it passes on: decode_add(received, partial), then
  // encode(partial, residual, payload, context), in one trip to a GPU instead of two. `received`
  // and `payload` do not overlap.
  virtual EncodeResult decode_add_encode(std::span<const std::byte> received,
                                         std::span<float> partial, float* residual,
                                         std::span<std::byte> payload,
                                         const EncodeContext& context) const {
    decode_add(received, partial);
    return encode(partial, residual, payload, context);
  }

 private:
  CodecSpec spec_;
};

// Makes a codec for memory of the host; null for a codec that is an exchange of its own
// (CodecInfo::is_exchange).
[[nodiscard]] std::unique_ptr<Codec> make_codec(const CodecSpec& spec);
// Makes a codec for memory of that device, which outlives the codec; null where the codec has no
// form for such a device.
[[nodiscard]] std::unique_ptr<Codec> make_codec(const CodecSpec& spec, Device& device);
// Whether make_codec(spec, a device of that kind) makes one.
[[nodiscard]] bool has_codec(const CodecSpec& spec, DeviceKind kind);

}  // namespace dp
