#include "app/stop_vote.hpp"

#include "comm/check.hpp"

namespace dp {

bool StopVote::is_agreed(Communicator& comm, std::uint64_t steps, bool wish) {
  if (!is_due(steps)) return false;
  finish(comm);
  if (all_ != 0) return true;
  mine_ = wish ? 1 : 0;
  DP_CHECK_MPI(MPI_Iallreduce(&mine_, &all_, 1, MPI_INT, MPI_MAX, comm.handle(), &vote_));
  return false;
}

void StopVote::finish(Communicator& comm) {
  if (vote_ != MPI_REQUEST_NULL) comm.wait(vote_, "a vote on stopping");
}

}  // namespace dp
