// The transport that sends messages by MPI, on a Communicator.
//
// A channel tests all its transfers in one MPI call per poll(), which keeps polling cheap. Errors
// contain the MPI function, MPI's own text, the peer, rank and host (mpi_check.hpp).
#pragma once

#include "comm/mpi/communicator.hpp"
#include "comm/mpi/transport.hpp"

namespace dp {

class MpiTransport final : public Transport {
 public:
  // `communicator` outlives the transport. Both are used by the same thread.
  explicit MpiTransport(const Communicator& communicator)
      : Transport(communicator.rank(), communicator.size()), communicator_(communicator) {}

  [[nodiscard]] std::string_view host(int rank) const override {
    return communicator_.hosts()[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] std::unique_ptr<Channel> open(std::size_t slots) override;

 private:
  const Communicator& communicator_;
};

}  // namespace dp
