// Starts MPI once in a program, and ends it without leaving a rank waiting.
//
// MPI_Finalize is collective: a rank that calls it while others are in another collective hangs the
// job. Therefore only the normal path calls it; a destructor that runs because of an exception
// aborts the job instead. end_with_error describes the two ways in which an error ends the program.
//
// A watchdog limits the MPI calls that have no deadline of their own (watchdog.hpp). Connections
// from foreign programs cannot block a rank (strangers.hpp).
#pragma once

#include <optional>
#include <string_view>

#include "comm/mpi/runtime/strangers.hpp"
#include "comm/mpi/runtime/watchdog.hpp"

namespace dp {

class MpiRuntime {
 public:
  // Sets the following environment variables for Open MPI, unless they are set already. Then
  // initialises MPI for use by one thread at a time, or by several threads at once if `has_threads`
  // asks for it and MPI supports it. Throws Error(communication).
  //
  //   OMPI_MCA_pml=ob1                    no search for InfiniBand libraries and no warnings about
  //                                       them: the program is for Ethernet and Wi-Fi
  //   OMPI_MCA_mpi_yield_when_idle=1      blocking calls yield the CPU where ranks share cores
  //   OMPI_MCA_btl_vader_single_copy_mechanism=none
  //                                       ranks on one host copy through shared memory: reading
  //                                       each other's memory is forbidden in most containers and
  //                                       fails noisily there
  //   OMPI_MCA_btl_tcp_eager_limit, rndv_eager_limit and max_send_size: 512 KiB
  //                                       a segment leaves at once, in one piece. Above the limit
  //                                       Open MPI first asks the receiver. The receiver's thread
  //                                       sleeps, so the link reaches only 90 % of its bandwidth
  //                                       instead of 97 %
  //   OMPI_MCA_btl_tcp_if_include         the interface of network_interface.hpp
  //   PMIX_MCA_gds=hash                   without it, hosts that share a file system print errors
  //
  // Before MPI starts, one rank of each host removes files left by killed jobs
  // (stale_segments.hpp). `is_alone` means that the program opens no connections of its own, so
  // that foreign connections can be recognised.
  MpiRuntime(int* argc, char*** argv, WatchdogOptions watchdog = {}, bool is_alone = true,
             bool has_threads = false);
  ~MpiRuntime();
  MpiRuntime(const MpiRuntime&) = delete;
  MpiRuntime& operator=(const MpiRuntime&) = delete;

  // Call it in main's catch (...), while this object exists. If all ranks agreed on the error
  // (AgreedError), only rank 0 prints it; the call returns the exit code, and every rank ends
  // normally. Any other error belongs to this rank: the call prints it with rank and host, and
  // aborts the job.
  [[nodiscard]] int end_with_error(std::string_view program);

  // Limits the caller's own MPI calls that have no deadline.
  [[nodiscard]] Watchdog& watchdog() { return watchdog_; }

  // Prints "program: message" to standard error and ends the job at once.
  [[noreturn]] void abort(int exit_code, std::string_view program, std::string_view message);

 private:
  Watchdog watchdog_;
  std::optional<StrangerWatch> strangers_;
  int exceptions_at_start_;
};

}  // namespace dp
