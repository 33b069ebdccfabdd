// Measures what codecs cost on this rank's processor, on a gradient as it is: payloads may depend
// on the values.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "comm/buckets.hpp"
#include "comm/step_simulation.hpp"
#include "kernels/codecs/codec.hpp"

namespace dp {

// Seconds and bytes per float; a plain struct, so that ranks can exchange it.
struct CodecFigures {
  double encode_s = 0.0, decode_s = 0.0;  // decode_s: of decode and add
  double payload_bytes = 0.0;
  // Of powersgd, whose own bytes are fp32: M Q, M^T P with P made orthonormal, and the end, which
  // computes the gradient and the residual.
  double first_s = 0.0, second_s = 0.0, deliver_s = 0.0;
};

// Where in the gradient a codec with `bits=` spends its bytes. One step for all tensors gives more
// of them to those with large gradients.
class ByteShares {
 public:
  ByteShares() = default;  // as many for each value
  // Those of equal parts of the first `floats` values.
  ByteShares(std::span<const double> bytes, std::size_t floats);

  // Of these values (at least one), relative to the mean of all.
  [[nodiscard]] double mean(std::size_t begin, std::size_t floats) const;

  // Between a (at 0) and b (at 1).
  [[nodiscard]] static ByteShares between(const ByteShares& a, const ByteShares& b, double at);

 private:
  // Of those before value i, relative to the bytes of all; values beyond the last count as the
  // mean.
  [[nodiscard]] double before(double value) const;

  std::vector<double> before_;  // of those before each part, and of all
  double part_ = 1.0;           // floats
};

// At that many bits in the mean of the gradient's matrices, of which large ones are sampled.
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
