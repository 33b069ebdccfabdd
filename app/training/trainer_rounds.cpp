// What the training loop does after a step of a round (app/training/round_sync.hpp).
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/options/options_values.hpp"
#include "app/options/round_schedule.hpp"
#include "app/training/not_finite.hpp"
#include "app/training/trainer.hpp"
#include "io/files/text_table.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

// What an earlier run has chosen for that epoch; behind its last one, as for that.
std::optional<std::size_t> round_steps_of(const std::string& list, std::size_t epoch) {
  if (list.empty()) return std::nullopt;
  const std::vector<std::string> numbers = split_at_commas(list);
  return std::stoul(numbers[std::min(epoch, numbers.size() - 1)]);
}

}  // namespace

// With --sync-every auto: how often ranks exchange in this epoch, from what the one before it has
// measured, or as in an earlier run. The same on all ranks. One rank alone, and a codec's warm-up,
// measure nothing that counts.
void Trainer::choose_rounds(std::size_t epoch) {
  RoundSchedule& rounds = run_.rounds;
  if (!rounds.is_auto()) return;
  const std::size_t before = std::max<std::size_t>(rounds.steps, 1);
  std::size_t steps = before;
  std::string why;
  const auto warm_up = checked_cast<std::size_t>(options_.compress_warmup);
  if (epoch > warm_up && tally_.exchanges > 0 && run_.exchanges()) {
    const LoopTimes& mine = tally_.times;
    std::vector<double> sums = {mine.step() - mine.exposed_comm, mine.backward, mine.exposed_comm};
    replica_.sync().reducer().run([&](Communicator& comm) { comm.all_sum(sums); });
    const double ranks = run_.comm.size();
    const double count = ranks * static_cast<double>(tally_.steps);
    const EpochOfRounds last = {
        .compute_s = sums[0] / count,
        .backward_s = sums[1] / count,
        .exposed_s =
            sums[2] / (ranks * static_cast<double>(std::max<std::int64_t>(tally_.exchanges, 1))),
        .is_in_rounds = rounds.has_rounds_in(epoch - 1)};
    steps = chosen_steps(last, rounds.most_steps);
    why = fmt::format(": an exchange kept training waiting for {}, and a step computes for {}",
                      format_seconds(last.exposed_s), format_seconds(last.compute_s));
  }
  if (const auto earlier = round_steps_of(run_.choices.round_steps, epoch)) {
    steps = *earlier;
    why = ", as in the earlier run";
  }
  take_round_steps(round_steps_.empty() ? std::to_string(steps)
                                        : fmt::format("{},{}", round_steps_, steps));
  recorder_.record_round_steps(round_steps_);
  if (steps == before) return;
  recorder_.say(fmt::format("epoch {}: ranks exchange every {}{}", epoch + 1,
                            steps == 1 ? "step" : fmt::format("{} steps", steps), why));
}

// The last of the numbers counts, and rounds begin with the first one that is not 1.
void Trainer::take_round_steps(std::string steps) {
  if (steps.empty()) return;
  round_steps_ = std::move(steps);
  RoundSchedule& rounds = run_.rounds;
  for (std::size_t epoch = 0; const std::string& number : split_at_commas(round_steps_)) {
    rounds.steps = std::stoul(number);
    ++epoch;
    if (rounds.steps > 1) rounds.from = std::min(rounds.from, epoch);
  }
  replica_.set_first_epoch_of_rounds(rounds.from - 1);
}

// The exchange of a round that ends here, and the sum of an earlier one that is to be applied here.
// At the end of an epoch nothing stays under way.
StepVerdict Trainer::end_step_of_round(bool is_last) {
  const double progress = place_in_run(1) / all_steps();
  const bool ends = replica_.ends_round(run_.rounds.steps, is_last, tally_.learning_rate);
  StepVerdict verdict;
  if (replica_.is_sum_due(ends)) {
    const std::size_t steps = replica_.steps_of_sent_round() + replica_.kept_steps_of_round();
    verdict = replica_.take_round(progress);
    judge_round(verdict, steps, true);
  }
  if (!ends) return verdict;
  sample_round();
  // A sum that would come with the epoch's last exchange, or after it, is waited for.
  const std::size_t left = tally_.steps_of_epoch - tally_.steps - 1;
  if (options_.sync_delay > 0 && left > static_cast<std::size_t>(options_.sync_delay)) {
    replica_.send_round(global_step_, progress);
    skipped_in_sent_round_ = std::exchange(skipped_in_round_, 0);
    return verdict;
  }
  const std::size_t steps = replica_.kept_steps_of_round();
  const bool stop = verdict.stop;
  verdict = replica_.exchange_round(global_step_, progress);
  verdict.stop |= stop;
  judge_round(verdict, steps, false);
  return verdict;
}

// Once per epoch the sums are compared with the exact ones.
void Trainer::sample_round() {
  const std::size_t middle = tally_.steps_of_epoch / 2, steps = replica_.steps_of_round();
  const bool has_middle = tally_.steps >= middle && tally_.steps < middle + steps;
  if (has_middle && run_.exchanges()) replica_.sync().reducer().sample_error();
}

// All ranks have the same verdict on it, and have gone back to the round's start if it is bad.
// `steps`: those whose changes are lost then; a rank may have skipped some of them itself.
void Trainer::judge_round(const StepVerdict& verdict, std::size_t steps, bool is_late) {
  tally_.has_exchanged = true;
  if (run_.exchanges()) ++tally_.exchanges;
  // With a delay, what this rank has skipped since it sent belongs to the next round.
  const std::int64_t skipped = skipped_in_sent_round_ + skipped_in_round_;
  skipped_in_sent_round_ = 0;
  if (verdict.finite) {
    if (!is_late) skipped_in_round_ = 0;
    lost_rounds_in_a_row_ = 0;
    return;
  }
  skipped_in_round_ = 0;
  recorder_.note_lost_round(global_step_, describe_not_finite(run_, verdict));
  tally_.skipped_steps += std::max<std::int64_t>(0, static_cast<std::int64_t>(steps) - skipped);
  if (++lost_rounds_in_a_row_ < kMostSkippedSteps) return;
  recorder_.gather_steps();
  throw AgreedError(ErrorKind::data,
                    fmt::format("what the parameters changed by was not finite in {} rounds in a "
                                "row, up to step {}: try a smaller --lr or --outer-lr, or "
                                "--clip-norm",
                                kMostSkippedSteps, global_step_));
}

}  // namespace dp
