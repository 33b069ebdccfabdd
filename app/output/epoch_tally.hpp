// A rank's counts in the running epoch, and the result of an evaluation.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "app/output/exchange_window.hpp"
#include "app/output/times.hpp"
#include "comm/rate/rate_control.hpp"
#include "comm/reducer/delivery_gaps.hpp"
#include "kernels/base/state.hpp"
#include "kernels/softmax_cross_entropy.hpp"

namespace dp {

// The running epoch on this rank.
struct EpochTally {
  std::size_t epoch = 0;
  std::size_t steps = 0;
  std::int64_t samples = 0;  // of all ranks
  LossSums loss = {};        // of this rank, without skipped steps
  LossSums step_loss = {};   // of the rank's last step
  LoopTimes times = {};
  double checkpoint_s = 0;   // time that checkpoints have held up training
  double earlier_s = 0;      // the epoch's time before the run was resumed
  double learning_rate = 0;  // of the last step
  RateReport rate = {};      // of the last step
  // The sum of rate.mean_bits() (bits per value) over the steps in which it is finite, and the
  // number of these steps.
  double bits_sum = 0;
  std::int64_t rated_steps = 0;
  std::int64_t skipped_steps = 0;      // by all ranks together, or by this rank alone
  std::int64_t own_skipped_steps = 0;  // the ones that this rank alone skipped
  bool is_judged_alone = false;        // each rank skips its own steps
  ExchangeWindow window = {};          // time in which an exchange holds nobody up
  bool has_exchanged = false;          // in the last step, or after it
  bool is_under_way = false;           // an exchange is under way after the last step
  std::int64_t exchanges = 0;
  // The waiting for exchanges, and the number of exchanges, before the steps of the epoch's last
  // round. 0 in an epoch of one round.
  double inner_exposed_s = 0;
  std::int64_t inner_exchanges = 0;
  double in_flight_s = 0;  // time with a bucket in flight; known when the epoch is over
  std::uint64_t replica_hash = 0;
  std::size_t global_batch = 0, steps_of_epoch = 0;
  std::vector<DeliveryGaps::Gap> gaps = {};  // filled when the epoch is over

  // Whether the steps that are left are those of the epoch's last round. round_steps: the length of
  // a round; 0: an exchange at every step.
  [[nodiscard]] bool begins_last_round(std::size_t round_steps) const {
    return steps + std::max<std::size_t>(round_steps, 1) == steps_of_epoch;
  }
  // How long training waited for an exchange, on average. Without the last round, if there is
  // another one: at the end of an epoch, training waits for the last exchanges, however long rounds
  // are.
  [[nodiscard]] double exposed_s_per_exchange() const {
    if (inner_exchanges > 0) return inner_exposed_s / static_cast<double>(inner_exchanges);
    return times.exposed_comm / static_cast<double>(std::max<std::int64_t>(exchanges, 1));
  }
  [[nodiscard]] double in_flight_s_per_exchange() const {
    return in_flight_s / static_cast<double>(std::max<std::int64_t>(exchanges, 1));
  }

  // NaN if the bits per value were not finite in any step.
  [[nodiscard]] double bits_per_value() const {
    return rated_steps == 0 ? RateReport::kNothing : bits_sum / static_cast<double>(rated_steps);
  }
  // `judged` tells how the counts of skipped steps are stored: `replicated` if all ranks skip the
  // same steps.
  void list_state(StateVisitor& visitor, StateShare judged = StateShare::replicated);
};

// Sums over all ranks.
struct EvaluationResult {
  double loss = 0;
  std::int64_t correct = 0, samples = 0;
  std::int64_t stop_wishes = 0;  // ranks that ask to stop after this evaluation

  [[nodiscard]] double mean_loss() const { return loss / static_cast<double>(samples); }
  [[nodiscard]] double accuracy() const {
    return static_cast<double>(correct) / static_cast<double>(samples);
  }
};

}  // namespace dp
