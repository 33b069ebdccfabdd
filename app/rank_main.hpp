// The frame of a program that runs on many ranks: it starts and ends MPI and handles errors.
#pragma once

#include <functional>

#include "comm/communicator.hpp"

namespace dp {

// Starts MPI, calls body on this rank, ends MPI and returns the exit code. An exception of body is
// printed once: rank 0 prints agreed errors; any other error is printed by its rank, which ends the
// job.
[[nodiscard]] int run_ranks(const char* program, int argc, char** argv,
                            const std::function<int(Communicator&)>& body);

}  // namespace dp
