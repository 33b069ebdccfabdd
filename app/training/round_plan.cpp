#include "app/training/round_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "app/options/options_values.hpp"
#include "io/files/text_table.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

constexpr const char* kEntry = "round_steps";

// Returns the choice in `list` for this epoch. If the list is shorter, returns its last choice.
std::optional<std::size_t> steps_of(const std::string& list, std::size_t epoch) {
  if (list.empty()) return std::nullopt;
  const std::vector<std::string> numbers = split_at_commas(list);
  return std::stoul(numbers[std::min(epoch, numbers.size() - 1)]);
}

}  // namespace

// All ranks choose the same number. The number stays as it is in two cases: if there is only one
// rank, which exchanges nothing, and after an epoch of the codec's warm-up, because such an epoch
// says nothing about later ones.
void RoundPlan::choose(std::size_t epoch, const EpochTally& last) {
  if (!schedule_.is_auto()) return;
  const std::size_t before = std::max<std::size_t>(schedule_.steps, 1);
  std::size_t steps = before;
  std::string why;
  const auto warm_up = checked_cast<std::size_t>(plan_.options.compress_warmup);
  if (epoch > warm_up && last.exchanges > 0 && plan_.exchanges()) {
    const LoopTimes& mine = last.times;
    std::vector<double> sums = {mine.step() - mine.exposed_comm, last.exposed_s_per_exchange(),
                                last.in_flight_s_per_exchange()};
    replica_.sync().reducer().run([&](Communicator& comm) { comm.all_sum(sums); });
    const auto ranks = static_cast<double>(plan_.ranks);
    const double count = ranks * static_cast<double>(last.steps);
    const EpochOfRounds measured = {.steps = before,
                                    .compute_s = sums[0] / count,
                                    .exposed_s = sums[1] / ranks,
                                    .in_flight_s = sums[2] / ranks};
    steps = chosen_steps(measured, schedule_.most_steps);
    why = fmt::format(": training waited {} for an exchange, and computing a step takes {}",
                      format_seconds(measured.exposed_s), format_seconds(measured.compute_s));
  }
  if (epoch == 0 && plan_.exchanges()) {
    steps = replica_.sync().reducer().run(
        [&](Communicator& comm) { return comm.all_gather(first_).front(); });
    why = ": at every step, training is predicted to wait for more than a tenth of its time";
  }
  if (const auto earlier = steps_of(plan_.choices.round_steps, epoch)) {
    steps = *earlier;
    why = ", as in the earlier run";
  }
  take(chosen_.empty() ? std::to_string(steps) : fmt::format("{},{}", chosen_, steps));
  recorder_.record_round_steps(chosen_);
  if (steps == before) return;
  recorder_.say(
      fmt::format("epoch {}: ranks exchange every {}{}", epoch + 1,
                  steps == 1 ? "step"
                             : fmt::format("{} steps, and each exchange runs during the next {}",
                                           steps, steps == 2 ? "step" : std::to_string(steps - 1)),
                  why));
}

// `steps` lists the length of rounds, in steps, for each epoch up to the current one. Rounds begin
// in the first epoch with a length above 1.
void RoundPlan::take(std::string steps) {
  if (steps.empty()) return;
  chosen_ = std::move(steps);
  for (std::size_t epoch = 0; const std::string& number : split_at_commas(chosen_)) {
    schedule_.steps = std::stoul(number);
    ++epoch;
    if (schedule_.steps > 1) schedule_.from = std::min(schedule_.from, epoch);
  }
}

void RoundPlan::save(CheckpointHead& head) const {
  if (schedule_.is_auto()) head.set(kEntry, chosen_);
}

void RoundPlan::restore(const CheckpointHead& head) {
  if (schedule_.is_auto()) take(head.get(kEntry));
}

}  // namespace dp
