// What all ranks must have in common before the first step, so that no run computes with different
// programs, options or processors without saying so. (The data have a check of their own,
// run_setup.cpp.) One collective of a few bytes if all agree.
//
// All are collective. If ranks differ, all throw the same AgreedError, which names the first rank
// that differs and how:
//     program    revision, version of MPI, and for each architecture the build. x86-64 and arm64
//                may train together: coding, sums and updates of the weights consist of IEEE
//                operations that no compiler fuses, and of sums in a fixed order.  exit code 2
//     options    the command line, with what --config and --recipe add; --device and --threads
//                are each rank's own                                      exit code 2
//     processor  only where an update of the weights depends on it       exit code 5
#pragma once

#include <string>
#include <vector>

#include "app/options/options.hpp"
#include "comm/mpi/communicator.hpp"
#include "kernels/device.hpp"

namespace dp {

void agree_on_program(Communicator& comm);

// `options` are those of rank 0, which all ranks use, except that a rank keeps its own device and
// threads; `arguments` is this rank's own command line.
void agree_on_options(Communicator& comm, Options& options,
                      const std::vector<std::string>& arguments, const OptionContext& context);

// Ranks may have different processors and numbers of threads: replicas stay equal, since all use
// the same sums. Rank 0 says that the bits are repeated on such machines only. The optimiser Muon
// needs processors of one kind.
void agree_on_processors(Communicator& comm, const Options& options, const Device& device);

}  // namespace dp
