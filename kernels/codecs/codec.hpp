// Codecs: encode one segment of a gradient as bytes, and decode it again.
//
// A *segment* is a run of floats that is encoded as one unit; its length is a multiple of the
// codec's *block*, except at the end of a chunk. The *payload* is the encoded segment. The
// *residual* holds, per float, the part that earlier payloads dropped (error feedback).
//
// A codec works on the memory of one device, the host or a GPU. Host codecs have no state: every
// method may be called from any thread and allocates nothing. GPU codecs share one queue
// (cuda_queue.hpp) and may be used by one thread at a time; they allocate in reserve(), or if a
// segment is longer than all earlier ones. The same input gives the same payload on every machine
// and device (scaled_blocks.hpp explains how).
//
// A new codec is one header in this folder and one row in codec_rows.hpp. Decoding a payload that
// no encoder writes throws Error(communication).
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

// The inputs of encode() besides the values and the spec: where in a run the segment is, and how
// finely to round. They may change from one training step to the next. Codecs derive random numbers
// from these inputs only. Ranks need not agree on a context, and decoders do not get it: an encoder
// writes what the decoder needs (such as randk's key) into the payload.
struct EncodeContext {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  std::uint32_t bucket = 0;
  std::uint32_t rank = 0;
  std::uint64_t offset = 0;  // of the segment's first float in the flat gradient
  // The step size of a uniform quantiser (the distance between neighbouring decoded values), for
  // codecs with an adjustable one. 0: the codec chooses.
  float quantiser_step = 0.0f;
  // For the same codecs: the bits per value of a dense payload, which is encoded as in another
  // codec: 4 (q4), 8 (q8), 16 (bf16) or 32 (fp32). Dense payloads ignore quantiser_step. 0: no
  // dense payload is requested.
  unsigned dense_bits = 0;
};

struct [[nodiscard]] EncodeResult {
  std::size_t payload_bytes = 0;
  bool finite = true;  // false: the input held NaN, an infinity or a value too large for the codec
  // The number of finite values that a host codec clamped to its largest value, and the index of
  // the first one.
  std::size_t clamped = 0, first_clamped = 0;
};

class Codec {
 public:
  explicit Codec(CodecSpec spec) : spec_(std::move(spec)) {}
  virtual ~Codec() = default;
  Codec(const Codec&) = delete;
  Codec& operator=(const Codec&) = delete;

  [[nodiscard]] const CodecSpec& spec() const { return spec_; }
  // True for a GPU's codec. `partial`, `out` and `residual` are then GPU memory, and `payload` is
  // memory that the GPU can access: its own, or Device::allocate_host, which is the only choice if
  // needs_host_payload(). All work has ended when a call returns. Work that was enqueued elsewhere
  // on this memory must have ended before the call.
  [[nodiscard]] virtual bool is_on_device() const { return false; }
  [[nodiscard]] virtual bool needs_host_payload() const { return !is_on_device(); }
  // Allocates what segments of up to n floats need. Without it, a GPU's codec allocates in the
  // first call with such a segment, and waits for all work on the GPU.
  virtual void reserve(std::size_t) const {}
  // The memory that this codec works on, for sums over it.
  [[nodiscard]] virtual const SegmentMemory& memory() const { return host_memory(); }
  // The number of floats in a block. Segment lengths are multiples of it.
  [[nodiscard]] std::size_t block() const { return spec_.block; }
  // Whether EncodeContext::quantiser_step and dense_bits have an effect.
  [[nodiscard]] virtual bool takes_step() const { return false; }
  // True if decode(encode(x)) is x, bit for bit, for every finite x.
  [[nodiscard]] virtual bool is_lossless() const = 0;
  // An upper bound on the length of a payload of n floats. encode() needs this much room.
  [[nodiscard]] virtual std::size_t max_payload_bytes(std::size_t n) const = 0;
  // The length of every payload of n floats, if it does not depend on the values.
  [[nodiscard]] virtual std::optional<std::size_t> fixed_payload_bytes(std::size_t n) const = 0;
  // The approximate length of a payload of n floats: exact if all payloads have the same length,
  // otherwise as the codec's header says. For planning; not a bound.
  [[nodiscard]] virtual std::size_t expected_payload_bytes(std::size_t n) const {
    return fixed_payload_bytes(n).value_or(max_payload_bytes(n));
  }
  // A number c with norm(v - decode(encode(v))) <= c * norm(v) for every v within the codec's
  // normal range, which its header states. 0 for lossless codecs. Codecs with feedback have c below
  // 1. The exception: a codec with another bound on the error (absolute_error(), or for randk a
  // mean over random draws) returns 1. Specs that round at random (CodecSpec::is_biased() is false)
  // are no contractions and return 1 or more.
  [[nodiscard]] virtual double contraction() const = 0;
  // If the result is above 0, |v - decoded| is smaller than the result for every value that is not
  // sent.
  [[nodiscard]] virtual double absolute_error() const { return 0.0; }

  // Encodes v = partial + residual into `payload` (at least max_payload_bytes) and leaves v -
  // decode(payload) in `residual`. If `residual` is null, v is `partial` and the difference is
  // dropped. Lossless codecs drop nothing and do not read `residual`.
  // If the input is not finite, the payload encodes zeros, the residual is unchanged, and the
  // result has finite=false.
  virtual EncodeResult encode(std::span<const float> partial, float* residual,
                              std::span<std::byte> payload, const EncodeContext& context) const = 0;

  // decode() assigns the decoded floats to `out`; decode_add() adds the decoded floats to `out`.
  // `out` has the segment's length. Both throw Error(communication) if no encoder writes such a
  // length, scale, code or padding; part of `out` may then have been written. Decoded values are
  // finite whatever the bytes are.
  //
  // Some damage is not detected. In q16, q8, q4, q8n and q4n, decoders accept the smallest code
  // (-32768, -128 or -8) although encoders do not send it: a check would make decode_add a fifth
  // slower on data in cache. Scales are not compared with their codes, and any key of randk is
  // valid. A payload changed into another valid one cannot be detected here; the network's
  // checksums and the hash of the replicas cover that.
  virtual void decode(std::span<const std::byte> payload, std::span<float> out) const = 0;
  virtual void decode_add(std::span<const std::byte> payload, std::span<float> out) const = 0;

  // For a segment that a rank receives and passes on: decode_add(received, partial), then
  // encode(partial, residual, payload, context). Most of a GPU's codecs do both at once, which
  // saves waiting once more for the GPU. `received` and `payload` must not overlap.
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
// Makes a codec for the memory of `device`, which must outlive the codec. Returns null if the codec
// has no form for a device of that kind.
[[nodiscard]] std::unique_ptr<Codec> make_codec(const CodecSpec& spec, Device& device);
// Whether make_codec returns a codec for a device of that kind.
[[nodiscard]] bool has_codec(const CodecSpec& spec, DeviceKind kind);

}  // namespace dp
