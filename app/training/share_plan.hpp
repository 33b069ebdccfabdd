// The ranks' shares of the batch during a run (--shares). The option gives them; with "auto" they
// are chosen from measured steps (shares/share_control.hpp), or repeated from an earlier run
// (--autotune LOG).
//
// Rank 0 decides after an interval of steps, and all ranks change together. A decision after step s
// takes effect in step s + 2, because the batch of step s + 1 may be loaded by then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "app/checkpoint/checkpoint_head.hpp"
#include "app/output/recorder.hpp"
#include "app/training/replica/replica.hpp"
#include "app/training/setup/run_setup.hpp"
#include "app/training/shares/share_control.hpp"
#include "io/images/loader.hpp"
#include "io/images/shares.hpp"

namespace dp {

// The machine and the memory of each rank.
struct ShareFacts {
  // Machines are numbered from 0. A machine is the processors of one host, or one GPU.
  std::vector<std::size_t> machines;
  std::vector<std::size_t> most_images;  // the images of one part that fit into the rank's memory

  [[nodiscard]] bool is_one_machine() const;
};
// Collective.
[[nodiscard]] ShareFacts gather_share_facts(Run& run);

class SharePlan {
 public:
  // Collective. `run` outlives this object.
  explicit SharePlan(Run& run);

  // Returns, on all ranks, whether begin() may choose the first shares from rehearsed steps. It may
  // not in a resumed run, for example.
  [[nodiscard]] bool can_begin() const;
  // Collective, before the first step. compute_s: for each rank, the computing time of a rehearsed
  // step with the current shares.
  void begin(std::span<const double> compute_s);
  // Records the first shares. Call it at the start of a run that is not resumed.
  void record_first();

  // The number of images of each rank in a step with this global batch.
  [[nodiscard]] std::vector<std::size_t> images_of(std::size_t global_batch) const;
  // The same numbers as text: "44 44 26 14".
  [[nodiscard]] std::string images_text(std::size_t global_batch) const;

  // The shares of the batches that are loaded from now on.
  [[nodiscard]] const Shares& now() const { return shares_; }

  // Call it before a step's batch is loaded, when the loader may already reuse the memory of the
  // previous batch. step: counted from 0 over the whole run.
  void before_load(std::uint64_t step);
  // Whether end_step(), if called after this many steps, needs the times of all steps so far. If
  // so, the caller must wait for the device.
  [[nodiscard]] bool is_due(std::uint64_t steps) const;
  // Collective, after each step. steps: the number of steps done so far in the run. times: the
  // times of steps that have become known since the last call. global_batch: the number of images
  // in the next step.
  void end_step(std::uint64_t steps, const LoopTimes& times, std::size_t global_batch);

  // A checkpoint stores the shares. Shares from a checkpoint with another number of ranks are not
  // used.
  void save(CheckpointHead& head) const;
  void restore(const CheckpointHead& head, std::uint64_t steps);

 private:
  struct Change {
    std::uint64_t step;  // the first step with these shares
    Shares shares;
  };

  void set(const Shares& shares);
  [[nodiscard]] std::vector<ShareRow> rows_of(const Change& change, std::size_t global_batch) const;
  void begin_interval(std::uint64_t steps);
  void decide(std::uint64_t steps, std::size_t global_batch);
  // Collective. Calls `choose` on rank 0 with the measurements of all ranks, and returns the choice
  // on every rank. If `choose` returns nothing, the shares stay as they are.
  using Choose = std::function<std::optional<std::vector<std::size_t>>(
      std::span<const ShareMeasurement> of_ranks)>;
  [[nodiscard]] std::optional<Shares> agree(const ShareMeasurement& mine, const Choose& choose);
  [[nodiscard]] ShareMeasurement measured() const;

  Run& run_;
  bool is_auto_, measures_ = false;  // "auto" does not measure in a repeated run or on one machine
  Shares shares_;
  std::optional<Change> next_;
  std::vector<Change> replayed_;  // the changes of an earlier run, in order
  // Exists only on rank 0, and only if `measures_` is true.
  std::optional<ShareControl> control_;
  std::vector<double> rehearsed_s_;         // by rank; empty if not used for the first shares
  std::uint64_t interval_end_ = 0;          // in steps of the run; 0: nothing is measured
  std::uint64_t interval_begin_ = 0;        // steps before it are not counted
  std::size_t quiet_ = 0;                   // intervals without a change
  std::size_t most_images_ = 0;             // the images of one part that fit into memory
  std::vector<double> compute_s_, step_s_;  // of the interval's steps
};

}  // namespace dp
