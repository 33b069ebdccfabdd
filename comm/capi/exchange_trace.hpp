// Records the trace requested by dptrain_comm_options::trace, in the same file format as dptrain's
// traces (io/files/trace_file.hpp).
//
// The row "compute" shows the caller's thread, as far as the exchange sees it. A step lasts from
// begin_step to the end of finish_step. It consists of "backward", until finish_step begins, and
// "exposed wait", the duration of finish_step. In "backward", each slot has a slice with its name,
// from the time when the previous slot was ready to the time when the slot itself is ready. The
// rows of the exchange and of its buckets are the same as in dptrain's traces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/capi/dptrain_comm.h"
#include "comm/mpi/clock_offset.hpp"
#include "comm/mpi/communicator.hpp"
#include "comm/reducer/reducer.hpp"
#include "comm/topologies/buckets.hpp"
#include "kernels/base/trace.hpp"

namespace dp::capi {

class ExchangeTrace {
 public:
  // Collective. Throws Error(data) on all ranks if rank 0 cannot create the file.
  ExchangeTrace(const dptrain_comm_options& given, std::span<const TensorSlot> tensors,
                Communicator& comm);

  [[nodiscard]] TraceTrack* exchange() { return &exchange_; }

  void step_begins(std::uint64_t step);
  void tensor_ready(std::size_t tensor);  // call it before the tensor's bucket may leave
  void backward_ends();
  void step_ends();

  // Collective, between steps. Throws Error(data) on all ranks if rank 0 cannot write the file; a
  // later call tries again.
  void write(Reducer& reducer);

 private:
  void add(TraceKind kind, std::int64_t begin_ns, std::int64_t end_ns, std::size_t id = 0);

  std::string path_, compress_;
  std::uint64_t first_, steps_;
  std::vector<std::string> names_;  // of the tensors
  TraceTrack loop_, exchange_;
  ClockReading first_reading_;
  std::int64_t clock_error_ns_ = 0;
  bool has_window_ = false, is_on_one_clock_ = false, is_written_ = false;
  std::int64_t step_began_ns_ = 0, last_ready_ns_ = 0, backward_ended_ns_ = 0;
};

}  // namespace dp::capi
