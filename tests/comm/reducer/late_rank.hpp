// A rank that begins a bucket late, when all others surely wait for it. It counts their looks at
// the network and uses no clock.
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "comm/mpi/communicator.hpp"

namespace dp::testing_support {

class LateRank {
 public:
  explicit LateRank(int rank) : rank_(rank) {}

  // For ReducerOptions::on_look.
  void look() { ++looks_; }
  // All ranks call this instead of bucket_ready. It calls ready() at once, but on the late rank
  // only when every other rank has looked so often since then that it has sent all that it could.
  template <class Ready>
  void start(const Communicator& comm, Ready ready) {
    constexpr int kTag = 4711;
    constexpr long kLooks = 50;
    int nothing = 0;
    if (comm.rank() == rank_) {
      for (int others = comm.size() - 1; others > 0; --others) {
        MPI_Recv(&nothing, 1, MPI_INT, MPI_ANY_SOURCE, kTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      }
      ready();
      return;
    }
    ready();
    const long begin = looks_;
    while (looks_ < begin + kLooks) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    MPI_Send(&nothing, 1, MPI_INT, rank_, kTag, MPI_COMM_WORLD);
  }

 private:
  int rank_;
  std::atomic<long> looks_ = 0;
};

}  // namespace dp::testing_support
