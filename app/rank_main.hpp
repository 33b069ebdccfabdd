// The frame of a program that runs on many ranks: MPI's life, and what an error becomes.
#pragma once

#include <functional>

#include "comm/communicator.hpp"

namespace dp {

// Starts MPI, calls body on this rank, ends MPI; returns the exit code. What body throws is printed
// once: agreed errors by rank 0, others by their rank, which ends the job.
[[nodiscard]] int run_ranks(const char* program, int argc, char** argv,
                            const std::function<int(Communicator&)>& body);

}  // namespace dp
