#include "app/output/step_rows.hpp"

#include <algorithm>
#include <utility>

#include "kernels/base/lap_clock.hpp"

namespace dp {

void StepRows::begin(const EpochTally& tally, const LoopTimes& times, std::uint64_t global_step) {
  sums_.push_back(tally.step_loss.loss);
  sums_.push_back(static_cast<double>(tally.step_loss.samples));
  begun_times_ = times;
  begun_ = {.step = static_cast<std::int64_t>(global_step),
            .epoch = static_cast<std::int64_t>(tally.epoch),
            .train_loss = 0.0,  // of all ranks: gather()
            .step_s = times.step(),
            .learning_rate = tally.learning_rate,
            .planned_bits = tally.rate.planned_bits,
            .partial_bits = tally.rate.bits[0],
            .total_bits = tally.rate.bits[1],
            .partial_step = tally.rate.next_steps[0],
            .total_step = tally.rate.next_steps[1],
            .link_bytes_per_s = tally.rate.link_bytes_per_s,
            .hidden_bits = tally.rate.hidden_bits,
            .relative_error = tally.rate.relative_error,
            .residual_growth = tally.rate.residual_growth,
            .guard_factor = tally.rate.guard_factor,
            .exchanged = tally.has_exchanged && ranks_ > 1 ? 1 : 0,
            .wished_bits = tally.rate.wished_bits,
            .binding_bucket = tally.rate.binding_number()};
}

void StepRows::end(const CommCost& comm) {
  if (!begun_) return;
  set_costs(*begun_, begun_times_.as_parts_of(begun_times_.step(), comm.comm_s), comm);
  rows_.push_back(*std::exchange(begun_, std::nullopt));
}

std::vector<StepRow> StepRows::gather(Reducer& reducer) {
  if (rows_.empty()) return {};
  // The next rows are gathered after a second, or later if gathering would take more than a
  // hundredth of the time. All ranks compute the same number of rows, because they use the same
  // sums. With a single rank the number stays as it is, because gathering does not wait.
  constexpr double kEvery_s = 1.0, kShare = 0.01;
  constexpr double kMostRows = 1000.0;
  double time_s = 0.0;
  for (const StepRow& row : rows_) time_s += row.step_s * static_cast<double>(every_);
  sums_.insert(sums_.end(), {time_s, gathering_s_});
  LapClock clock;
  reducer.run([&](Communicator& comm) { comm.all_sum(sums_); });
  gathering_s_ = clock.lap();
  const std::size_t rows = rows_.size();
  if (const auto ranks = static_cast<double>(ranks_); ranks > 1.0) {
    const double row_s = sums_[2 * rows] / (static_cast<double>(rows) * ranks);
    const double every_s = std::max(kEvery_s, sums_[2 * rows + 1] / (kShare * ranks));
    rows_at_once_ = static_cast<std::size_t>(
        std::clamp(every_s / std::max(row_s, every_s / kMostRows), 1.0, kMostRows));
  }
  for (std::size_t i = 0; i < rows; ++i) rows_[i].train_loss = sums_[2 * i] / sums_[2 * i + 1];
  sums_.clear();
  return std::exchange(rows_, {});
}

}  // namespace dp
