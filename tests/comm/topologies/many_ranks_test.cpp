// Every topology with as many ranks as dptrain is made for: exact sums, equal bits, exact bytes.
#include <gtest/gtest.h>

#include <thread>

#include "tests/comm/exchange/exchange_fixture.hpp"

namespace dp {
namespace {

using namespace testing_support;

TEST(ManyRanks, EveryTopologySums) {
  Communicator comm;
  const auto p = static_cast<std::size_t>(comm.size());
  std::vector<int> hosts;  // four ranks a host
  for (std::size_t rank = 0; rank < p; ++rank) hosts.push_back(static_cast<int>(rank / 4));
  for (const Topology& topology : topology_list()) {
    for (const char* spec : {"none", "q4:block=64"}) {
      for (const std::size_t n : {std::size_t{5}, std::size_t{2'003}}) {
        SCOPED_TRACE(std::string(topology.name) + ", " + spec + ", " + std::to_string(n));
        Bench bench(comm, spec, n, 64, 0, topology.name, hosts);
        for (std::uint64_t step = 0; step < 2; ++step) {
          for (std::size_t i = 0; i < n; ++i) {
            bench.gradient[i] =
                static_cast<float>((i * 7 + static_cast<std::size_t>(comm.rank())) % 51);
          }
          const auto exact = sum_over_ranks(comm, bench.gradient);
          bench.run(step, [] { std::this_thread::yield(); });
          EXPECT_TRUE(bench.exchange->finite());
          expect_same_bits(comm, bench.gradient);
          if (std::string_view(spec) != "none") continue;
          for (std::size_t i = 0; i < n; ++i) {
            EXPECT_EQ(static_cast<double>(bench.gradient[i]), exact[i]);
          }
        }
        EXPECT_EQ(bench.exchange->stats().sent_bytes,
                  2 * topology.wire_bytes(bench.shape(), hosts,
                                          static_cast<std::size_t>(comm.rank()), *bench.codec));
      }
    }
  }
}

}  // namespace
}  // namespace dp
