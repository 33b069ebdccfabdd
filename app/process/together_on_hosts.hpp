// Adds the name of the host to errors of set-up.
#pragma once

#include <string>

#include "app/process/option_names.hpp"
#include "app/process/rank_main.hpp"
#include "comm/mpi/communicator.hpp"
#include "kernels/base/error.hpp"

namespace dp {

// Does what together() does. In a run on several hosts, an error that is not a usage error also
// names its host.
template <class F>
void together_on_hosts(Communicator& comm, F f) {
  together(comm, kDptrainNames, [&] {
    if (comm.local_size() == comm.size()) return f();
    try {
      with_option_names(kDptrainNames, f);
    } catch (...) {
      std::string message;
      const auto kind = static_cast<ErrorKind>(exit_code_of_current_exception(message));
      if (kind == ErrorKind::usage) throw;
      throw_error(kind, "on host {}: {}", comm.host(), message);
    }
  });
}

}  // namespace dp
