// The momentum of Deep Gradient Compression (Lin, Han, Mao, Wang, Dally 2018, algorithm 4).
//
// Where few coordinates are sent a step, the rest gathers in residuals. Momentum that the optimiser
// adds afterwards does not know of the steps that a coordinate has waited. So every rank keeps a
// *velocity* u of its own and exchanges that instead of the gradient:
//
//     g = min(1, L / norm(g)) g        local clipping, L = clip / sqrt(P); off by default
//     u = m u + g                      momentum correction: u is what the exchange is given
//     u = 0 where it was just sent     momentum factor masking, after the exchange
//
// The accumulation v of the paper is the exchange's residual; "just sent" is where this rank's
// residual is exactly 0 after the exchange (top-k sends fp32). What is delivered is applied with
// the learning rate as it is: the optimiser's momentum is 0 for these buckets. Weight decay is part
// of g, added by the caller; as the exchange sums over ranks, each adds its P-th part of it.
//
// With masking, a coordinate that is sent every step has no momentum at all; where nothing is
// dropped (an uncompressed warm-up) mask() is therefore not called, and the run is SGD with
// momentum (PyTorch's form, no dampening).
//
// Clipping is bucket by bucket, as buckets are sent before the whole gradient is known: the
// gradient's norm is at most clip sqrt(buckets / P).
//
// A bucket that is not finite is left as it is for the exchange to report, and its velocity is not
// touched. A step that is skipped for another rank's or bucket's sake has moved velocities all the
// same; what they gave is not lost but put back into residuals (Exchange::put_back_delivered).
//
// Host memory. One thread at a time: that of the reducer, in its hooks before_start (prepare) and
// on_delivered (mask). Nothing is allocated after construction; nothing fails.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace dp {

struct DgcOptions {
  float momentum = 0.9f;
  double clip = 0.0;  // the norm that the sum over ranks is clipped to, about; 0: no clipping
  std::size_t ranks = 1;
};

class DgcMomentum {
 public:
  // `elements`: of the flat gradient.
  DgcMomentum(std::size_t elements, const DgcOptions& options)
      : options_(options), velocity_(elements) {}

  // Turns the gradient of [begin, begin + gradient.size()) into the velocity, in place.
  void prepare(std::size_t begin, std::span<float> gradient);
  // After the exchange of that bucket: forgets the velocity where `residual`, the bucket's, is 0.
  void mask(std::size_t begin, std::span<const float> residual);
  // For a rank that encodes nothing itself and so has no residual (hierarchical: one that does not
  // lead): forgets the velocity where something was delivered.
  void mask_delivered(std::size_t begin, std::span<const float> delivered);

  // To be saved with the residual: a run that is resumed goes on with it.
  [[nodiscard]] std::span<float> velocity() { return velocity_; }

 private:
  DgcOptions options_;
  std::vector<float> velocity_;
};

// The warm-up ladder: 25 %, 6.25 %, 1.5625 %, ... a quarter of the epoch before, down to `ratio`.
[[nodiscard]] double dgc_ratio(double ratio, std::size_t epoch);

}  // namespace dp
