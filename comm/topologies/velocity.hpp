// SGD's momentum before the exchange, as in Deep Gradient Compression (Lin, Han, Mao, Wang, Dally
// 2018, algorithm 4): momentum correction and masking. Codecs with velocity=on use only momentum
// correction.
//
// If few coordinates are sent per step, the rest accumulates in residuals. The optimiser cannot
// know for how many steps a coordinate has waited, so momentum applied after the exchange is wrong.
// Therefore every rank keeps its own *velocity* u and exchanges it instead of the gradient:
//
//     g = min(1, L / norm(g)) g        local clipping, L = clip / sqrt(P); off by default
//     u = m u + g                      momentum correction: u is exchanged
//     u = 0 where it was just sent     momentum factor masking, after the exchange
//
// velocity=on has no masking; velocity=masked sets u = 0 where anything was delivered. With
// Nesterov's momentum, g + m u is exchanged instead of u. Without masking, and with a lossless
// codec, the sum is the velocity of SGD on one rank.
//
// The accumulation v of the paper is the exchange's residual. For dgc, a coordinate counts as just
// sent if this rank's residual is exactly 0 there after the exchange: top-k sends values in fp32,
// without an error. The optimiser multiplies the delivered sum by the learning rate and uses no
// momentum for these buckets. Weight decay is part of g: the caller has added it, 1/P of it on each
// rank, since the exchange sums over ranks.
//
// With masking, a coordinate that is sent in every step has no momentum at all: at ratio=1 the run
// is SGD without momentum. Therefore a warm-up lowers the ratio from epoch to epoch (warmup_ratio)
// instead of sending all coordinates.
//
// Each bucket is clipped separately, since buckets are sent before the whole gradient is known. The
// norm of a rank's gradient is then at most clip sqrt(buckets / P).
//
// Values that are not finite pass unchanged, so that the exchange reports them and all ranks skip
// the step. The velocity does not change in the piece of kPiece values that contains such a value
// (with clipping: in the bucket that contains it). All other velocities do change in the skipped
// step, on all ranks. The delivered parts of these velocities are put back into the residuals
// (Exchange::put_back_delivered). Without residuals (on one rank, and in a warm-up in fp32) the
// delivered sum is dropped with the step, but the velocities keep the step's gradient.
//
// The velocity is in the memory of the gradient. Only one thread at a time, the reducer's, uses it:
// velocity_exchange.hpp calls prepare() before a bucket is sent and mask() when its sum is in
// place. Nothing is allocated after construction. Calls fail only if a GPU does (Error(device)).
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "kernels/base/state.hpp"
#include "kernels/codecs/segment_memory.hpp"

namespace dp {

// Replaces a rank's gradient before the exchange: by SGD's velocity (LocalVelocity) or by Adam's
// step (adam_velocity.hpp).
class LocalMomentum {
 public:
  // `memory` outlives this object.
  explicit LocalMomentum(std::size_t elements, const SegmentMemory& memory = host_memory(),
                         StatePlace place = StatePlace::host);
  virtual ~LocalMomentum() = default;
  LocalMomentum(const LocalMomentum&) = delete;
  LocalMomentum& operator=(const LocalMomentum&) = delete;

  // Replaces the gradient of [begin, begin + gradient.size()) by the values to exchange.
  virtual void prepare(std::size_t begin, std::span<float> gradient) = 0;
  // From now on, gradients are `factor` times as large as before.
  virtual void scale(float factor) = 0;
  // A resumed run needs this state together with the residual.
  virtual void list_state(StateVisitor& visitor);

  // Sets the velocity to 0 where the bucket's `residual` is 0. Call it after the bucket's exchange.
  void mask(std::size_t begin, std::span<const float> residual);
  // Sets the velocity to 0 where something was delivered. Used for velocity=masked. Also used for
  // dgc on ranks that encode nothing and so have no residual: with the topology "hierarchical", all
  // ranks that do not lead their host.
  void mask_delivered(std::size_t begin, std::span<const float> delivered);

  [[nodiscard]] std::span<float> velocity() const { return {values_.get(), size_}; }

 protected:
  [[nodiscard]] const SegmentMemory& memory() const { return memory_; }
  // The velocity of [begin, begin + n).
  [[nodiscard]] float* at(std::size_t begin, std::size_t n) const;

 private:
  const SegmentMemory& memory_;
  StatePlace place_;
  std::shared_ptr<float> values_;
  std::size_t size_;
};

struct VelocityOptions {
  float momentum = 0.9f;
  bool has_nesterov = false;
  double clip = 0.0;  // the approximate norm to which the sum is clipped; 0: no clipping
  std::size_t ranks = 1;
};

class LocalVelocity final : public LocalMomentum {
 public:
  // `elements`: the size of the flat gradient.
  LocalVelocity(std::size_t elements, const VelocityOptions& options,
                const SegmentMemory& memory = host_memory(), StatePlace place = StatePlace::host)
      : LocalMomentum(elements, memory, place), options_(options) {}

  static constexpr std::size_t kPiece = SegmentMemory::kMomentumPiece;

  void prepare(std::size_t begin, std::span<float> gradient) override;
  // Also scales the clipping norm.
  void scale(float factor) override;

 private:
  VelocityOptions options_;
};

// The ratio of a sparse codec (dgc, topk, randk) in a warm-up epoch: 25 %, 6.25 %, 1.5625 %, ...,
// each a quarter of the one before, down to `ratio`.
[[nodiscard]] double warmup_ratio(double ratio, std::size_t epoch);

}  // namespace dp
