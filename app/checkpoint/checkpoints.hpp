// Writes a run's checkpoints while it trains: this rank's part, into its host's folder.
//
// A checkpoint is due after a number of epochs, steps or minutes. write() copies the state; a
// thread (checkpoint_writer.hpp) then hashes it and writes the file while training goes on. At some
// of the following steps the ranks ask each other whether all have written their parts, and whether
// the hashes of the replicated state agree. If both hold, the checkpoint is complete: all ranks
// give their parts the final names and remove older parts. When all have done that, the next
// checkpoint may begin. If a rank cannot write, rank 0 warns once for each cause; earlier
// checkpoints stay as they are.
//
// A checkpoint is overdue if the next one is due and the number of ranks that have finished their
// parts has not grown for one time-out. Rank 0 then warns once. Training goes on, but the next
// checkpoint waits for the overdue one. The end of the run waits for a rank without progress for at
// most kPatience time-outs.
//
// All ranks make the same calls at the same steps. Methods marked "collective" exchange a few bytes
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
  // The checkpoint that the run was resumed from; it counts as complete.
  std::optional<CheckpointId> resumed_from = {};
  // Called on rank 0: on_complete for a complete checkpoint, warn for a warning. Failures with the
  // same cause are reported once.
  std::function<void(const CheckpointId&)> on_complete = [](const CheckpointId&) {};
  std::function<void(const std::string&)> warn = [](const std::string&) {};
};

// Data that is written together with the state.
struct CheckpointExtras {
  std::vector<std::pair<std::string, std::string>> texts;  // further entries
  std::vector<std::byte> log;                              // the run log's file; empty: none
};

class Checkpoints {
 public:
  Checkpoints(Device& device, Reducer& reducer, CheckpointOptions options);
  // Gives the thread one time-out to finish writing, or a few seconds if the run fails.
  ~Checkpoints();
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  // Whether is_due() asks the other ranks at this step. If it asks, it may wait for them and for
  // the disk.
  [[nodiscard]] bool asks_at(std::uint64_t step) const {
    return (pending_ || options_.every.seconds > 0) && step >= next_question_;
  }
  // Collective, after every step: checks whether the last checkpoint is complete, and returns
  // whether another one is due. No checkpoint is due while an earlier one is under way.
  [[nodiscard]] bool is_due(std::uint64_t step, bool ends_epoch);
  // Copies the state and begins to write it. No other checkpoint may be under way.
  void write(std::uint64_t step, const StateList& state, const CheckpointExtras& extras);
  // Collective: waits until the checkpoint under way is complete or has failed, or until ranks have
  // made no progress for kPatience time-outs.
  void finish();
  // The ranks that finish() has stopped waiting for, and what is missing: "rank 1 on east has not
  // written its part for 30 s". Empty if there are no such ranks. If the text is not empty, nothing
  // may be written any more.
  [[nodiscard]] const std::string& hanging() const { return hanging_; }

  // This rank's part of the checkpoint of this step.
  [[nodiscard]] ShardFile part_of(std::uint64_t step) const {
    return {.checkpoint = {.step = step, .attempt = options_.attempt, .ranks = ranks_},
            .rank = rank_};
  }
  // The newest complete checkpoint.
  [[nodiscard]] std::optional<CheckpointId> newest() const;
  [[nodiscard]] const std::string& folder() const { return options_.folder; }

 private:
  // How long finish() waits for ranks that make no progress, in time-outs. The same factor applies
  // elsewhere to ranks that answer without making progress (comm/mpi/liveness.hpp).
  static constexpr double kPatience = 10;

  // A rank's message to the other ranks.
  struct Report {
    std::uint64_t replicated_hash = 0;
    double seconds = 0;          // since the last checkpoint; only rank 0's value is used
    std::uint64_t next_gap = 1;  // steps until the next question, if nothing is under way
    std::uint8_t is_over = 0, has_failed = 0;  // the job that is under way
  };
  // The checkpoint that is under way.
  struct Pending {
    CheckpointId id;
    // is_tidying: all ranks have written their parts or have failed to, and now rename and remove
    // files.
    bool is_tidying = false, is_complete = false;
    // The number of ranks whose job is over, and when this number last changed, in seconds since
    // write().
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

  // These are the same on all ranks.
  std::deque<CheckpointId> complete_;  // the kept ones, the oldest first
  bool has_bad_name_ = false;          // some rank could not rename its part of the only checkpoint
  std::optional<Pending> pending_;
  bool is_wanted_ = false;  // another checkpoint is due and waits for the pending one
  std::size_t epochs_ = 0;  // since the last checkpoint
  std::uint64_t last_step_ = 0, next_question_ = 0, gap_ = 1;
  std::string hanging_;

  LapClock clock_;
  double since_last_s_ = 0;
  std::set<std::string> told_;  // causes of failures reported so far, on rank 0
  std::unique_ptr<CheckpointWriter> writer_;
};

}  // namespace dp
