// Names the rank and the tensor whose gradient was not finite, for the message about a skipped
// step.
#pragma once

#include <string>

#include "app/training/replica/replica.hpp"
#include "comm/reducer/reducer.hpp"

namespace dp {

// Collective, after an exchange. Returns, for example, "rank 2 on host node3, first in
// layer1.0.conv1.weight": the lowest rank whose gradient was not finite, and the first such tensor
// in the order in which gradients are sent (the last layer's first).
[[nodiscard]] std::string describe_not_finite(Replica& replica, const Communicator& comm,
                                              const StepVerdict& verdict);
// The same for this rank's own gradient, which was not exchanged.
[[nodiscard]] std::string describe_own_not_finite(Replica& replica, const Communicator& comm);

}  // namespace dp
