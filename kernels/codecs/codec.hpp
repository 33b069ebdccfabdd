// Codecs: how one segment of a gradient becomes bytes and floats again.
//
// A *segment* is a run of floats that is encoded as one unit; its length is a multiple of the
// codec's *block*, except at the end of a chunk. The *payload* is the encoded segment. The
// *residual* holds, per float, what earlier payloads dropped (error feedback).
//
// A codec works on the memory of one device: that of the host, or a GPU's. On the host codecs have
// no state: every method may be called from any thread and allocates nothing. A GPU's codec has a
// queue of its own, belongs to one thread at a time, and allocates when a segment is longer than
// all before. The same input gives the same payload on every machine and every device (see
// linear.hpp for what that takes).
//
// A new codec is one header beside this one and one row in codec_rows.hpp. Errors: a payload that
// cannot be is Error(communication).
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
};

struct [[nodiscard]] EncodeResult {
  std::size_t payload_bytes = 0;
  bool finite = true;  // false: the input held NaN, an infinity or more than the codec can carry
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
  // Sums over the memory that this codec works on.
  [[nodiscard]] virtual const SegmentMemory& memory() const { return host_memory(); }
  // Segments are a multiple of it.
  [[nodiscard]] std::size_t block() const { return spec_.block; }
  // True where decode(encode(x)) is x, bit for bit, for every finite x.
  [[nodiscard]] virtual bool is_lossless() const = 0;
  // No payload of n floats is longer.
  [[nodiscard]] virtual std::size_t max_payload_bytes(std::size_t n) const = 0;
  // The length of every payload of n floats; nothing where it depends on the values.
  [[nodiscard]] virtual std::optional<std::size_t> fixed_payload_bytes(std::size_t n) const = 0;
  // A c < 1 with norm(v - decode(encode(v))) <= c * norm(v) for every v whose values are within the
  // codec's normal range (stated in its header). 0 for lossless codecs; 1 or more for specs that
  // round at random (not CodecSpec::is_biased) and are no contraction. 1 for those whose error is
  // bounded in another way: absolute_error, or over draws (randk).
  [[nodiscard]] virtual double contraction() const = 0;
  // Where it is above 0: |v - decoded| is below it for every value that is not sent.
  [[nodiscard]] virtual double absolute_error() const { return 0.0; }

  // Encodes v = partial + residual into `payload` (at least max_payload_bytes) and leaves
  // v - decode(payload) in `residual`; `residual` may be null: v = partial, the rest is dropped.
  // (Lossless codecs drop nothing and leave `residual` unread.)
  // Input that is not finite: the payload stands for zeros, the residual is as it was,
  // finite=false.
  virtual EncodeResult encode(std::span<const float> partial, float* residual,
                              std::span<std::byte> payload, const EncodeContext& context) const = 0;

  // Assigns, or adds, the decoded floats to `out`, whose length is the segment's. Throws
  // Error(communication) on a payload with a length, a scale, a code or a padding that no encoder
  // writes, and may then have written a part. What is decoded is finite, whatever the bytes.
  // Not everything that no encoder writes is seen: where codes are whole numbers (q16, q8, q4, q8n,
  // q4n) the least one, -32768, -128 or -8, stands for that number, one more than an encoder sends
  // (looking for it would cost decode_add a fifth in cache); a scale is not compared with the
  // codes below it; and every key of randk draws places. Nor can a change from one possible value
  // into another be seen here: that is what checksums of the network and the hash of the replicas
  // are for.
  virtual void decode(std::span<const std::byte> payload, std::span<float> out) const = 0;
  virtual void decode_add(std::span<const std::byte> payload, std::span<float> out) const = 0;

  // decode_add(received, partial), then encode(partial, residual, payload, context): what a rank
  // does with a segment that it passes on. One trip to a GPU instead of two. `received` and
  // `payload` do not overlap.
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

// For memory of the host. Null where the codec is an exchange of its own (CodecInfo::is_exchange).
[[nodiscard]] std::unique_ptr<Codec> make_codec(const CodecSpec& spec);
// For memory of that device, which outlives the codec. Null where the codec has no form for it.
[[nodiscard]] std::unique_ptr<Codec> make_codec(const CodecSpec& spec, Device& device);
// Whether make_codec(spec, a device of that kind) makes one.
[[nodiscard]] bool has_codec(const CodecSpec& spec, DeviceKind kind);

}  // namespace dp
