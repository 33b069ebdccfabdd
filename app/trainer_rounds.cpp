// What the training loop does after a step of a round (app/round_sync.hpp).
#include <fmt/format.h>

#include "app/not_finite.hpp"
#include "app/trainer.hpp"
#include "kernels/base/error.hpp"

namespace dp {

// The exchange of a round that ends here, and the sum of an earlier one that is to be applied here.
// At the end of an epoch nothing stays under way.
StepVerdict Trainer::end_step_of_round(bool is_last) {
  const double progress = place_in_run(1) / all_steps();
  const bool ends = replica_.ends_round(run_.rounds.steps_at(tally_.learning_rate), is_last);
  StepVerdict verdict;
  if (replica_.is_sum_due(ends)) {
    verdict = replica_.take_round(progress);
    judge_round(verdict, replica_.steps_of_sent_round() + replica_.steps_of_round());
  }
  if (!ends) return verdict;
  sample_round();
  if (options_.sync_delay > 0 && !is_last) {
    replica_.send_round(global_step_, progress);
    return verdict;
  }
  const std::size_t steps = replica_.steps_of_round();
  const bool stop = verdict.stop;
  verdict = replica_.exchange_round(global_step_, progress);
  verdict.stop |= stop;
  judge_round(verdict, steps);
  return verdict;
}

// Once per epoch the sums are compared with the exact ones.
void Trainer::sample_round() {
  const std::size_t middle = tally_.steps_of_epoch / 2, steps = replica_.steps_of_round();
  const bool has_middle = tally_.steps >= middle && tally_.steps < middle + steps;
  if (has_middle && run_.exchanges()) replica_.sync().reducer().sample_error();
}

// All ranks have the same verdict on it, and have gone back to the round's start if it is bad.
void Trainer::judge_round(const StepVerdict& verdict, std::size_t steps) {
  tally_.has_exchanged = true;
  if (run_.exchanges()) ++tally_.exchanges;
  if (verdict.finite) {
    lost_rounds_in_a_row_ = 0;
    return;
  }
  recorder_.note_lost_round(global_step_, describe_not_finite(run_, verdict));
  tally_.skipped_steps += static_cast<std::int64_t>(steps);
  if (++lost_rounds_in_a_row_ < kMostSkippedSteps) return;
  throw AgreedError(ErrorKind::data,
                    fmt::format("what the parameters changed by was not finite in {} rounds in a "
                                "row, up to step {}: try a smaller --lr or --outer-lr, or "
                                "--clip-norm",
                                kMostSkippedSteps, global_step_));
}

}  // namespace dp
