// Sends long blocks of bytes from one rank to another, outside the training loop.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "comm/mpi/communicator.hpp"

namespace dp {

// One rank sends and the other receives a block of any length. Blocks between the same two ranks
// arrive in the order in which they were sent. The other ranks' deadlines do not expire meanwhile,
// however slow the link between these two ranks is. Errors are the same as for Communicator.
void send_bytes(Communicator& comm, std::span<const std::byte> bytes, int to);
[[nodiscard]] std::vector<std::byte> receive_bytes(Communicator& comm, int from);

}  // namespace dp
