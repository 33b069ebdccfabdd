// Restores a run's state from its checkpoint, even if the number of ranks has changed.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "app/checkpoint/fingerprint.hpp"
#include "app/checkpoint/resume.hpp"
#include "app/training/replica/replica.hpp"
#include "kernels/base/state.hpp"

namespace dp {

// Collective, between steps. In a run of P ranks, the residual of the checkpoint's rank r is added
// to the residual of rank r mod P. With the topology "hierarchical", that rank passes the residual
// on to the leader of its host, because only leaders encode. A rank that has no part in the
// checkpoint takes the mean of the other ranks' running statistics, and begins with an empty
// residual. Returns lines for the user about lost state, and about state in the checkpoint that
// this run cannot use.
[[nodiscard]] std::vector<std::string> restore_run(Replica& replica, const StateList& list,
                                                   const ResumePoint& point, const RunFacts& facts,
                                                   bool is_hierarchical);

// Collective; the last part of restore_run(). On each host, adds the residuals of all other ranks
// to the residual of the lowest rank, and then clears the others' residuals. hosts: each rank's
// host as a number.
void bring_residuals_to_leaders(Device& device, Communicator& comm, const StateList& list,
                                std::span<const int> hosts);

}  // namespace dp
