// The vote on stopping of ranks that exchange no gradients: when it is held, what it decides, and
// that nobody obeys a vote that was damaged on the way.
//
// MPI_Iallgather stands here once more: it flips a bit of the last rank's vote.
#include "app/process/stop_vote.hpp"

#include <gtest/gtest.h>
#include <mpi.h>

#include <array>
#include <cstring>
#include <optional>
#include <string>

#include "tests/support/skipped.hpp"

namespace {

std::optional<std::size_t> flipped_bit;  // of this rank's next vote

}  // namespace

extern "C" int MPI_Iallgather(const void* data, int n, MPI_Datatype type, void* all, int m,
                              MPI_Datatype t, MPI_Comm comm, MPI_Request* request) {
  static std::array<unsigned char, 64> copy;  // MPI reads it until the vote is over
  if (flipped_bit && type == MPI_BYTE && n == dp::Sealed<std::int32_t>::kBytes) {
    std::memcpy(copy.data(), data, static_cast<std::size_t>(n));
    copy.at(*flipped_bit / 8) ^= static_cast<unsigned char>(1u << (*flipped_bit % 8));
    flipped_bit.reset();
    data = copy.data();
  }
  return PMPI_Iallgather(data, n, type, all, m, t, comm, request);
}

namespace dp {
namespace {

// The step after which the ranks stop, if one of them wishes to from step `from` on.
std::uint64_t stop_step(Communicator& comm, std::uint64_t from, int who) {
  StopVote vote;
  for (std::uint64_t steps = 1; steps < 100; ++steps) {
    const bool wish = comm.rank() == who && steps >= from;
    if (vote.is_agreed(comm, steps, wish)) return steps;
  }
  vote.finish(comm);
  return 0;
}

TEST(StopVote, AllStopAfterTheSameStep) {
  Communicator comm;
  const int last = comm.size() - 1;
  EXPECT_EQ(stop_step(comm, 1000, last), 0u);
  // The votes of step 8 are known at step 16.
  EXPECT_EQ(stop_step(comm, 1, last), 16u);
  EXPECT_EQ(stop_step(comm, 8, last), 16u);
  EXPECT_EQ(stop_step(comm, 9, last), 24u);
}

TEST(StopVote, NobodyObeysADamagedVote) {
  Communicator all;
  DP_NEEDS_RANKS(all, 2);
  const int last = all.size() - 1;
  for (std::size_t bit = 0; bit < 8 * Sealed<std::int32_t>::kBytes; ++bit) {
    for (const bool wish : {false, true}) {
      SCOPED_TRACE(fmt::format("bit {}, wish {}", bit, wish));
      Communicator comm;
      StopVote vote;
      if (comm.rank() == last) flipped_bit = bit;
      EXPECT_FALSE(vote.is_agreed(comm, 8, wish && comm.rank() == last));
      EXPECT_FALSE(flipped_bit.has_value()) << "there was no vote";
      std::string said;
      try {
        EXPECT_FALSE(vote.is_agreed(comm, 16, false));
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::communication);
        said = error.what();
      }
      const std::string ends = fmt::format(
          "a vote on stopping was damaged on the way between rank {} and rank {} (both "
          "on host {}): ",
          last, comm.rank(), comm.host());
      if (comm.rank() != last) {
        EXPECT_EQ(said.substr(0, ends.size()), ends);
      }
      all.barrier();
    }
  }
}

// At the end of a run a vote is under way, which nobody obeys any more.
TEST(StopVote, TheLastVoteIsChecked) {
  Communicator all;
  DP_NEEDS_RANKS(all, 2);
  Communicator comm;
  StopVote vote;
  if (comm.rank() == all.size() - 1) flipped_bit = 0;
  EXPECT_FALSE(vote.is_agreed(comm, 8, false));
  if (comm.rank() == all.size() - 1) {
    try {
      vote.finish(comm);
    } catch (const Error&) {  // it got its own vote back
    }
  } else {
    EXPECT_THROW(vote.finish(comm), Error);
  }
  all.barrier();
}

}  // namespace
}  // namespace dp
