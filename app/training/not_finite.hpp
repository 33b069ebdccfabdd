// Whose gradient was not finite, and where, for the message about a step that is skipped.
#pragma once

#include <string>

#include "app/training/replica/replica.hpp"
#include "comm/reducer/reducer.hpp"

namespace dp {

// Collective, after an exchange. "rank 2 on host node3, first in layer1.0.conv1.weight": the lowest
// such rank, and the first tensor in the order in which gradients are sent (the last layer's
// first).
[[nodiscard]] std::string describe_not_finite(Replica& replica, const Communicator& comm,
                                              const StepVerdict& verdict);
// The same of this rank's own gradient, which was not exchanged.
[[nodiscard]] std::string describe_own_not_finite(Replica& replica, const Communicator& comm);

}  // namespace dp
