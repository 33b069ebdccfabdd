// The shares of the ranks during a run (--shares): as the option says; with auto, as chosen from
// measured steps (shares/share_control.hpp), or as in an earlier run (--autotune LOG).
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

// The ranks' machines and their memory, by rank.
struct ShareFacts {
  // Equal for ranks that compute on the processors of one host, or on one GPU; from 0.
  std::vector<std::size_t> machines;
  std::vector<std::size_t> most_images;  // of one part of a step, that the rank has memory for

  [[nodiscard]] bool is_one_machine() const;
};
// Collective.
[[nodiscard]] ShareFacts gather_share_facts(Run& run);

class SharePlan {
 public:
  // Collective. `run` outlives this object.
  explicit SharePlan(Run& run);

  // Whether the first shares may follow from rehearsed steps, which needs a run that begins. The
  // same on all ranks.
  [[nodiscard]] bool can_begin() const;
  // Collective, before the first step. compute_s: by rank, the computing time of a rehearsed step
  // with the shares so far.
  void begin(std::span<const double> compute_s);
  // Call it when a run begins that was not resumed.
  void record_first();

  // By rank, the images in a step with this global batch.
  [[nodiscard]] std::vector<std::size_t> images_of(std::size_t global_batch) const;
  // "44 44 26 14"
  [[nodiscard]] std::string images_text(std::size_t global_batch) const;

  // The shares of the batches that are loaded from now on.
  [[nodiscard]] const Shares& now() const { return shares_; }

  // Call it before the batch of this step (of the run, from 0) is loaded, when the loader may reuse
  // the memory of the batch before.
  void before_load(std::uint64_t step);
  // Whether end_step() after this many steps needs the steps' times at once.
  [[nodiscard]] bool is_due(std::uint64_t steps) const;
  // Collective, after each step. steps: done so far in the run. times: of the steps that became
  // known. global_batch: of the next step.
  void end_step(std::uint64_t steps, const LoopTimes& times, std::size_t global_batch);

  // A checkpoint stores the shares. A checkpoint of another number of ranks gives even ones.
  void save(CheckpointHead& head) const;
  void restore(const CheckpointHead& head, std::uint64_t steps);

 private:
  struct Change {
    std::uint64_t step;  // the first one that is divided this way
    Shares shares;
  };

  void set(const Shares& shares);
  [[nodiscard]] std::vector<ShareRow> rows_of(const Change& change, std::size_t global_batch) const;
  void begin_interval(std::uint64_t steps);
  void decide(std::uint64_t steps, std::size_t global_batch);
  // Collective. choose: called on rank 0 with the measurements of all ranks; nothing: shares stay.
  // Returns its choice on all ranks.
  using Choose = std::function<std::optional<std::vector<std::size_t>>(
      std::span<const ShareMeasurement> of_ranks)>;
  [[nodiscard]] std::optional<Shares> agree(const ShareMeasurement& mine, const Choose& choose);
  [[nodiscard]] ShareMeasurement measured() const;

  Run& run_;
  bool is_auto_, measures_ = false;  // auto measures, except in a repeated run or on one machine
  Shares shares_;
  std::optional<Change> next_;
  std::vector<Change> replayed_;  // of an earlier run, in order
  // On rank 0, if shares follow measurements.
  std::optional<ShareControl> control_;
  std::vector<double> rehearsed_s_;         // by rank, if the first shares follow from them
  std::uint64_t interval_end_ = 0;          // in steps of the run; 0: nothing is measured
  std::uint64_t interval_begin_ = 0;        // steps before it are not counted
  std::size_t quiet_ = 0;                   // intervals without a change
  std::size_t most_images_ = 0;             // that this rank has memory for
  std::vector<double> compute_s_, step_s_;  // of the interval's steps
};

}  // namespace dp
