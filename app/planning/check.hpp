// dptrain --check: tries out, in seconds, what a run with the same options needs, and reports what
// it finds: hosts, network, memory, disk, clocks and data. It does not rate codecs: see plan.hpp.
//
// Nothing is trained and nothing is written, but for a file of no bytes in each output folder,
// which is removed at once.
#pragma once

#include "app/options/options.hpp"
#include "comm/mpi/communicator.hpp"

namespace dp {

// Collective. Returns the exit code: 0 if the run can start, otherwise that of the first thing that
// is wrong. Programs and options were compared before.
[[nodiscard]] int check_run(const Options& options, Communicator& comm);

}  // namespace dp
