// SGD's momentum before the exchange: that of Deep Gradient Compression (Lin, Han, Mao, Wang, Dally
// 2018, algorithm 4), and its first part alone, momentum correction, for other codecs
// (velocity=on).
//
// If few coordinates are sent per step, the rest gathers in residuals. Momentum that the optimiser
// adds afterwards does not know for how many steps a coordinate has waited. So every rank keeps its
// own *velocity* u and exchanges it instead of the gradient:
//
//     g = min(1, L / norm(g)) g        local clipping, L = clip / sqrt(P); off by default
//     u = m u + g                      momentum correction: u is what the exchange is given
//     u = 0 where it was just sent     momentum factor masking, after the exchange
//
// velocity=on has no masking, and velocity=masked has u = 0 where anything was delivered. With
// Nesterov's momentum the exchange is given g + m u. Without masking, and with a codec that loses
// nothing, the sum is the velocity of SGD on one rank.
//
// The accumulation v of the paper is the exchange's residual. For dgc a coordinate was just sent if
// this rank's residual is exactly 0 there after the exchange (top-k sends fp32). The delivered sum
// is applied with the learning rate as it is: the optimiser's momentum is 0 for these buckets.
// Weight decay is part of g: the caller has added it; as the exchange sums over ranks, each rank
// adds 1/P of it.
//
// With masking, a coordinate that is sent in every step has no momentum at all: at ratio=1 the run
// is SGD without momentum. A warm-up therefore sends ever fewer coordinates (warmup_ratio) instead
// of all of them.
//
// Each bucket is clipped by itself, as buckets are sent before the whole gradient is known. The
// norm of a rank's gradient is then at most clip sqrt(buckets / P).
//
// What is not finite stays as it is, so that the exchange reports it, and its velocity does not
// change (in pieces of kPiece values, with clipping the whole bucket). In a step that is skipped
// the other velocities have changed all the same, on all ranks. What was delivered of them is put
// back into residuals (Exchange::put_back_delivered); without residuals, on one rank and in a
// warm-up in fp32, it is dropped with the step, but its part in the velocities stays.
//
// Host memory. One thread at a time: that of the reducer (velocity_exchange.hpp calls prepare()
// before a bucket is sent and mask() when its sum is in place). Nothing is allocated after
// construction; nothing fails.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/base/state.hpp"

namespace dp {

// Replaces a rank's gradient before the exchange: by SGD's velocity (LocalVelocity) or by Adam's
// step (adam_velocity.hpp).
class LocalMomentum {
 public:
  explicit LocalMomentum(std::size_t elements) : velocity_(elements) {}
  virtual ~LocalMomentum() = default;
  LocalMomentum(const LocalMomentum&) = delete;
  LocalMomentum& operator=(const LocalMomentum&) = delete;

  // Replaces the gradient of [begin, begin + gradient.size()) by what is to be summed.
  virtual void prepare(std::size_t begin, std::span<float> gradient) = 0;
  // Gradients are from now on this many times as large.
  virtual void scale(float factor) = 0;
  // Must be saved with the residual, because a run that is resumed continues with it.
  virtual void list_state(StateVisitor& visitor) {
    visitor.values("exchange/velocity", std::span(velocity_), StateShare::own, StatePlace::host,
                   StateMerge::sum, StateGrain::value);
  }

  // After the exchange of that bucket: sets the velocity to 0 where the bucket's `residual` is 0.
  void mask(std::size_t begin, std::span<const float> residual);
  // Sets the velocity to 0 where something was delivered: for velocity=masked, and in dgc for a
  // rank that encodes nothing and so has no residual (hierarchical: one that does not lead its
  // host).
  void mask_delivered(std::size_t begin, std::span<const float> delivered);

  [[nodiscard]] std::span<float> velocity() { return velocity_; }

 protected:
  std::vector<float> velocity_;
};

struct VelocityOptions {
  float momentum = 0.9f;
  bool has_nesterov = false;
  double clip = 0.0;  // the norm to which the sum over ranks is clipped, about; 0: no clipping
  std::size_t ranks = 1;
};

class LocalVelocity final : public LocalMomentum {
 public:
  // `elements`: of the flat gradient.
  LocalVelocity(std::size_t elements, const VelocityOptions& options)
      : LocalMomentum(elements), options_(options) {}

  static constexpr std::size_t kPiece = 4096;  // stay in a core's first cache

  void prepare(std::size_t begin, std::span<float> gradient) override;
  // The norm to which gradients are clipped follows.
  void scale(float factor) override;

 private:
  void accelerate(std::size_t begin, std::span<float> gradient, float scale);

  VelocityOptions options_;
};

// The ratio that a sparse codec (dgc, topk, randk) has in a warm-up epoch: 25 %, 6.25 %, 1.5625 %,
// ..., each a quarter of the one before, down to `ratio`.
[[nodiscard]] double warmup_ratio(double ratio, std::size_t epoch);

}  // namespace dp
