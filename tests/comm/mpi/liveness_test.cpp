// Questions and answers between ranks: who has answered, and what is counted.
#include "comm/mpi/liveness.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "comm/mpi/communicator.hpp"
#include "kernels/base/error.hpp"
#include "tests/support/skipped.hpp"

namespace dp {
namespace {

using std::chrono::milliseconds;

TEST(Liveness, EveryRankAnswersAndEveryByteIsCounted) {
  Communicator comm;
  Liveness liveness(MPI_COMM_WORLD);
  EXPECT_EQ(liveness.sent_bytes(), 0u);
  liveness.ask();
  const auto mine = Whereabouts{.step = 10 + static_cast<std::uint64_t>(comm.rank())};
  const auto others = static_cast<std::uint64_t>(comm.size() - 1);
  const auto is_over = [&] {
    for (int rank = 0; rank < comm.size(); ++rank) {
      if (!liveness.has_answered(rank)) return false;
    }
    return liveness.sent_bytes() >= 2 * others * Liveness::kMessageBytes;
  };
  while (!is_over()) {
    liveness.serve(mine);
    std::this_thread::sleep_for(milliseconds(1));
  }
  // A question to each other rank, and an answer to its question.
  EXPECT_EQ(liveness.sent_bytes(), 2 * others * Liveness::kMessageBytes);
  for (int rank = 0; rank < comm.size(); ++rank) {
    if (rank == comm.rank()) continue;
    EXPECT_EQ(liveness.whereabouts(rank).step, 10 + static_cast<std::uint64_t>(rank));
  }
  comm.barrier();
}

// A rank that answers is alive, and is waited for ten times as long; then the one that is furthest
// behind is named, and what to do.
TEST(Deadline, SaysWhoIsBehindThoughAllAnswer) {
  Communicator comm;
  DP_NEEDS_RANKS(comm, 2);
  Liveness liveness(MPI_COMM_WORLD);
  const std::vector<std::string> hosts(static_cast<std::size_t>(comm.size()), "h");
  const Whereabouts mine = {
      .step = 17, .buckets_begun = comm.rank() == 1 ? 1u : 3u, .is_in_step = 1};
  MPI_Request over = MPI_REQUEST_NULL;
  std::string said;
  comm.barrier();
  // On a busy machine a rank may have no processor for long, and is taken to be silent: once more.
  while (comm.rank() == 0 && !said.starts_with("the exchange")) {
    said.clear();
    Deadline deadline(liveness, hosts, nullptr, 0, 0.2);
    while (said.empty()) {
      std::this_thread::sleep_for(milliseconds(1));
      try {
        deadline.check(mine, [] { return std::string("the exchange of bucket 3 in step 17"); });
      } catch (const Error& error) {
        said = error.what();
      }
    }
  }
  MPI_Ibarrier(comm.handle(), &over);
  for (int is_over = 0; is_over == 0;) {
    liveness.serve(mine);
    std::this_thread::sleep_for(milliseconds(1));
    MPI_Test(&over, &is_over, MPI_STATUS_IGNORE);
  }
  if (comm.rank() == 0) {
    EXPECT_EQ(said.find("the exchange of bucket 3 in step 17 has made no progress for "), 0u)
        << said;
    EXPECT_NE(said.find("rank 1 on host h is the furthest behind: it is in step 17 and has begun 1 "
                        "of its buckets"),
              std::string::npos)
        << said;
    EXPECT_NE(said.find("raise the timeout, now 0.2 s"), std::string::npos) << said;
  }
}

// A rank that is busy is waited for while it comes on, and for a while when it does not.
TEST(Deadline, WaitsForABusyRankWhileItComesOn) {
  Communicator comm;
  DP_NEEDS_RANKS(comm, 2);
  Liveness liveness(MPI_COMM_WORLD);
  liveness.set_patience({.with_living = 1.0, .with_busy = 3.0});
  const std::vector<std::string> hosts(static_cast<std::size_t>(comm.size()), "h");
  constexpr double kTimeout_s = 0.25;
  constexpr std::uint32_t kWork = 3;  // pieces, each of which takes longer than the first patience
  MPI_Request over = MPI_REQUEST_NULL;
  Whereabouts mine = {.is_busy = comm.rank() == 1 ? 1u : 0u};
  std::uint32_t seen = 0;
  std::string said;
  comm.barrier();
  while (comm.rank() == 0 && !said.starts_with("the start")) {
    said.clear();
    Deadline deadline(liveness, hosts, nullptr, 0, kTimeout_s);
    while (said.empty()) {
      std::this_thread::sleep_for(milliseconds(1));
      try {
        deadline.check(mine, [] { return std::string("the start"); });
        seen = liveness.whereabouts(1).buckets_begun;
      } catch (const Error& error) {
        said = error.what();
      }
    }
  }
  MPI_Ibarrier(comm.handle(), &over);
  auto next = Liveness::Clock::now();
  for (int is_over = 0; is_over == 0;) {
    liveness.serve(mine);
    if (Liveness::Clock::now() > next && mine.buckets_begun < kWork) {
      ++mine.buckets_begun;
      next += milliseconds(300);
    }
    std::this_thread::sleep_for(milliseconds(1));
    MPI_Test(&over, &is_over, MPI_STATUS_IGNORE);
  }
  if (comm.rank() == 0) {
    EXPECT_EQ(seen, kWork);
    EXPECT_NE(said.find("rank 1 on host h is the furthest behind: it is busy with work of its own"),
              std::string::npos)
        << said;
    EXPECT_NE(said.find("the limit is 1 timeouts if all ranks answer, 3 if one is busy"),
              std::string::npos)
        << said;
  }
}

// Questions and answers are under way when their owner goes, again and again. The last test: what
// was not taken comes to those who get the same context of MPI later.
TEST(LivenessAtItsEnd, MayHaveQuestionsUnderWay) {
  Communicator comm;
  for (int round = 0; round < 50; ++round) {
    Liveness liveness(MPI_COMM_WORLD);
    liveness.ask();
    if (round % 2 == comm.rank() % 2) liveness.serve({});
  }
  comm.barrier();
}

}  // namespace
}  // namespace dp
