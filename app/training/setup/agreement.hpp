// Checks before the first step that all ranks have the same program and options and, if it matters,
// the same kind of processor, so that no run silently mixes them. (run_setup.cpp compares the
// data.) If all agree, a check costs one collective of a few bytes.
//
// All functions are collective. If ranks differ, all ranks throw the same AgreedError, which names
// the first rank that differs and how:
//     program    revision, version of MPI, and among equal processors the build. x86-64 and arm64
//                may train together, because coding, sums and weight updates consist of IEEE
//                operations that no compiler fuses, in a fixed order       exit code 2
//     options    the command line, with what --config and --recipe add; --device and --threads
//                are each rank's own                                       exit code 2
//     processor  only if an update of the weights depends on it            exit code 5
#pragma once

#include <string>
#include <vector>

#include "app/options/options.hpp"
#include "comm/mpi/communicator.hpp"
#include "kernels/device.hpp"

namespace dp {

void agree_on_program(Communicator& comm);

// All ranks get the `options` of rank 0, except that each rank keeps its own device and threads.
// `arguments` is this rank's own command line.
void agree_on_options(Communicator& comm, Options& options,
                      const std::vector<std::string>& arguments, const OptionContext& context);

// Ranks may have different processors and numbers of threads: replicas stay equal, because all use
// the same sums. If ranks differ, rank 0 reports that the run gives the same bits again only on the
// same kinds of machines. The optimiser Muon needs processors of one kind.
void agree_on_processors(Communicator& comm, const Options& options, const Device& device);

}  // namespace dp
