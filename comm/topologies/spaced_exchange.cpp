#include "comm/topologies/spaced_exchange.hpp"

#include <algorithm>
#include <limits>
#include <span>
#include <string>
#include <utility>

#include "kernels/base/error.hpp"
#include "kernels/codecs/codec.hpp"
#include "kernels/codecs/segment_memory.hpp"

namespace dp {
namespace {

class SpacedExchange final : public Exchange {
 public:
  SpacedExchange(const ExchangeSetup& setup, std::unique_ptr<Exchange> inner, std::uint64_t every)
      : gradient_(setup.gradient),
        residual_(setup.residual),
        memory_(setup.codec->memory()),
        inner_(std::move(inner)),
        every_(every) {
    DP_ASSERT(residual_ != nullptr && every > 0,
              "bucket {} needs a residual, and an interval above 0 instead of {} steps",
              setup.bucket, every);
  }

  [[nodiscard]] BufferNeeds needs() const override { return inner_->needs(); }
  void post_receives(BufferSet& buffers, std::uint64_t step) override {
    is_due_ = steps_++ % every_ == 0;
    is_gathered_ = false;
    if (is_due_) inner_->post_receives(buffers, step);
  }
  void prepare() override {
    if (is_due_) inner_->prepare();
  }
  void start() override {
    if (!is_due_) return gather();
    move_residual_into_gradient();
    inner_->start();
  }
  bool progress() override {
    if (!is_due_) return false;
    const bool has_moved = inner_->progress();
    take_over_stats(*inner_);
    return has_moved;
  }
  [[nodiscard]] bool delivered() const override {
    return is_due_ ? inner_->delivered() : is_gathered_;
  }
  [[nodiscard]] bool done() const override { return is_due_ ? inner_->done() : is_gathered_; }
  [[nodiscard]] bool finite() const override { return !is_due_ || inner_->finite(); }
  [[nodiscard]] std::size_t first_not_finite() const override {
    return is_due_ ? inner_->first_not_finite() : kAllFinite;
  }
  [[nodiscard]] ClampedValues clamped() const override {
    return is_due_ ? inner_->clamped() : ClampedValues{};
  }
  [[nodiscard]] bool stop_is_wished() const override { return is_due_ && inner_->stop_is_wished(); }
  [[nodiscard]] RateTally rate_tally() const override {
    return is_due_ ? inner_->rate_tally() : RateTally{};
  }
  [[nodiscard]] bool waits_for_peer() const override { return is_due_ && inner_->waits_for_peer(); }
  void put_back_delivered() override {
    if (is_due_) inner_->put_back_delivered();
  }
  void let_go() override {
    if (is_due_) inner_->let_go();
  }
  void measure_saturation() override { inner_->measure_saturation(); }
  void list_state(const std::string& prefix, StateVisitor& visitor) override {
    visitor.value(prefix + "steps", steps_);
    visitor.value(prefix + "was_not_finite", was_not_finite_, StateShare::own, StateMerge::first);
    inner_->list_state(prefix, visitor);
  }

 private:
  [[nodiscard]] bool has_finite_values() const {
    return memory_.is_finite(gradient_.data(), gradient_.size());
  }

  // The residual is added here, because the inner exchange would add it only on ranks that encode.
  void move_residual_into_gradient() {
    if (std::exchange(was_not_finite_, 0) != 0) {
      memory_.fill(std::numeric_limits<float>::quiet_NaN(), gradient_.data(), 1);
    }
    if (!has_finite_values()) return;
    memory_.add(residual_, gradient_.data(), gradient_.size());
    memory_.fill(0.0f, residual_, gradient_.size());
  }

  void gather() {
    if (has_finite_values()) {
      memory_.add(gradient_.data(), residual_, gradient_.size());
    } else {
      was_not_finite_ = 1;
    }
    memory_.fill(0.0f, gradient_.data(), gradient_.size());
    is_gathered_ = true;
  }

  std::span<float> gradient_;
  float* residual_;
  const SegmentMemory& memory_;
  std::unique_ptr<Exchange> inner_;
  std::uint64_t every_;
  std::uint64_t steps_ = 0;
  std::uint64_t was_not_finite_ = 0;  // 1: in a step since the last exchange
  bool is_due_ = true, is_gathered_ = false;
};

}  // namespace

std::unique_ptr<Exchange> make_spaced_exchange(const ExchangeSetup& setup,
                                               std::unique_ptr<Exchange> inner,
                                               std::uint64_t every) {
  return std::make_unique<SpacedExchange>(setup, std::move(inner), every);
}

}  // namespace dp
