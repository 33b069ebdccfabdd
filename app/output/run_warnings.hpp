// The warnings of a run; most are given once.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "app/output/epoch_tally.hpp"
#include "app/output/run_description.hpp"
#include "app/output/run_sink.hpp"
#include "comm/rate/auto_rate.hpp"

namespace dp {

// A warning that the link carries less than the codec's minimum of bits per value. Empty if the
// link carries enough.
[[nodiscard]] std::string floor_clash(const RateReport& rate, const RateLimits& limits,
                                      const std::vector<Bucket>& buckets,
                                      const ExchangeWindow& window = {});
// A warning that the guard of residuals sends more than planned. Empty if the guard does not.
[[nodiscard]] std::string guard_at_work(const RateReport& rate, const std::vector<Bucket>& buckets);

class RunWarnings {
 public:
  RunWarnings(const RunDescription& run, RunSink& console);

  // where: the rank and tensor whose gradient was not finite. is_of_all: all ranks skip the step.
  void note_skipped_step(std::uint64_t global_step, const std::string& where, bool is_of_all);
  // steps: for each rank, how many steps it has skipped. The warnings leave rank 0 out, because
  // note_skipped_step() has reported its steps.
  void note_skipped_by_others(std::size_t epoch, std::span<const std::int64_t> steps);
  // The sum of a round was not finite. All ranks undo the round.
  void note_lost_round(std::uint64_t global_step, const std::string& where);
  // Warns if the loss has grown far above an earlier one, or is far above the loss of random
  // guessing.
  void note_loss(const EpochRow& row);
  // Warns of images that were replaced. Only the first few are named.
  void note_images(const std::vector<std::string>& notes);
  // After a step: warns of floor_clash() in several successive steps, and of guard_at_work().
  void note_rate(const EpochTally& tally);
  void warn_once(const std::string& line);

 private:
  void warn(const std::string& text) { console_.warn(text); }

  const RunDescription& run_;
  RunSink& console_;
  std::set<std::string> lines_, replaced_images_;
  bool has_skipped_ = false, has_exploded_ = false, has_met_floor_ = false, has_seen_guard_ = false;
  std::optional<RateLimits> limits_;  // of --compress auto
  int clashes_ = 0;                   // exchanges in a row with a floor_clash()
  double least_loss_ = std::numeric_limits<double>::infinity();
};

}  // namespace dp
