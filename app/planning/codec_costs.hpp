// Measures what codecs cost on this rank's processor, on a gradient as it is: payloads may depend
// on the values.
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
  // Of powersgd, whose own bytes are fp32: M Q, M^T P with P made orthonormal, and the end, which
  // computes the gradient and the residual.
  double first_s = 0.0, second_s = 0.0, deliver_s = 0.0;

  // The same codec on a processor that is `times` as quick.
  [[nodiscard]] CodecFigures over(double times) const;
};

// Where in the gradient a codec with `bits=` spends its bytes: one step for all tensors gives more
// of them to those with large gradients.
class ByteShares {
 public:
  ByteShares() = default;  // even: as many for each value
  // bytes[i] is what part i takes of the first `floats` values, which are divided into equal parts.
  ByteShares(std::span<const double> bytes, std::size_t floats);

  // The bytes that each of these values takes in the mean, relative to the mean of all. `floats` is
  // at least 1.
  [[nodiscard]] double mean(std::size_t begin, std::size_t floats) const;

  // Between a (at 0) and b (at 1).
  [[nodiscard]] static ByteShares between(const ByteShares& a, const ByteShares& b, double at);

 private:
  // The share of all bytes that the values before `value` take. Beyond the last part every value
  // counts as the mean.
  [[nodiscard]] double before(double value) const;

  std::vector<double> before_;  // the share of the bytes before each part; the last one is 1
  double part_ = 1.0;           // floats
};

// At the spec's bits in the mean of the gradient's matrices. At most 64 x 4,096 values are looked
// at, evenly spread, which takes some hundredths of a second. Even shares where there are fewer
// than 4,096 values, and where all are zeros or some are not finite.
[[nodiscard]] ByteShares measure_byte_shares(const CodecSpec& spec, std::span<const float> gradient,
                                             std::span<const TensorSlot> tensors);

// Takes a few hundredths of a second, or for a slow codec as long as three passes over a part of
// the gradient. `gradient` is host memory; `tensors` say where its matrices are.
[[nodiscard]] CodecFigures measure_codec(const CodecSpec& spec, std::span<const float> gradient,
                                         std::span<const TensorSlot> tensors,
                                         std::size_t segment_bytes);

// The bucket as the simulation sees it, with the codec that it names and those figures; `exact` are
// those of codec none. `shares` counts for codecs with `bits=` alone.
[[nodiscard]] SimulatedBucket simulated_bucket(const Bucket& bucket, const CodecFigures& figures,
                                               const CodecFigures& exact, std::size_t segment_bytes,
                                               const ByteShares& shares = {});
// What messages cost that are fp32 whatever the codec is.
[[nodiscard]] CodecCosts exact_costs(const CodecFigures& exact);

}  // namespace dp
