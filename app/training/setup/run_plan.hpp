// The plan of a run: values that are decided before the run's objects are made. All values except
// `link` are the same on all ranks.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "app/options/batch_schedule.hpp"
#include "app/options/options.hpp"
#include "app/options/round_schedule.hpp"
#include "comm/network/link_probe.hpp"
#include "io/images/shares.hpp"
#include "io/log/run_choices.hpp"
#include "net/schedule.hpp"

namespace dp {

struct RunPlan {
  const Options& options;
  std::size_t ranks = 1;
  std::size_t planned_ranks = 1;  // the ranks at the run's first start; decides the learning rate
  std::size_t global_batch = 0;   // before --batch-schedule changes it
  BatchSchedule batches = {};     // the sizes of all epochs
  RoundSchedule rounds = {};
  Shares shares = {};             // the ranks' first shares
  std::size_t largest_part = 0;   // images that a rank computes at once
  RunChoices choices = {};        // from --autotune FILE.h5, or from a checkpoint
  bool is_on_gpus = false;        // all ranks computed on GPUs when the run started
  bool sends_velocities = false;  // what --compress auto does if velocity= is not given
  // With the topology "direct", the weight of each rank's part of a bucket (owner_weights.hpp);
  // empty: equal parts.
  std::vector<std::uint32_t> owner_weights = {};
  std::vector<double> own_link_bytes_per_s = {};  // by rank; empty: not known exactly
  LinkProbe link = {};  // zeros if nothing is exchanged, and with --autotune off
  net::ScheduleOptions schedule = {};

  // Without an exchange every rank trains its own model.
  [[nodiscard]] bool exchanges() const { return options.exchange && ranks > 1; }
  [[nodiscard]] std::uint64_t seed() const { return static_cast<std::uint64_t>(options.seed); }
  // The number of parts in which a rank computes its share of a step with that global batch.
  [[nodiscard]] std::size_t parts_of(std::size_t batch) const {
    const std::size_t of_rank = (shares.most(batch, ranks) + largest_part - 1) / largest_part;
    return std::max(static_cast<std::size_t>(options.accumulate), of_rank);
  }
  // The batch size of evaluation. It equals the size of a part at the start of the run.
  [[nodiscard]] std::size_t test_batch() const {
    const auto parts = static_cast<std::size_t>(options.accumulate);
    return (global_batch + parts - 1) / parts;
  }
  // The factor of the learning rate if the batch grows by the factor `times`.
  [[nodiscard]] double rate_factor(double times) const {
    if (options.lr_scaling == Options::LrScaling::none) return 1.0;
    return options.lr_scaling == Options::LrScaling::sqrt ? std::sqrt(times) : times;
  }
};

}  // namespace dp
