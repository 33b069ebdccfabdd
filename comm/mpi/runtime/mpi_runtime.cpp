#include "comm/mpi/runtime/mpi_runtime.hpp"

#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "comm/mpi/communicator.hpp"
#include "comm/mpi/host_ranks.hpp"
#include "comm/mpi/network_interface.hpp"
#include "comm/mpi/runtime/job_end.hpp"
#include "comm/mpi/runtime/stale_segments.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

// The time limit of MPI_Abort and the code after it. (Usually mpirun ends this process at once.)
constexpr double kAbort_s = 3.0;

void say(std::string_view program, std::string_view message) {
  std::fprintf(stderr, "%.*s: %.*s\n", static_cast<int>(program.size()), program.data(),
               static_cast<int>(message.size()), message.data());
  std::fflush(stderr);
}

// The time between two looks for foreign connections. Such a connection blocks a rank until the
// next look. The time is short compared with the timeout, so that other ranks do not consider the
// blocked rank silent.
std::chrono::milliseconds between_looks(double timeout_s) {
  return std::chrono::milliseconds(static_cast<int>(1000 * std::clamp(timeout_s / 8, 0.05, 1.0)));
}

void tell_stranger(const std::string& program, const std::string& address) {
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  const int rank = rank_from_launcher();
  say(program,
      fmt::format("a connection from {} to Open MPI's port{} was closed: it had sent less than a "
                  "greeting, and the rank waited for the rest. Nothing is lost; allow only the "
                  "run's hosts to reach these ports",
                  address,
                  rank < 0 ? std::string() : fmt::format(" of rank {} on host {}", rank, host)));
}

}  // namespace

MpiRuntime::MpiRuntime(int* argc, char*** argv, WatchdogOptions watchdog, bool is_alone,
                       bool has_threads)
    : watchdog_(watchdog), exceptions_at_start_(std::uncaught_exceptions()) {
  if (is_alone) {
    strangers_.emplace(between_looks(watchdog.timeout_s),
                       [program = watchdog.program](const std::string& address) {
                         tell_stranger(program, address);
                       });
  }
  constexpr int kKeepTheUsers = 0;
  setenv("OMPI_MCA_pml", "ob1", kKeepTheUsers);
  setenv("OMPI_MCA_mpi_yield_when_idle", "1", kKeepTheUsers);
  setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", kKeepTheUsers);
  setenv("PMIX_MCA_gds", "hash", kKeepTheUsers);
  for (const char* name : {"OMPI_MCA_btl_tcp_eager_limit", "OMPI_MCA_btl_tcp_rndv_eager_limit",
                           "OMPI_MCA_btl_tcp_max_send_size"}) {
    setenv(name, "524288", kKeepTheUsers);
  }
  use_best_interface();
  const char* local_rank = std::getenv("OMPI_COMM_WORLD_LOCAL_RANK");
  if (local_rank == nullptr) local_rank = std::getenv("SLURM_LOCALID");
  if (local_rank != nullptr && std::string_view(local_rank) == "0") {
    static_cast<void>(remove_stale_segments(segment_folder()));
  }
  int provided = 0, code = MPI_SUCCESS;
  const int wanted = has_threads ? MPI_THREAD_MULTIPLE : MPI_THREAD_SERIALIZED;
  watchdog_.watch("MPI_Init", [&] { code = MPI_Init_thread(argc, argv, wanted, &provided); });
  if (code != MPI_SUCCESS || provided < MPI_THREAD_SERIALIZED) {
    throw_error(ErrorKind::communication,
                "MPI does not allow calls from a second thread (it offers level {}, and dptrain "
                "needs {}): use an MPI with thread support",
                provided, int{MPI_THREAD_SERIALIZED});  // an enumerator in Open MPI
  }
}

MpiRuntime::~MpiRuntime() {
  if (std::uncaught_exceptions() > exceptions_at_start_) {
    watchdog_.end_soon(static_cast<int>(ErrorKind::internal), kAbort_s);
    MPI_Abort(MPI_COMM_WORLD, static_cast<int>(ErrorKind::internal));
  } else {
    watchdog_.watch("MPI_Finalize", [] { MPI_Finalize(); });
  }
}

int MpiRuntime::end_with_error(std::string_view program) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  try {
    throw;
  } catch (const AgreedError& error) {
    if (rank == 0) say(program, error.what());
    return error.exit_code();
  } catch (...) {
    std::string message;
    const int exit_code = exit_code_of_current_exception(message);
    int size = 1, length = 0;
    char host[MPI_MAX_PROCESSOR_NAME] = {};
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Get_processor_name(host, &length);
    if (size > 1) message += fmt::format(" (reported by rank {} on host {})", rank, host);
    abort(exit_code, program, message);
  }
}

void MpiRuntime::abort(int exit_code, std::string_view program, std::string_view message) {
  // Several ranks of a host may notice that another rank is lost; one of them reports it.
  const bool may_speak =
      exit_code != static_cast<int>(ErrorKind::communication) || is_first_to_speak();
  if (may_speak && !message.empty()) say(program, message);
  watchdog_.end_soon(exit_code, kAbort_s);
  prepare_job_end(exit_code);
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::_Exit(exit_code);
}

}  // namespace dp
