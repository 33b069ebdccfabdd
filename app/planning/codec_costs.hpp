// Measures what codecs cost on this rank's processor. It uses a gradient of the run, because
// payloads may depend on the values.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "comm/network/step_simulation.hpp"
#include "comm/topologies/buckets.hpp"
#include "kernels/codecs/codec.hpp"

namespace dp {

// Seconds and bytes per float; a plain struct, so that ranks can exchange it.
struct CodecFigures {
  double encode_s = 0.0, decode_s = 0.0;  // decode_s: of decode and add
  double payload_bytes = 0.0;
  // For powersgd, whose own bytes are fp32: the times of M Q, of M^T P with P made orthonormal, and
  // of the end, which computes the gradient and the residual.
  double first_s = 0.0, second_s = 0.0, deliver_s = 0.0;

  // The same codec on a processor that is `times` times as fast.
  [[nodiscard]] CodecFigures over(double times) const;
};

// How a codec with `bits=` distributes its bytes over the gradient. One quantiser step for all
// tensors gives more bytes to tensors with large gradients.
class ByteShares {
 public:
  ByteShares() = default;  // even: the same number for each value
  // bytes[i] is the number for part i of the first `floats` values, which are divided into equal
  // parts.
  ByteShares(std::span<const double> bytes, std::size_t floats);

  // Mean bytes of each of these values, relative to the mean of all values. `floats` is at least 1.
  [[nodiscard]] double mean(std::size_t begin, std::size_t floats) const;

  // Interpolates between a (at 0) and b (at 1).
  [[nodiscard]] static ByteShares between(const ByteShares& a, const ByteShares& b, double at);

 private:
  // The share of all bytes that is spent before `value`. Values beyond the last part count as the
  // mean.
  [[nodiscard]] double before(double value) const;

  std::vector<double> before_;  // the share of the bytes before each part; the last one is 1
  double part_ = 1.0;           // floats
};

// Byte shares at the spec's mean bits over the gradient's matrices. Looks at no more than 64 x
// 4,096 values, evenly spread, which takes some hundredths of a second. Returns even shares for
// fewer than 4,096 values, and if all are zero or some are not finite.
[[nodiscard]] ByteShares measure_byte_shares(const CodecSpec& spec, std::span<const float> gradient,
                                             std::span<const TensorSlot> tensors);

// Takes a few hundredths of a second; for a slow codec as long as three passes over a part of the
// gradient. `gradient` is host memory; `tensors` say where its matrices are.
[[nodiscard]] CodecFigures measure_codec(const CodecSpec& spec, std::span<const float> gradient,
                                         std::span<const TensorSlot> tensors,
                                         std::size_t segment_bytes);

// The bucket for the simulation, with the codec that it names and these figures. `exact` are the
// figures of codec none. Only codecs with `bits=` use `shares`.
[[nodiscard]] SimulatedBucket simulated_bucket(const Bucket& bucket, const CodecFigures& figures,
                                               const CodecFigures& exact, std::size_t segment_bytes,
                                               const ByteShares& shares = {});
// Costs of messages that are fp32 whatever the codec is.
[[nodiscard]] CodecCosts exact_costs(const CodecFigures& exact);

}  // namespace dp
