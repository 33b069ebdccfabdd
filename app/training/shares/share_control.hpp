// Decides how many images each rank computes, from the times that ranks have measured (--shares
// auto).
//
// Ranks that share a machine (the processors of a host, or a GPU) get equal shares, because each of
// them slows down the others. A machine's model (share_solver.hpp) begins with a guess and follows
// the times of its steps: measurements of two sufficiently different sizes give both of its
// numbers; otherwise both are scaled.
//
// A division is changed if the slowest machine would gain kSureGain of a step, or kLeastGain in two
// intervals in a row. The next interval is a trial. If steps do not gain a fair part of what was
// expected, the division before the trial comes back, and the next trial waits for twice as many
// intervals. This happens, for instance, if two hosts are virtual machines on the same processors.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "app/training/shares/share_solver.hpp"

namespace dp {

// A rank's measurements in an interval. All ranks have them.
struct ShareMeasurement {
  double compute_s = 0;         // of a step, without waiting for other ranks
  double step_s = 0;            // of a step, with it
  std::size_t most_images = 0;  // that the rank has memory for
};

class ShareControl {
 public:
  // The gain that a change needs, as a fraction of a step's time: in two intervals in a row, or in
  // one.
  static constexpr double kLeastGain = 0.03, kSureGain = 0.1;

  // machine_of_rank: equal for ranks of one machine, from 0 without gaps. least: fewest images of a
  // rank; 0: a quarter of an even share, at most 8, because batch statistics of few images are
  // poor.
  ShareControl(std::vector<std::size_t> machine_of_rank, std::size_t least);

  struct Decision {
    std::vector<std::size_t> images;  // of each rank, in the next intervals
    bool is_undone = false;           // the trial has failed
    double step_s = 0;                // a step's time so far
    double expected_s = 0;            // of a step that follows; if is_undone, of a step before the
                                      // trial
  };

  // Before the first step, from rehearsed steps with these images: the division to begin with,
  // which is not a trial. Nothing: keep the rehearsed division.
  [[nodiscard]] std::optional<std::vector<std::size_t>> begin(
      std::span<const ShareMeasurement> measured, std::span<const std::size_t> images);
  // After an interval in which all steps had these images. Nothing: they stay.
  [[nodiscard]] std::optional<Decision> decide(std::span<const ShareMeasurement> measured,
                                               std::span<const std::size_t> images);

  // By rank, as of the last decide().
  [[nodiscard]] const std::vector<StepModel>& models() const { return models_; }

 private:
  struct Machine {
    StepModel model;
    double images = 0, seconds = 0;  // the last measurement; 0 images: none
    std::size_t agreeing = 1;        // number of measurements that the model is the mean of
  };
  struct Trial {
    std::vector<std::size_t> before;
    double step_s, gain_s;
    std::vector<double> seconds;  // by machine
  };

  [[nodiscard]] bool can_learn(std::span<const ShareMeasurement> measured,
                               std::span<const std::size_t> images) const;
  struct Best {
    std::vector<std::size_t> images;
    double gain_s = 0;  // of the slowest machine
  };
  [[nodiscard]] Best best(std::span<const ShareMeasurement> measured,
                          std::span<const std::size_t> images) const;
  // Return whether a machine's speed has changed.
  [[nodiscard]] bool learn(std::span<const ShareMeasurement> measured,
                           std::span<const std::size_t> images);
  [[nodiscard]] static bool learn_one(Machine& machine, double images, double seconds);
  [[nodiscard]] std::vector<double> seconds_of_machines() const;
  [[nodiscard]] bool has_changed_since_failure() const;

  std::vector<std::size_t> machine_of_rank_;
  std::size_t least_;
  std::vector<Machine> machines_;
  std::vector<StepModel> models_;
  std::vector<double> steps_s_;  // a step's time in the last intervals with this division
  std::optional<Trial> trial_;
  bool has_wish_ = false;  // the last interval has shown a gain below kSureGain
  std::size_t pause_ = 0, next_pause_ = kFirstPause;  // intervals without a trial
  // By machine, the times before the failed trial, whose division has come back.
  std::vector<double> seconds_at_failure_;

  static constexpr std::size_t kFirstPause = 2, kLongestPause = 128;
};

}  // namespace dp
