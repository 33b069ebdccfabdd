// dptrain's --trace: one file (io/files/trace_file.hpp) that shows what all ranks did in a few
// steps, on one clock.
//
// Every rank records its slices in two tracks, one for the training loop and one for the reducer's
// thread, in memory that it allocates at the start. Each rank's clock is compared with rank 0's
// clock before the epoch in which the trace begins, and after the last traced step
// (comm/mpi/clock_offset.hpp). Then rank 0 gathers the slices, one chunk of all ranks at a time,
// and writes them.
//
// On a CPU the loop's track shows the forward and backward pass of every layer. On a GPU both
// passes are one graph, and the host does not see its operations. The track then has only the parts
// of the step, by the GPU's own clock (app/training/replica/step_clock.hpp). The exchange is traced
// as on a CPU.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/options/options.hpp"
#include "comm/mpi/clock_offset.hpp"
#include "comm/mpi/communicator.hpp"
#include "comm/reducer/reducer.hpp"
#include "io/files/trace_file.hpp"
#include "kernels/base/trace.hpp"
#include "net/network.hpp"

namespace dp {

class RunTrace {
 public:
  explicit RunTrace(const Options& options);

  [[nodiscard]] TraceTrack* loop() { return &loop_; }
  [[nodiscard]] TraceTrack* exchange() { return &exchange_; }

  // Call it before the first step, whose number is `step`. A step has at most `parts` parts.
  void start(const net::Network& network, std::uint64_t step, std::size_t parts);
  // Collective. Call it before the timing of an epoch begins. The epoch has `steps` steps, from
  // `step` on.
  void begin_epoch(Reducer& reducer, std::uint64_t step, std::uint64_t steps);
  // Whether the last traced step is over after this many steps of the run.
  [[nodiscard]] bool ends_after(std::uint64_t steps) const { return steps == end_; }

  // Texts for rank 0 to print about a trace; empty on the other ranks.
  struct Report {
    std::string text;     // of a trace that was written
    std::string failure;  // why it could not be written
  };
  // Collective, between steps, when all traced steps are over. If the file cannot be written, the
  // failure is reported and the run goes on; the slices are kept, and another call tries again.
  Report write(Reducer& reducer);
  [[nodiscard]] bool is_written() const { return is_written_; }

 private:
  class Target;
  [[nodiscard]] TraceInfo describe(const Communicator& communicator) const;

  const Options& options_;
  TraceTrack loop_, exchange_;
  std::uint64_t begin_ = 0, end_ = 0;  // the traced steps are begin_ to end_ - 1
  bool is_written_ = false, is_on_one_clock_ = false;
  std::int64_t clock_error_ns_ = 0;
  ClockReading first_reading_;
  std::vector<std::string> layers_;
  std::vector<std::size_t> bucket_elements_;
  std::vector<TraceInfo::Codecs> codecs_;
};

}  // namespace dp
