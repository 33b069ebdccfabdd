// The rows of --log-steps. A row begins after its step. It ends when the costs of the step's
// exchange are known, which is after the next step has begun. Ended rows wait until their losses
// are summed over the ranks. Summing holds up training for several latencies of the link. It is
// therefore done about once a second, or less often if it takes more than 10 ms.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "app/output/epoch_tally.hpp"
#include "app/output/times.hpp"
#include "comm/reducer/reducer.hpp"
#include "io/log/run_log_rows.hpp"

namespace dp {

class StepRows {
 public:
  // every: the log has a row for each multiple of this many steps of the run; 0: no rows.
  StepRows(std::int64_t every, int ranks)
      : every_(static_cast<std::uint64_t>(every)), ranks_(ranks) {}

  // Whether the log gets a row after this many steps of the run.
  [[nodiscard]] bool wants(std::uint64_t global_step) const {
    return every_ > 0 && global_step % every_ == 0;
  }
  void begin(const EpochTally& tally, const LoopTimes& times, std::uint64_t global_step);
  // Ends the row that was begun last, if it has not ended.
  void end(const CommCost& comm);
  // Whether it is time to gather.
  [[nodiscard]] bool are_due() const { return rows_.size() + (begun_ ? 1 : 0) >= rows_at_once_; }
  // Collective: returns the ended rows, with the losses of all ranks.
  [[nodiscard]] std::vector<StepRow> gather(Reducer& reducer);

 private:
  std::uint64_t every_;
  int ranks_;
  std::optional<StepRow> begun_;
  LoopTimes begun_times_;
  std::vector<StepRow> rows_;
  std::vector<double> sums_;  // this rank's loss and samples, by row
  std::size_t rows_at_once_ = 1;
  double gathering_s_ = 0.0;  // duration of the last gathering
};

}  // namespace dp
