// Restores a run's state from its checkpoint, also with another number of ranks.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "app/checkpoint/fingerprint.hpp"
#include "app/checkpoint/resume.hpp"
#include "app/training/replica/replica.hpp"
#include "kernels/base/state.hpp"

namespace dp {

// Collective, between steps. Residuals are added up: the residual of rank r goes to rank r mod P
// and, with the topology hierarchical, on to the leader of its host, the only rank there that
// encodes. A rank without a part takes the mean of the others' running statistics, and begins with
// empty residuals. Returns lines for the user: what is lost, and what the run has no place for.
[[nodiscard]] std::vector<std::string> restore_run(Replica& replica, const StateList& list,
                                                   const ResumePoint& point, const RunFacts& facts,
                                                   bool is_hierarchical);

// Collective; the last step of restore_run(). Adds every rank's residual to the residual of the
// lowest rank of its host, and clears it. hosts: each rank's host as a number.
void bring_residuals_to_leaders(Device& device, Communicator& comm, const StateList& list,
                                std::span<const int> hosts);

}  // namespace dp
