#include "app/rank_main.hpp"

#include <cstdio>
#include <string>

#include "comm/mpi_runtime.hpp"
#include "kernels/base/error.hpp"

namespace dp {

int run_ranks(const char* program, const OptionNames& names, int argc, char** argv,
              const std::function<int(Communicator&)>& body) {
  try {
    MpiRuntime mpi(&argc, &argv);
    try {
      Communicator comm;
      return with_option_names(names, [&] { return body(comm); });
    } catch (...) {
      return mpi.end_with_error(program);
    }
  } catch (...) {  // MPI itself did not start
    std::string message;
    const int exit_code = exit_code_of_current_exception(message);
    std::fprintf(stderr, "%s: %s\n", program, message.c_str());
    return exit_code;
  }
}

}  // namespace dp
