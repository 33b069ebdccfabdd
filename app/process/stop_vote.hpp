// How ranks that exchange no gradients agree on the step after which they stop.
//
// Every 8 steps each rank gives its vote, and it sees the votes of all ranks 8 steps later. Nobody
// waits in between, so ranks that train their own models may be 8 steps apart. (Ranks that exchange
// gradients agree through their messages' headers, comm/exchange/segment_exchange.hpp.)
#pragma once

#include <mpi.h>

#include <cstdint>
#include <vector>

#include "comm/mpi/communicator.hpp"
#include "comm/mpi/seal.hpp"

namespace dp {

class StopVote {
 public:
  // Collective, after every step. `steps` is the number of steps so far. True: all ranks stop now.
  [[nodiscard]] bool is_agreed(Communicator& comm, std::uint64_t steps, bool wish);
  // Collective: waits for the vote that is under way, if there is one.
  void finish(Communicator& comm);
  // Whether is_agreed() has work to do after this many steps.
  [[nodiscard]] static bool is_due(std::uint64_t steps) { return steps % kEvery == 0; }

 private:
  static constexpr std::uint64_t kEvery = 8;
  MPI_Request vote_ = MPI_REQUEST_NULL;
  Sealed<std::int32_t> mine_;
  std::vector<Sealed<std::int32_t>> all_;  // by rank, of the last vote
};

}  // namespace dp
