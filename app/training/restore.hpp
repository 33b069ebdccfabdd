// Gives a run the state of the checkpoint from which it goes on, also with another number of ranks.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "app/checkpoint/fingerprint.hpp"
#include "app/checkpoint/resume.hpp"
#include "app/training/replica/replica.hpp"
#include "kernels/base/state.hpp"

namespace dp {

// Collective, between steps. Residuals are added up: what rank r had not sent yet goes to rank
// r mod P and, with the topology hierarchical, on to the leader of its host, since nobody else
// encodes. A rank without a part takes the mean of the others' running statistics, and begins with
// empty residuals. Returns lines for the user: what is lost, and what has no place any more.
[[nodiscard]] std::vector<std::string> restore_run(Replica& replica, const StateList& list,
                                                   const ResumePoint& point, const RunFacts& facts,
                                                   bool is_hierarchical);

// Collective, the last part of it: every rank's residual is added to that of the lowest rank of its
// host, and is zero then. `hosts` has each rank's host as a number.
void bring_residuals_to_leaders(Device& device, Communicator& comm, const StateList& list,
                                std::span<const int> hosts);

}  // namespace dp
