// The frame of a program that runs on many ranks: it starts and ends MPI and handles errors. It
// answers --help and --version without MPI.
#pragma once

#include <functional>

#include "app/process/option_names.hpp"
#include "comm/mpi/communicator.hpp"

namespace dp {

// Starts MPI, calls body on this rank, ends MPI and returns the exit code. An exception of body is
// printed once: rank 0 prints agreed errors; any other error is printed by its rank, which ends the
// job. If a foreign launcher has started the processes, MPI does not know them as one job, and they
// end with exit code 2 (foreign_launcher.hpp). Messages use the program's option names. `timeout_s`
// applies to MPI's start and end, and to all waits of the communicator until another timeout is
// set.
[[nodiscard]] int run_ranks(const char* program, const OptionNames& names, int argc, char** argv,
                            const std::function<int(Communicator&)>& body,
                            double timeout_s = Communicator::kDefaultTimeout_s);

// Prints a text on the first of the ranks that a launcher has started, and returns the exit code.
// Other ranks print nothing.
[[nodiscard]] int print_without_mpi(const char* program, const std::string& text);
// The same with a text from a function, which may throw.
[[nodiscard]] int print_without_mpi(const char* program, const std::function<std::string()>& text);

// Collective. Runs f on every rank. An error on one rank is thrown by all, with option names.
template <class F>
void together(Communicator& comm, const OptionNames& names, F f) {
  comm.together([&] { with_option_names(names, f); });
}

}  // namespace dp
