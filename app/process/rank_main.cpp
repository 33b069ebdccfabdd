#include "app/process/rank_main.hpp"

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include "app/process/run_status.hpp"
#include "app/process/stop_notice.hpp"
#include "comm/mpi/runtime/foreign_launcher.hpp"
#include "comm/mpi/runtime/mpi_runtime.hpp"
#include "kernels/base/error.hpp"
#include "kernels/base/standard_streams.hpp"

namespace dp {

int run_ranks(const char* program, const OptionNames& names, int argc, char** argv,
              const std::function<int(Communicator&)>& body, double timeout_s) {
  try {
    MpiRuntime mpi(&argc, &argv,
                   {.program = program,
                    .timeout_option = std::string(names.option_of(Setting{"timeout"})),
                    .timeout_s = timeout_s,
                    .on_end = [](int exit_code) { RunStatus::say_end(exit_code); }});
    try {
      std::optional<Communicator> comm;
      mpi.watchdog().watch("MPI_Comm_dup", [&] { comm.emplace(); });
      comm->set_timeout_s(timeout_s);
      comm->set_warn([program](const std::string& text) {
        std::fprintf(stderr, "%s: %s\n", program, text.c_str());
      });
      comm->together([&] {
        const MpiPlace place = {
            .rank = comm->rank(), .ranks = comm->size(), .world_ranks = comm->size()};
        if (const auto why = foreign_launcher(std::getenv, place, program)) {
          throw Error(ErrorKind::usage, *why);
        }
      });
      const int exit_code = with_option_names(names, [&] { return body(*comm); });
      StopNotice::run_is_over();
      RunStatus::say_end(exit_code);
      mpi.watchdog().set_timeout_s(comm->timeout_s());
      mpi.watchdog().watch("MPI_Comm_free", [&] { comm.reset(); });
      return exit_code;
    } catch (...) {
      std::string message;
      StopNotice::run_is_over();
      RunStatus::say_end(exit_code_of_current_exception(message));
      return mpi.end_with_error(program);
    }
  } catch (...) {  // MPI itself did not start
    std::string message;
    const int exit_code = exit_code_of_current_exception(message);
    std::fprintf(stderr, "%s: %s\n", program, message.c_str());
    return exit_code;
  }
}

int print_without_mpi(const char* program, const std::string& text) {
  return print_without_mpi(program, [&] { return text; });
}

int print_without_mpi(const char* program, const std::function<std::string()>& text) {
  // These variables are set by Open MPI's mpirun, and by srun with PMIx or PMI2.
  for (const char* variable : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}) {
    const char* rank = std::getenv(variable);
    if (rank != nullptr && std::string(rank) != "0") return EXIT_SUCCESS;
  }
  try {
    std::fputs(text().c_str(), stdout);
    check_output();
    return EXIT_SUCCESS;
  } catch (...) {
    std::string message;
    const int exit_code = exit_code_of_current_exception(message);
    std::fprintf(stderr, "%s: %s\n", program, message.c_str());
    return exit_code;
  }
}

}  // namespace dp
