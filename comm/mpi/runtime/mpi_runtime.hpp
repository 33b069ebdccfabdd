// Starts MPI once in a program, and ends it so that no rank is left waiting.
//
// MPI_Finalize is collective: a rank that calls it while others are in another collective hangs the
// job. So only the normal path calls it; a destructor that runs because of an exception aborts the
// job instead. Errors end in one of two ways, see end_with_error.
//
// A watchdog waits beside the calls of MPI that have no deadline of their own (watchdog.hpp), and
// strangers' connections do not hold a rank (strangers.hpp).
#pragma once

#include <optional>
#include <string_view>

#include "comm/mpi/runtime/strangers.hpp"
#include "comm/mpi/runtime/watchdog.hpp"

namespace dp {

class MpiRuntime {
 public:
  // Sets the environment variables for Open MPI that follow, except those that are set already,
  // then initialises MPI for use by one thread at a time, or by several if it can and `has_threads`
  // asks for it. Throws Error(communication).
  //
  //   OMPI_MCA_pml=ob1                    no search for InfiniBand libraries and no warnings about
  //                                       them: the program is for Ethernet and Wi-Fi
  //   OMPI_MCA_mpi_yield_when_idle=1      blocking calls give way where ranks share cores
  //   OMPI_MCA_btl_vader_single_copy_mechanism=none
  //                                       ranks on one host copy through shared memory: reading
  //                                       each other's memory is forbidden in most containers and
  //                                       fails noisily there
  //   OMPI_MCA_btl_tcp_eager_limit, rndv_eager_limit and max_send_size: 512 KiB
  //                                       a segment leaves at once, in one piece: above the limit
  //                                       Open MPI first asks the receiver, whose thread sleeps,
  //                                       and the link stands still (90 % of it used instead of 97)
  //   OMPI_MCA_btl_tcp_if_include         the interface of network_interface.hpp
  //   PMIX_MCA_gds=hash                   hosts that share a file system print errors otherwise
  //
  // Before that, one rank of a host removes what killed jobs have left (stale_segments.hpp).
  // `is_alone`: all connections of this process are MPI's, so that strangers' can be told.
  MpiRuntime(int* argc, char*** argv, WatchdogOptions watchdog = {}, bool is_alone = true,
             bool has_threads = false);
  ~MpiRuntime();
  MpiRuntime(const MpiRuntime&) = delete;
  MpiRuntime& operator=(const MpiRuntime&) = delete;

  // For main's catch (...), while this object exists. If all ranks agreed on the error
  // (AgreedError), only rank 0 prints it; the call returns the exit code, and every rank ends
  // normally. Any other error belongs to this rank: it is printed with rank and host, and the job
  // is aborted.
  [[nodiscard]] int end_with_error(std::string_view program);

  // For other calls of MPI without a deadline.
  [[nodiscard]] Watchdog& watchdog() { return watchdog_; }

  // Prints "program: message" to standard error and ends the job at once.
  [[noreturn]] void abort(int exit_code, std::string_view program, std::string_view message);

 private:
  Watchdog watchdog_;
  std::optional<StrangerWatch> strangers_;
  int exceptions_at_start_;
};

}  // namespace dp
