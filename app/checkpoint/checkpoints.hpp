// Writes a run's checkpoints while it trains: this rank's part, into its host's folder.
//
// A checkpoint is due after so many epochs, steps or minutes. write() copies the state; a thread
// (checkpoint_writer.hpp) then hashes it and writes the file, and training goes on. In the steps
// after that the ranks ask each other from time to time whether all have written theirs, and
// whether the hashes of what must be the same on all ranks agree. If so, the checkpoint counts: all
// give their files the final names and remove older ones. When all have done that, the next one may
// begin. A rank that cannot write is told once for each cause; the checkpoints before stay as they
// are.
//
// A checkpoint is overdue when the next one is due and, for a time-out, no further rank has done
// its part. That is told once; training goes on without later checkpoints. At the end of the run,
// ranks that do not come on for kPatience time-outs are left alone.
//
// All ranks make the same calls at the same steps. Those marked "collective" exchange a few bytes
// through the reducer's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "app/checkpoint/checkpoint_writer.hpp"
#include "app/options/options_checkpoint.hpp"
#include "comm/reducer/reducer.hpp"
#include "io/files/checkpoint_folder.hpp"
#include "kernels/base/lap_clock.hpp"
#include "kernels/base/state.hpp"
#include "kernels/device.hpp"

namespace dp {

struct CheckpointOptions {
  std::string folder;
  CheckpointCadence every;
  std::size_t keep = 2;
  std::uint32_t attempt = 0;      // the same on all ranks
  bool compares_replicas = true;  // false: every rank trains its own model
  double timeout_s = 60;
  // The checkpoint from which the run goes on; it counts as complete.
  std::optional<CheckpointId> resumed_from = {};
  // Called on rank 0: a checkpoint is complete; a warning. Of several failures with the same cause
  // only the first is told.
  std::function<void(const CheckpointId&)> on_complete = [](const CheckpointId&) {};
  std::function<void(const std::string&)> warn = [](const std::string&) {};
};

// What is written beside the state.
struct CheckpointExtras {
  std::vector<std::pair<std::string, std::string>> texts;  // further entries
  std::vector<std::byte> log;                              // the run log's file; empty: none
};

class Checkpoints {
 public:
  Checkpoints(Device& device, Reducer& reducer, CheckpointOptions options);
  // Gives the thread a time-out to write what it has begun; some seconds if the run fails.
  ~Checkpoints();
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  // Whether is_due() will ask the other ranks at this step, which may wait for them and for the
  // disk.
  [[nodiscard]] bool asks_at(std::uint64_t step) const {
    return (pending_ || options_.every.seconds > 0) && step >= next_question_;
  }
  // Collective, after every step: looks whether the last checkpoint is complete, and says whether
  // another one is due. It is not while one is under way.
  [[nodiscard]] bool is_due(std::uint64_t step, bool ends_epoch);
  // Copies the state and begins to write it. Not while another one is under way.
  void write(std::uint64_t step, const StateList& state, const CheckpointExtras& extras);
  // Collective: waits until the checkpoint that is under way is complete or has failed, or until
  // ranks do not come on.
  void finish();
  // Which ranks finish() has left alone, with what: "rank 1 on east has not written its part for 30
  // s". Empty if it has not; otherwise nothing may be written any more.
  [[nodiscard]] const std::string& hanging() const { return hanging_; }

  // This rank's part of a checkpoint of that step.
  [[nodiscard]] ShardFile part_of(std::uint64_t step) const {
    return {.checkpoint = {.step = step, .attempt = options_.attempt, .ranks = ranks_},
            .rank = rank_};
  }
  // The newest complete one.
  [[nodiscard]] std::optional<CheckpointId> newest() const;
  [[nodiscard]] const std::string& folder() const { return options_.folder; }

 private:
  // How long ranks that do not come on are waited for at the end of the run, in time-outs: as long
  // as for ranks that answer and do not come on elsewhere (comm/mpi/liveness.hpp).
  static constexpr double kPatience = 10;

  // What a rank tells the others.
  struct Report {
    std::uint64_t replicated_hash = 0;
    double seconds = 0;          // since the last checkpoint; rank 0's counts
    std::uint64_t next_gap = 1;  // steps until the next question, if nothing is under way
    std::uint8_t is_over = 0, has_failed = 0;  // the job that is under way
  };
  // The checkpoint that is under way.
  struct Pending {
    CheckpointId id;
    // All ranks have written their parts, or failed to, and tidy up.
    bool is_tidying = false, is_complete = false;
    // Ranks whose job is over, and when that number became what it is, in seconds since write().
    std::ptrdiff_t over = 0;
    double moved_s = 0;
    bool is_told_late = false;
  };
  [[nodiscard]] bool is_tidying() const { return pending_ && pending_->is_tidying; }
  void ask(std::uint64_t step, bool is_at_end = false);
  void settle(const std::vector<Report>& reports);
  void end_tidying(const std::vector<Report>& reports);
  void look_for_late_ranks(const std::vector<Report>& reports, bool is_at_end);
  void compare_replicas(const std::vector<Report>& reports);
  void take_complete();
  void tell_failures();

  Device& device_;
  Reducer& reducer_;
  CheckpointOptions options_;
  std::uint32_t rank_ = 0, ranks_ = 1;
  std::vector<std::string> hosts_;  // by rank

  // The same on all ranks.
  std::deque<CheckpointId> complete_;  // that are kept, the oldest first
  bool has_bad_name_ = false;          // the only one: some rank's part waits for its last name
  std::optional<Pending> pending_;
  bool is_wanted_ = false;  // one is due and waits for the pending one
  std::size_t epochs_ = 0;  // since the last one
  std::uint64_t last_step_ = 0, next_question_ = 0, gap_ = 1;
  std::string hanging_;

  LapClock clock_;
  double since_last_s_ = 0;
  std::set<std::string> told_;  // causes of failures, on rank 0
  std::unique_ptr<CheckpointWriter> writer_;
};

}  // namespace dp
