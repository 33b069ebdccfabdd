#include "app/process/stop_vote.hpp"

#include <algorithm>

#include "comm/mpi/mpi_check.hpp"

namespace dp {

bool StopVote::is_agreed(Communicator& comm, std::uint64_t steps, bool wish) {
  if (!is_due(steps)) return false;
  finish(comm);
  if (std::ranges::any_of(all_, [](const auto& vote) { return vote.value() != 0; })) return true;
  mine_ = Sealed<std::int32_t>(wish ? 1 : 0);
  all_.resize(static_cast<std::size_t>(comm.size()));
  constexpr int kBytes = static_cast<int>(decltype(mine_)::kBytes);
  static_assert(sizeof mine_ == kBytes);  // so that votes lie one after the other
  DP_CHECK_MPI(MPI_Iallgather(mine_.data(), kBytes, MPI_BYTE, all_.data(), kBytes, MPI_BYTE,
                              comm.handle(), &vote_));
  return false;
}

void StopVote::finish(Communicator& comm) {
  if (vote_ == MPI_REQUEST_NULL) return;
  comm.wait(vote_, "a vote on stopping");
  for (std::size_t rank = 0; rank < all_.size(); ++rank) {
    if (!all_[rank].is_intact()) comm.throw_damaged("a vote on stopping", static_cast<int>(rank));
  }
}

}  // namespace dp
