#include "comm/topologies/velocity_exchange.hpp"

#include <utility>

#include "comm/exchange/stopwatch.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

class VelocityExchange final : public Exchange {
 public:
  explicit VelocityExchange(VelocityExchangeSetup setup) : setup_(std::move(setup)) {
    DP_ASSERT(setup_.velocity != nullptr, "no velocity for bucket {}", setup_.setup.bucket);
  }

  [[nodiscard]] BufferNeeds needs() const override { return inner().needs(); }
  void post_receives(BufferSet& buffers, std::uint64_t step) override {
    step_ = step;
    is_masked_ = false;
    inner().post_receives(buffers, step);
  }
  void prepare() override {
    const Stopwatch watch = this->watch();
    setup_.velocity->prepare(setup_.setup.offset, gradient());
  }
  void start() override {
    inner().start();
    mask_when_delivered();
  }
  bool progress() override {
    bool has_moved = inner().progress();
    if (mask_when_delivered()) has_moved = true;
    take_over_stats(inner());
    return has_moved;
  }
  [[nodiscard]] bool delivered() const override { return is_masked_; }
  [[nodiscard]] bool done() const override { return is_masked_ && inner().done(); }
  [[nodiscard]] bool finite() const override { return inner().finite(); }
  [[nodiscard]] std::size_t first_not_finite() const override { return inner().first_not_finite(); }
  [[nodiscard]] ClampedValues clamped() const override { return inner().clamped(); }
  [[nodiscard]] bool stop_is_wished() const override { return inner().stop_is_wished(); }
  [[nodiscard]] RateTally rate_tally() const override { return inner().rate_tally(); }
  [[nodiscard]] bool waits_for_peer() const override { return inner().waits_for_peer(); }
  void put_back_delivered() override { inner().put_back_delivered(); }
  void let_go() override { inner().let_go(); }
  void measure_saturation() override { inner().measure_saturation(); }
  // Lists no velocity: the velocity covers the whole gradient, so the owner of the velocity lists
  // it once for all buckets.
  void list_state(const std::string& prefix, StateVisitor& visitor) override {
    inner().list_state(prefix, visitor);
  }

 private:
  [[nodiscard]] Exchange& inner() const { return *setup_.inner; }
  [[nodiscard]] std::span<float> gradient() const { return setup_.setup.gradient; }
  [[nodiscard]] Stopwatch watch() {
    return {stats_.encode_s,
            setup_.setup.trace,
            {.step = static_cast<std::uint32_t>(step_),
             .id = setup_.setup.bucket,
             .kind = TraceKind::hook}};
  }

  bool mask_when_delivered() {
    if (is_masked_ || !inner().delivered()) return false;
    is_masked_ = true;
    const float* residual = setup_.setup.residual;
    // With a single rank or a lossless codec there is no residual. Everything is then delivered in
    // each step, so nothing is masked.
    if (residual == nullptr || setup_.mask == VelocityMask::none) return true;
    if (setup_.setup.rate != nullptr && !setup_.setup.rate->masks_velocities) return true;
    const Stopwatch watch = this->watch();
    if (setup_.mask == VelocityMask::by_residual) {
      setup_.velocity->mask(setup_.setup.offset, {residual, gradient().size()});
    } else {
      setup_.velocity->mask_delivered(setup_.setup.offset, gradient());
    }
    return true;
  }

  VelocityExchangeSetup setup_;
  std::uint64_t step_ = 0;
  bool is_masked_ = true;
};

}  // namespace

std::unique_ptr<Exchange> make_velocity_exchange(VelocityExchangeSetup setup) {
  return std::make_unique<VelocityExchange>(std::move(setup));
}

}  // namespace dp
