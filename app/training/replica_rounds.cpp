// How a replica trains in rounds (app/training/round_sync.hpp).
#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "app/training/replica.hpp"
#include "kernels/base/error.hpp"

namespace dp {

namespace {

// Lists what is the same on all ranks outside of rounds as a rank's own.
class OwnVisitor final : public StateVisitor {
 public:
  OwnVisitor(StateVisitor& visitor, std::function<bool(const StateBlock&)> is_own)
      : visitor_(visitor), is_own_(std::move(is_own)) {}

  void block(const StateBlock& block) override {
    StateBlock own = block;
    if (block.share == StateShare::replicated && is_own_(block)) {
      own.share = StateShare::own;
      own.merge = StateMerge::mean;
    }
    visitor_.block(own);
  }
  void text(const StateText& text) override { visitor_.text(text); }

 private:
  StateVisitor& visitor_;
  std::function<bool(const StateBlock&)> is_own_;
};

}  // namespace

// Recordings hold what is called when a tensor is final, so they are made anew.
void Replica::begin_rounds(std::size_t epoch, double learning_rate) {
  const bool has_rounds = rounds_ && epoch >= options_.rounds->first_epoch;
  if (has_rounds == is_in_rounds_) return;
  DP_ASSERT(has_rounds, "rounds end with epoch {}", epoch);
  is_in_rounds_ = true;
  if (options_.rounds->first_epoch > 0) {
    // By so much a gradient in the residual would have changed parameters, with all that momentum
    // makes of it later; with optimisers other than SGD, whose steps are no multiples of gradients,
    // the learning rate alone is an estimate.
    const net::OptimizerOptions& optimizer = options_.optimizer;
    const double still = net::can_leave_momentum(optimizer.kind) ? 1.0 - optimizer.momentum : 1.0;
    sync_->change_scale(static_cast<float>(learning_rate / still));
  }
  recordings_.clear();
  choose_tensor_final();
  rounds_->begin();
}

bool Replica::ends_round(std::size_t length, bool must_end, double learning_rate) {
  if (!is_in_rounds_) return false;
  sync_->reducer().note_work();
  return rounds_->ends_round(length, must_end, learning_rate);
}

StepVerdict Replica::exchange_round(std::uint64_t step, double progress) {
  clock_.round_begins();
  const std::size_t steps = rounds_->kept_steps();
  begin_exchange_of_round(step, progress);
  const StepVerdict verdict = sync_->finish_step();
  if (verdict.finite) {
    rounds_->take_sum();
    after_round(steps, progress, false);
  } else {
    rounds_->go_back();
    after_lost_round();
  }
  clock_.round_ends();
  return verdict;
}

void Replica::send_round(std::uint64_t step, double progress) {
  clock_.round_begins();
  sent_steps_ = rounds_->kept_steps();
  begin_exchange_of_round(step, progress);
  rounds_->leave();
  // The next round has begun, from this rank's own parameters.
  if (lookahead_) lookahead_->reset();
  is_round_under_way_ = true;
  clock_.round_ends();
}

StepVerdict Replica::take_round(double progress) {
  clock_.round_begins();
  const StepVerdict verdict = sync_->finish_step();
  is_round_under_way_ = false;
  if (verdict.finite) {
    rounds_->take_late_sum();
    after_round(sent_steps_, progress, true);
  } else {
    rounds_->drop_own_steps();
    after_lost_round();
  }
  clock_.round_ends();
  return verdict;
}

void Replica::begin_exchange_of_round(std::uint64_t step, double progress) {
  DP_ASSERT(!is_round_under_way_, "the exchange of round {} is under way", rounds_->number());
  // Lost or not, the next round goes on from here.
  const auto ratio = static_cast<float>(rounds_->take_rate_ratio());
  if (ratio < 1.0f) sync_->scale_residual(ratio);
  sync_->keep_residual();
  const auto steps = static_cast<double>(rounds_->steps());
  sync_->set_hidden_share(std::min(1.0, static_cast<double>(options_.rounds->delay) / steps));
  // Momentum carries a gradient into the later rounds, each of which gets momentum^steps of what
  // the round before it got: 1 / (1 - momentum^steps) in all.
  const double later = std::pow(net::momentum_of(options_.optimizer), steps);
  sync_->set_exchanges_of_gradient(1.0 / std::max(1.0 - later, 1e-3));
  rounds_->write_difference();
  sync_->begin_step(step, progress, rounds_->number());
  sync_->all_final();
}

// The parameters are the common ones, which the exponential average sees. With a delay, a rank's
// own steps since are added then.
void Replica::after_round(std::size_t steps, double progress, bool is_late) {
  // A step of the round counts as one of every-step training.
  for (std::size_t s = 0; ema_ && s < steps; ++s) ema_->update(progress);
  if (is_late) rounds_->add_own_steps();
  if (lookahead_) lookahead_->reset();
}

// What the round has changed is lost in all that exchanges and averages keep, too.
void Replica::after_lost_round() {
  sync_->bring_back_residual();
  if (lookahead_) lookahead_->reset();
}

void Replica::end_round_of_others(Communicator& comm, std::size_t counts_for) {
  if (!is_in_rounds_ || rounds_->steps() == 0) return;
  const auto all = comm.all_sum(static_cast<std::int64_t>(counts_for));
  const double share = static_cast<double>(counts_for) / static_cast<double>(all);
  const std::size_t steps = rounds_->kept_steps();
  rounds_->write_difference(share * static_cast<double>(options_.rounds->ranks));
  std::vector<float> values = to_host(device_, {exchanged_.data(), exchanged_.size()});
  std::vector<double> sums(values.begin(), values.end());
  comm.all_sum(sums);
  std::ranges::transform(sums, values.begin(), [](double sum) { return static_cast<float>(sum); });
  const bool is_finite =
      std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
  if (!is_finite) {
    rounds_->go_back();
    if (lookahead_) lookahead_->reset();
    return;
  }
  device_.upload(exchanged_.data(), values.data(), exchanged_.size_bytes());
  rounds_->take_sum();
  constexpr double kAnyProgress = 0.0;  // an exponential average does not depend on it
  for (std::size_t s = 0; ema_ && s < steps; ++s) ema_->update(kAnyProgress);
  if (lookahead_) lookahead_->reset();
}

void Replica::list_state(StateVisitor& visitor) {
  DP_ASSERT(!is_round_under_way_, "the exchange of a round is under way");
  const std::span<const std::byte> values = std::as_bytes(network_.parameters().values());
  OwnVisitor own(visitor, [&](const StateBlock& block) {
    const bool is_parameter =
        block.bytes.data() >= values.data() && block.bytes.data() < values.data() + values.size();
    return is_in_rounds_ && (is_parameter || block.name.starts_with("optimizer/") ||
                             block.name.starts_with("lookahead/"));
  });
  if (is_in_rounds_) rounds_->list_state(visitor);
  network_.parameters().list_state(own);
  optimizer_->list_state(own);
  if (lookahead_) lookahead_->list_state(own);
  if (ema_) ema_->list_state(visitor);
  sync_->list_state(visitor);
  visitor.text({.name = "algorithms",
                .get = [this] { return device_.tuning().export_text(); },
                .set = [this](const std::string& text) { device_.tuning().import_text(text); }});
}

}  // namespace dp
