// Writes a run's checkpoints while it trains: this rank's part, into its host's folder.
//
// A checkpoint is due after so many epochs, steps or minutes. write() copies the state; a thread
// then hashes it and writes the file, and training goes on. In the steps after that the ranks ask
// each other from time to time whether all have written theirs, and whether the hashes of what must
// be the same on all ranks agree. If so, the checkpoint is complete and older ones are removed. A
// rank that cannot write is told once for each cause; the checkpoints before stay as they are.
//
// All ranks make the same calls at the same steps. Those marked "collective" exchange a few bytes
// through the reducer's thread. A rank whose disk is slow tells the others that it is busy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "app/options_checkpoint.hpp"
#include "app/times.hpp"
#include "comm/job_thread.hpp"
#include "comm/reducer.hpp"
#include "io/checkpoint_file.hpp"
#include "io/checkpoint_folder.hpp"
#include "kernels/base/state.hpp"
#include "kernels/device.hpp"

namespace dp {

struct CheckpointOptions {
  std::string folder;
  CheckpointCadence every;
  std::size_t keep = 2;
  std::uint32_t attempt = 0;      // the same on all ranks
  bool compares_replicas = true;  // false: every rank trains its own model
  // The checkpoint from which the run goes on; it counts as complete.
  std::optional<CheckpointId> resumed_from = {};
  // Called on rank 0: a checkpoint is complete; one could not be written, and why. Of several
  // failures with the same cause only the first is told.
  std::function<void(const CheckpointId&)> on_complete = {};
  std::function<void(const CheckpointId&, const std::string& why)> on_failure = {};
};

// What is written beside the state.
struct CheckpointExtras {
  std::vector<std::pair<std::string, std::string>> texts;  // further entries
  std::vector<std::byte> log;                              // the run log's file; empty: none
};

class Checkpoints {
 public:
  Checkpoints(Device& device, Reducer& reducer, CheckpointOptions options);
  ~Checkpoints();  // waits until the thread has written what it has begun
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  // Collective, after every step: looks whether the last checkpoint is complete, and says whether
  // another one is due. It is not while one is being written.
  [[nodiscard]] bool is_due(std::uint64_t step, bool ends_epoch);
  // Copies the state and begins to write it. Not while another one is being written.
  void write(std::uint64_t step, const StateList& state, const CheckpointExtras& extras);
  // Collective: waits until the checkpoint that is being written is complete or has failed.
  void finish();

  // The newest complete one.
  [[nodiscard]] std::optional<CheckpointId> newest() const;
  [[nodiscard]] const std::string& folder() const { return options_.folder; }

 private:
  // What a rank tells the others.
  struct Report {
    std::uint64_t replicated_hash = 0;
    double seconds = 0;          // since the last checkpoint; rank 0's counts
    std::uint64_t next_gap = 1;  // steps until the next question, if nothing is pending
    std::uint8_t is_written = 0, has_failed = 0;
  };
  void ask(std::uint64_t step);
  void settle(const std::vector<Report>& reports);
  [[nodiscard]] std::string difference_of(const std::vector<Report>& reports) const;
  void complete();
  void tell_failures();
  void wait_for_thread();
  // Of the thread.
  void write_files();
  void tidy_up();
  [[nodiscard]] ShardFile mine(const CheckpointId& id, bool is_complete) const;
  [[nodiscard]] std::string path(const std::string& name) const;

  Device& device_;
  Reducer& reducer_;
  CheckpointOptions options_;
  std::uint32_t rank_ = 0, ranks_ = 1;

  // The same on all ranks.
  std::deque<CheckpointId> complete_;  // that are kept, the oldest first
  std::optional<CheckpointId> pending_;
  bool is_wanted_ = false;  // one is due and waits for the pending one
  std::size_t epochs_ = 0;  // since the last one
  std::uint64_t last_step_ = 0, next_question_ = 0, gap_ = 1;

  LapClock clock_;
  double since_last_s_ = 0;
  std::set<std::string> told_;  // causes of failures, on rank 0

  // The thread's, while a job of its runs.
  ShardImage image_;
  std::vector<std::byte> log_;
  ShardFile written_;
  std::uint64_t replicated_hash_ = 0;
  std::string failure_;  // empty: written
  bool is_complete_ = false;
  std::vector<CheckpointId> kept_;
  JobThread::Number job_ = 0;
  JobThread thread_;  // last, so that it ends first
};

}  // namespace dp
