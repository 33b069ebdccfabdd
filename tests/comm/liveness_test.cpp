// Questions and answers between ranks: who has answered, and what is counted.
#include "comm/liveness.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "comm/communicator.hpp"

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

}  // namespace
}  // namespace dp
