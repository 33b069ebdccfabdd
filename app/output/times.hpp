// Where a rank's time went, in the terms of the run log. All times are in seconds unless named
// otherwise.
#pragma once

#include <algorithm>

namespace dp {

// The training loop's own wall time: the parts add up to the step.
struct LoopTimes {
  double data = 0;          // waiting for a batch
  double forward = 0;       // with the loss
  double backward = 0;      // until the last gradient is computed
  double exposed_comm = 0;  // training stands still for the exchange
  double optimizer = 0;     // with clipping
  double other = 0;
  double statistics = 0;  // of exposed_comm, within forward and backward: statistics of all ranks

  [[nodiscard]] double step() const {
    return data + forward + backward + exposed_comm + optimizer + other;
  }
  [[nodiscard]] double compute() const { return forward + backward + optimizer; }
  // These times as parts of whole_s seconds in which ranks exchanged for comm_s. Time that
  // no part has measured belongs to `other`. So does the wait after the last bucket has arrived
  // (threads wake up), so that exposed_comm never exceeds comm_s.
  [[nodiscard]] LoopTimes as_parts_of(double whole_s, double comm_s) const {
    LoopTimes parts = *this;
    parts.exposed_comm = std::min(exposed_comm, comm_s);
    parts.statistics = std::min(statistics, parts.exposed_comm);
    parts.other = 0;
    parts.other = whole_s - parts.step();
    return parts;
  }
  LoopTimes& operator+=(const LoopTimes& more) {
    data += more.data;
    forward += more.forward;
    backward += more.backward;
    exposed_comm += more.exposed_comm;
    optimizer += more.optimizer;
    other += more.other;
    statistics += more.statistics;
    return *this;
  }
};

}  // namespace dp
