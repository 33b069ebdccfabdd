#include "app/training/replica/round_policy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "kernels/base/error.hpp"

namespace dp {

RoundPolicy::RoundPolicy(SyncParts& parts, const RoundOptions& options,
                         const net::OptimizerOptions& optimizer)
    : OwnSteps(parts),
      options_(options),
      optimizer_(optimizer),
      rounds_(parts.device, parts.network.parameters().values(), parts.exchanged, options.ranks,
              options.outer, options.has_delay()) {}

void RoundPolicy::set_length(std::size_t steps) {
  length_ = steps;
  if (options_.has_longest_delay) options_.delay = steps - 1;
}

void RoundPolicy::begin(double learning_rate, bool has_gradients) {
  if (has_gradients) {
    // The residual still holds gradients, but a round exchanges changes of parameters. The
    // gradients are therefore multiplied by the factor with which they would have changed the
    // parameters, including the effect of momentum in later steps. Updates of optimisers other than
    // SGD are not multiples of the gradient; for these the learning rate alone is an estimate.
    const double still = net::can_leave_momentum(optimizer_.kind) ? 1.0 - optimizer_.momentum : 1.0;
    sync().reducer().scale_residual(static_cast<float>(learning_rate / still));
    if (RateGovernor* const rate = sync().governor()) rate->start_anew(sync().loss_scale());
  }
  rounds_.begin();
}

// ---- a step -------------------------------------------------------------------------------------

// Only waits for the device, because a step's gradient is not exchanged.
StepVerdict RoundPolicy::await_sums(const FollowUp::Action*) {
  parts_.device.synchronize();
  return {};
}

bool RoundPolicy::judge(const StepVerdict& verdict, const LossSums& loss) {
  const bool is_finite = OwnSteps::judge(verdict, loss);
  if (!is_finite) ++skipped_;
  return is_finite;
}

void RoundPolicy::update_averages(double progress) { parts_.averages.update_lookahead(progress); }

// Begins the exchange of a round that ends here. Before that, applies the sum of an earlier round
// if this sum is due. At the end of an epoch no exchange stays under way.
SyncResult RoundPolicy::end_step(const StepVerdict&, const StepPlace& place) {
  sync().reducer().note_work();
  const bool ends = rounds_.ends_round(length_, place.is_last(), place.learning_rate);
  SyncResult result;
  if (is_sum_due(ends)) {
    const std::size_t steps = sent_steps_ + rounds_.kept_steps();
    note(take_late(place), steps, true, result);
  }
  if (!ends) return result;
  sample_error(place);
  // The exchange gets a delay only if its sum would come before the epoch's last exchange.
  // Otherwise all ranks wait for it.
  if (options_.delay > 0 && place.left() > options_.delay) {
    send(place);
    skipped_in_sent_ = std::exchange(skipped_, 0);
    return result;
  }
  const std::size_t steps = rounds_.kept_steps();
  note(exchange(place), steps, false, result);
  return result;
}

// A sum is applied after a fixed number of steps, so that the bits of the parameters do not depend
// on timing. If the next exchange comes earlier, the sum is applied before it.
bool RoundPolicy::is_sum_due(bool ends_round) const {
  return is_under_way_ && (ends_round || rounds_.steps() >= options_.delay);
}

// Samples the error in the round that contains the middle step of the epoch.
void RoundPolicy::sample_error(const StepPlace& place) {
  const std::size_t middle = place.of_epoch / 2;
  const bool has_middle = place.in_epoch >= middle && place.in_epoch < middle + rounds_.steps();
  if (has_middle && options_.ranks > 1) sync().reducer().sample_error();
}

// Records an exchange. All ranks have the same verdict. If the verdict is not finite, all ranks
// have gone back to the common parameters. steps: the number of steps whose changes are lost in
// that case, including steps that this rank has skipped.
void RoundPolicy::note(const StepVerdict& verdict, std::size_t steps, bool is_late,
                       SyncResult& result) {
  result.stop = result.stop || verdict.stop;
  result.has_exchanged = true;
  ++result.exchanges;
  // If the exchange had a delay, skipped_ counts the steps that this rank has skipped since it sent
  // its changes. These steps belong to the next round, so skipped_ is kept if the exchange
  // succeeds.
  const std::int64_t skipped = std::exchange(skipped_in_sent_, 0) + skipped_;
  if (verdict.finite) {
    if (!is_late) skipped_ = 0;
    lost_in_a_row_ = 0;
    return;
  }
  skipped_ = 0;
  result.lost.push_back(
      {.verdict = verdict,
       .steps = std::max<std::int64_t>(0, static_cast<std::int64_t>(steps) - skipped),
       .in_a_row = static_cast<int>(++lost_in_a_row_)});
}

// ---- an exchange --------------------------------------------------------------------------------

void RoundPolicy::begin_exchange(const StepPlace& place) {
  DP_ASSERT(!is_under_way_, "the exchange of round {} has not ended", rounds_.number());
  // The ratio of learning rates is taken here even if the exchange is lost later, because the next
  // round begins here.
  const auto ratio = static_cast<float>(rounds_.take_rate_ratio());
  Reducer& reducer = sync().reducer();
  if (ratio < 1.0f) reducer.scale_residual(ratio);
  reducer.run([](Communicator&) {});  // waits until values of the last exchange are forwarded
  reducer.state().keep_residual();
  if (RateGovernor* const rate = sync().governor()) {
    const auto steps = static_cast<double>(rounds_.steps());
    rate->set_round({.number = rounds_.number(),
                     .hidden_share = std::min(1.0, static_cast<double>(options_.delay) / steps),
                     .value_ratio = static_cast<double>(ratio)});
    // Momentum applies a gradient again in later rounds. From one round to the next, the gradient's
    // weight falls by the factor momentum^steps. The weights of all rounds add up to 1 / (1 -
    // momentum^steps).
    const double later = std::pow(net::momentum_of(optimizer_), steps);
    rate->set_exchanges_of_gradient(1.0 / std::max(1.0 - later, 1e-3));
  }
  rounds_.write_difference();
  sync().begin_step(place.step, place.progress);
  sync().all_final();
}

// Exchanges the changes of the round. Afterwards all ranks have the same parameters. If the verdict
// is not finite, all ranks go back to the parameters with which the round began. The residuals get
// back the values that they had when begin_exchange() had scaled them.
StepVerdict RoundPolicy::exchange(const StepPlace& place) {
  parts_.clock.exchange_begins();
  const std::size_t steps = rounds_.kept_steps();
  begin_exchange(place);
  const StepVerdict verdict = sync().finish_step();
  if (verdict.finite) {
    rounds_.take_sum();
    take_common(steps, place.progress, false);
  } else {
    rounds_.go_back();
    forget_lost();
  }
  parts_.clock.exchange_ends();
  return verdict;
}

// With a delay, this function is called instead of exchange(). It begins the exchange, and the next
// round continues from this rank's own parameters.
void RoundPolicy::send(const StepPlace& place) {
  parts_.clock.exchange_begins();
  sent_steps_ = rounds_.kept_steps();
  begin_exchange(place);
  rounds_.leave();
  parts_.averages.reset_lookahead();
  is_under_way_ = true;
  parts_.clock.exchange_ends();
}

// Waits for the sum, if it has not come yet, and applies it to the current parameters. If the
// verdict is not finite, all ranks go back to the common parameters, and the steps since send() are
// lost, too.
StepVerdict RoundPolicy::take_late(const StepPlace& place) {
  parts_.clock.exchange_begins();
  const StepVerdict verdict = sync().finish_step();
  is_under_way_ = false;
  if (verdict.finite) {
    rounds_.take_late_sum();
    take_common(sent_steps_, place.progress, true);
  } else {
    rounds_.drop_own_steps();
    forget_lost();
  }
  parts_.clock.exchange_ends();
  return verdict;
}

// Updates the averages of parameters after the exchange has made the parameters equal on all ranks.
// The exponential average is updated once for each step of the round, as it would be with an
// exchange at every step. With a delay, the changes that this rank has made since send() are added
// afterwards.
void RoundPolicy::take_common(std::size_t steps, double progress, bool is_late) {
  for (std::size_t s = 0; s < steps; ++s) parts_.averages.update_ema(progress);
  if (is_late) rounds_.add_own_steps();
  parts_.averages.reset_lookahead();
}

// Restores the residual from before the lost exchange, and restarts the lookahead average.
void RoundPolicy::forget_lost() {
  sync().reducer().state().bring_back_residual();
  parts_.averages.reset_lookahead();
}

// ---- between steps ------------------------------------------------------------------------------

ExchangeWindow RoundPolicy::window() const {
  return {.when = fmt::format("in {:.0f} % of a round's time", 100 * AutoRate::kSlack),
          .is_by_bucket = false,
          .remedy = "longer rounds or a delay= (--sync-every)",
          .may_send_less = false};
}

void RoundPolicy::swap_evaluated() {
  if (parts_.averages.has_ema()) {
    parts_.averages.swap();
  } else {
    rounds_.swap_common();
  }
}

// Ends the running round with an exchange without codecs.
void RoundPolicy::merge_ranks(Communicator& comm, std::size_t counts_for) {
  skipped_ = 0;
  if (rounds_.steps() == 0) return;
  const auto all = comm.all_sum(static_cast<std::int64_t>(counts_for));
  const double share = static_cast<double>(counts_for) / static_cast<double>(all);
  const std::size_t steps = rounds_.kept_steps();
  rounds_.write_difference(share * static_cast<double>(options_.ranks));
  const std::span<float> exchanged = parts_.exchanged;
  std::vector<float> values = to_host(parts_.device, {exchanged.data(), exchanged.size()});
  std::vector<double> sums(values.begin(), values.end());
  comm.all_sum(sums);
  std::ranges::transform(sums, values.begin(), [](double sum) { return static_cast<float>(sum); });
  const bool is_finite =
      std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
  if (!is_finite) {
    rounds_.go_back();
    parts_.averages.reset_lookahead();
    return;
  }
  parts_.device.upload(exchanged.data(), values.data(), exchanged.size_bytes());
  rounds_.take_sum();
  constexpr double kAnyProgress = 0.0;  // an exponential average does not depend on progress
  take_common(steps, kAnyProgress, false);
}

void RoundPolicy::list_state(StateVisitor& visitor) {
  DP_ASSERT(!is_under_way_, "the exchange of a round has not ended");
  rounds_.list_state(visitor);
}

void RoundPolicy::list_judgement(StateVisitor& visitor, StateShare share) {
  visitor.value("run/lost_rounds_in_a_row", lost_in_a_row_);
  visitor.value("run/skipped_in_round", skipped_, share, StateMerge::first);
}

}  // namespace dp
