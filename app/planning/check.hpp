// dptrain --check: tests within seconds whether a run with the same options could start, and
// reports on hosts, network, memory, disk, clocks and data. It does not rate codecs: see plan.hpp.
//
// Nothing is trained. Nothing is written except an empty file in each output folder, which is
// removed at once.
#pragma once

#include "app/options/options.hpp"
#include "comm/mpi/communicator.hpp"

namespace dp {

// Collective. Returns the exit code: 0 if the run can start, otherwise the code of the first
// problem. Call it after programs and options have been compared.
[[nodiscard]] int check_run(const Options& options, Communicator& comm);

}  // namespace dp
