// The costs of epochs: this rank's costs of the running epoch so far, and the rows of the finished
// epochs.
//
// Methods marked "collective" gather numbers through the reducer's thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "app/output/epoch_tally.hpp"
#include "app/output/run_description.hpp"
#include "app/output/run_sink.hpp"
#include "comm/reducer/reducer.hpp"
#include "kernels/base/state.hpp"

namespace dp {

class EpochAccount {
 public:
  explicit EpochAccount(const RunDescription& run);

  // From now on numbers are gathered through this reducer.
  void attach(Reducer& reducer);

  // ask_costs() asks the reducer for its costs since the last question. take_asked() waits for the
  // answer and returns it, or zeros if nothing was asked.
  void ask_costs();
  CommCost take_asked();
  // Adds what the reducer has measured since the last question.
  void collect();
  // The running epoch's time with a bucket in flight, as far as it has been collected.
  [[nodiscard]] double comm_s() const { return comm_.total.comm_s; }

  // Collective, after collect(): ends the epoch. Returns its rows on rank 0, and nothing on the
  // other ranks.
  [[nodiscard]] std::optional<EpochRows> end_epoch(const EpochTally& tally, double epoch_s,
                                                   const EvaluationResult& result, double eval_s);
  // Collective. Only rank 0 makes an epoch's row and has the log. In a run with checkpoints, this
  // function gives the row to the other ranks, too, in case rank 0's disk is lost.
  void share_epoch();
  // Collective, after collect().
  void list_state(StateVisitor& visitor);

  // By bucket, the bytes that this rank sends in a step; nothing if they depend on the values.
  [[nodiscard]] const std::vector<std::optional<std::uint64_t>>& expected_bytes() const {
    return expected_bytes_;
  }
  [[nodiscard]] const std::vector<EpochRow>& epochs() const { return epochs_; }
  // By epoch, the bytes that all ranks of a ring would send without compression and headers.
  [[nodiscard]] std::vector<double> fp32_bytes() const;
  // Results of the last epoch; `tally` is its tally.
  [[nodiscard]] EpochEnd last_epoch(const EpochTally& tally, std::uint64_t global_step) const;
  [[nodiscard]] StepProgress live_step(const EpochTally& tally) const;

 private:
  void add(const CommTimes& times);
  void count_control_bytes(std::uint64_t now);
  void count_wire_bytes(std::optional<double> now);
  void clear_costs();
  [[nodiscard]] double fp32_bytes(double steps) const;

  const RunDescription& run_;
  Reducer* reducer_ = nullptr;
  std::vector<std::optional<std::uint64_t>> expected_bytes_;
  CommTimes comm_;  // of the running epoch
  bool has_asked_ = false;
  // The communicator's byte count at the last reading, and the bytes of the running epoch.
  std::uint64_t counted_control_bytes_ = 0, control_bytes_ = 0;
  std::optional<double> counted_wire_bytes_;  // the same for the connections
  double wire_bytes_ = 0.0;
  std::vector<EpochRow> epochs_;
  std::vector<double> epoch_steps_;  // of each epoch
};

}  // namespace dp
