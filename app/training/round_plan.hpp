// Decides how many training steps lie between two exchanges in each epoch (--sync-every). The
// option gives the number; with "auto" it is chosen from the measurements of the epoch before, for
// the first epoch from a prediction, or repeated from an earlier run.
#pragma once

#include <cstddef>
#include <string>

#include "app/checkpoint/checkpoint_head.hpp"
#include "app/options/round_schedule.hpp"
#include "app/output/recorder.hpp"
#include "app/training/replica/replica.hpp"
#include "app/training/setup/run_plan.hpp"

namespace dp {

class RoundPlan {
 public:
  // All three arguments must outlive this object.
  RoundPlan(const RunPlan& plan, Replica& replica, Recorder& recorder)
      : plan_(plan), replica_(replica), recorder_(recorder), schedule_(plan.rounds) {}

  // The number of training steps in a round of this epoch; 0: gradients are exchanged at every
  // step.
  [[nodiscard]] std::size_t steps_in(std::size_t epoch) const {
    return schedule_.has_rounds_in(epoch) ? schedule_.steps : 0;
  }
  // The steps of a round in the first epoch, if "auto" chooses it. Call it before the first epoch;
  // only rank 0's number counts.
  void predict_first(std::size_t steps) { first_ = steps; }
  // Collective. Call it before each epoch, except one that is resumed in its middle. last: this
  // rank's measurements of the epoch before.
  void choose(std::size_t epoch, const EpochTally& last);

  // A checkpoint stores the choices of all epochs so far.
  void save(CheckpointHead& head) const;
  void restore(const CheckpointHead& head);

 private:
  void take(std::string steps);

  const RunPlan& plan_;
  Replica& replica_;
  Recorder& recorder_;
  RoundSchedule schedule_;
  std::size_t first_ = 1;  // predicted
  std::string chosen_;     // a number for each epoch so far, joined by commas
};

}  // namespace dp
