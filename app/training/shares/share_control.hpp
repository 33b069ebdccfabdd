// Decides how many images each rank computes, from the times that ranks have measured (--shares
// auto).
//
// Ranks that share a machine (the processors of a host, or a GPU) get equal shares, because each of
// them slows down the others. A machine's model (share_solver.hpp) has two parameters, a fixed time
// and a time for each image. It begins with a guess and follows the measured times. Measurements of
// two sufficiently different shares determine both parameters; otherwise both are scaled alike.
//
// A division is changed if the slowest machine would gain kSureGain of a step, or kLeastGain in two
// intervals in a row. The next interval is a trial. If steps do not become faster by a fair part of
// the expected gain, the division before the trial comes back, and no trial follows for some
// intervals, twice as many after each failure. A trial fails, for instance, if two hosts are
// virtual machines on the same processors.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "app/training/shares/share_solver.hpp"

namespace dp {

// A rank's measurements in an interval.
struct ShareMeasurement {
  double compute_s = 0;         // a step's time without the waits for other ranks
  double step_s = 0;            // a step's time with these waits
  std::size_t most_images = 0;  // the images of a step that fit into the rank's memory
};

class ShareControl {
 public:
  // The gain that a change needs, as a fraction of a step's time: kLeastGain in two intervals in a
  // row, or kSureGain in one.
  static constexpr double kLeastGain = 0.03, kSureGain = 0.1;

  // machine_of_rank: the number of each rank's machine, from 0 without gaps. least: every rank gets
  // at least this many images, because batch statistics of few images are poor. 0 stands for a
  // quarter of an even share, but at most 8 images.
  ShareControl(std::vector<std::size_t> machine_of_rank, std::size_t least);

  struct Decision {
    std::vector<std::size_t> images;  // of each rank, in the next intervals
    bool is_undone = false;           // the trial has failed
    double step_s = 0;                // a step's time so far
    double expected_s = 0;            // of a step that follows; if is_undone, of a step before the
                                      // trial
  };

  // Call it before the first step, with the measurements of rehearsed steps that had these images.
  // Returns the division to begin with, or nothing if the rehearsed division should stay. The first
  // interval with this division is not a trial.
  [[nodiscard]] std::optional<std::vector<std::size_t>> begin(
      std::span<const ShareMeasurement> measured, std::span<const std::size_t> images);
  // Call it after an interval in which all steps had these images. Returns nothing if the division
  // should stay.
  [[nodiscard]] std::optional<Decision> decide(std::span<const ShareMeasurement> measured,
                                               std::span<const std::size_t> images);

  // The model of each rank, as of the last begin() or decide().
  [[nodiscard]] const std::vector<StepModel>& models() const { return models_; }

 private:
  struct Machine {
    StepModel model;
    double images = 0, seconds = 0;  // the last measurement; 0 images: none
    std::size_t agreeing = 1;        // the model is the mean of this many measurements
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
  // The time of each machine before the last failed trial.
  std::vector<double> seconds_at_failure_;

  static constexpr std::size_t kFirstPause = 2, kLongestPause = 128;
};

}  // namespace dp
