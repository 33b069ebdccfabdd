// The parts of a rank's time, in the terms of the run log. All times are in seconds unless named
// otherwise.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "comm/reducer/exchange_meter.hpp"

namespace dp {

// The training loop's own wall time: the parts add up to the step.
struct LoopTimes {
  double data = 0;          // waiting for a batch
  double forward = 0;       // with the loss
  double backward = 0;      // until the last gradient is computed
  double exposed_comm = 0;  // training stands still for the exchange
  double optimizer = 0;     // with clipping
  double other = 0;
  double statistics = 0;  // part of exposed_comm: exchanging statistics of all ranks
  int steps = 0;          // number of steps that these times cover

  struct Part {
    const char* name;
    double LoopTimes::*time;
  };
  static constexpr std::array<Part, 6> parts() {
    return {{{"data", &LoopTimes::data},
             {"forward", &LoopTimes::forward},
             {"backward", &LoopTimes::backward},
             {"exposed_comm", &LoopTimes::exposed_comm},
             {"optimizer", &LoopTimes::optimizer},
             {"other", &LoopTimes::other}}};
  }

  [[nodiscard]] double step() const {
    double sum = 0;
    for (const Part& part : parts()) sum += this->*part.time;
    return sum;
  }
  [[nodiscard]] double compute() const { return forward + backward + optimizer; }
  // Returns these times as parts of a period of whole_s seconds, in which exchanges took comm_s.
  // `other` gets the time that no part has measured. It also gets the time that threads take to
  // wake up after the last bucket has arrived; so exposed_comm never exceeds comm_s.
  [[nodiscard]] LoopTimes as_parts_of(double whole_s, double comm_s) const {
    LoopTimes parts = *this;
    parts.exposed_comm = std::min(exposed_comm, comm_s);
    parts.statistics = std::min(statistics, parts.exposed_comm);
    parts.other = 0;
    parts.other = whole_s - parts.step();
    return parts;
  }
  LoopTimes& operator+=(const LoopTimes& more) {
    for (const Part& part : parts()) this->*part.time += more.*part.time;
    statistics += more.statistics;
    steps += more.steps;
    return *this;
  }
};

// Writes the columns that rows of steps, ranks and epochs share.
template <class Row>
void set_costs(Row& row, const LoopTimes& loop, const CommCost& comm) {
  row.data_s = loop.data;
  row.forward_s = loop.forward;
  row.backward_s = loop.backward;
  row.optimizer_s = loop.optimizer;
  row.compute_s = loop.compute();
  row.encode_s = comm.encode_s;
  row.wire_s = comm.wire_s;
  row.decode_s = comm.decode_s;
  row.peer_wait_s = comm.peer_wait_s;
  row.comm_s = comm.comm_s;
  row.exposed_comm_s = loop.exposed_comm;
  row.other_s = loop.other;
  row.sent_bytes = static_cast<std::int64_t>(comm.sent_bytes);
  row.received_bytes = static_cast<std::int64_t>(comm.received_bytes);
}

}  // namespace dp
