// The frame of a program that runs on many ranks: it starts and ends MPI and handles errors. --help
// and --version are answered without MPI.
#pragma once

#include <functional>

#include "app/process/option_names.hpp"
#include "comm/mpi/communicator.hpp"

namespace dp {

// Starts MPI, calls body on this rank, ends MPI and returns the exit code. An exception of body is
// printed once: rank 0 prints agreed errors; any other error is printed by its rank, which ends the
// job. Processes of another launcher, which MPI does not know as one job, end with exit code 2
// (foreign_launcher.hpp). Settings are told by the names of the program's options. `timeout_s` is
// for MPI's start, for its end, and for all waits of the communicator until another one is set.
[[nodiscard]] int run_ranks(const char* program, const OptionNames& names, int argc, char** argv,
                            const std::function<int(Communicator&)>& body,
                            double timeout_s = Communicator::kDefaultTimeout_s);

// Prints a text on the first of the ranks that a launcher has started, and returns the exit code.
// Other ranks print nothing.
[[nodiscard]] int print_without_mpi(const char* program, const std::string& text);
// The same with a text whose making may throw.
[[nodiscard]] int print_without_mpi(const char* program, const std::function<std::string()>& text);

// Collective. Runs f on every rank; what goes wrong on one is thrown by all, with the names of
// options.
template <class F>
void together(Communicator& comm, const OptionNames& names, F f) {
  comm.together([&] { with_option_names(names, f); });
}

}  // namespace dp
