// Long blocks of bytes from one rank to another, outside of the training loop.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "comm/mpi/communicator.hpp"

namespace dp {

// One rank sends and the other receives. Of any length; several between the same two ranks arrive
// in the order in which they were sent. The other ranks wait meanwhile, however slow the link is
// between these two. Fails as Communicator does.
void send_bytes(Communicator& comm, std::span<const std::byte> bytes, int to);
[[nodiscard]] std::vector<std::byte> receive_bytes(Communicator& comm, int from);

}  // namespace dp
