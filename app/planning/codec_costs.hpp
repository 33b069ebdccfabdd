// Measures what codecs cost on this rank's processor. The measurement uses a gradient of the run,
// because payloads may depend on the values.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "comm/network/step_simulation.hpp"
#include "comm/topologies/buckets.hpp"
#include "kernels/codecs/codec.hpp"

namespace dp {

// Seconds and bytes per float. This is a plain struct, so that ranks can exchange it.
struct CodecFigures {
  double encode_s = 0.0, decode_s = 0.0;  // decode_s includes adding
  double payload_bytes = 0.0;
  // For the codec "powersgd", whose messages are fp32. first_s: computing M Q. second_s: making P
  // orthonormal, and computing M^T P. deliver_s: computing the gradient and the residual at the
  // end.
  double first_s = 0.0, second_s = 0.0, deliver_s = 0.0;

  // The figures on a processor that is `times` times as fast.
  [[nodiscard]] CodecFigures over(double times) const;
};

// How a codec with `bits=` distributes its bytes over the gradient. One quantiser step for all
// tensors gives more bytes to tensors with large gradients.
class ByteShares {
 public:
  ByteShares() = default;  // even: each value takes the same number of bytes
  // The first `floats` values are divided into equal parts; part i takes bytes[i].
  ByteShares(std::span<const double> bytes, std::size_t floats);

  // The mean bytes per value in this range, relative to the mean of all values. `floats` is at
  // least 1.
  [[nodiscard]] double mean(std::size_t begin, std::size_t floats) const;

  // Interpolates between a (at 0) and b (at 1).
  [[nodiscard]] static ByteShares between(const ByteShares& a, const ByteShares& b, double at);

 private:
  // The share of all bytes that the values before `value` take. Each value beyond the last part
  // counts as much as the mean.
  [[nodiscard]] double before(double value) const;

  std::vector<double> before_;  // the share of the bytes before each part; the last one is 1
  double part_ = 1.0;           // floats
};

// Measures the byte shares in the gradient's matrices for the spec's mean bits per value. It reads
// no more than 64 x 4,096 values, evenly spread, which takes some hundredths of a second. Returns
// even shares if there are fewer than 4,096 values, all are zero, or some are not finite.
[[nodiscard]] ByteShares measure_byte_shares(const CodecSpec& spec, std::span<const float> gradient,
                                             std::span<const TensorSlot> tensors);

// Takes a few hundredths of a second, or longer for a slow codec: three passes over a part of the
// gradient. `gradient` is host memory; `tensors` say where its matrices are.
[[nodiscard]] CodecFigures measure_codec(const CodecSpec& spec, std::span<const float> gradient,
                                         std::span<const TensorSlot> tensors,
                                         std::size_t segment_bytes);

// Describes a bucket for the simulation. `figures` are the figures of the bucket's codec, and
// `exact` those of the codec "none". Only codecs with `bits=` use `shares`.
[[nodiscard]] SimulatedBucket simulated_bucket(const Bucket& bucket, const CodecFigures& figures,
                                               const CodecFigures& exact, std::size_t segment_bytes,
                                               const ByteShares& shares = {});
// The costs of messages that are fp32 with every codec.
[[nodiscard]] CodecCosts exact_costs(const CodecFigures& exact);

}  // namespace dp
