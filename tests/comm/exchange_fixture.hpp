// Helpers for tests that drive one exchange by hand.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/topology.hpp"
#include "kernels/base/random.hpp"
#include "kernels/codecs/codec.hpp"

namespace dp::testing_support {

// One bucket on one rank: gradient, residual, codec and exchange.
struct Bench {
  Bench(Communicator& communicator, const std::string& spec, std::size_t elements,
        std::size_t segment_floats, std::uint32_t bucket = 0, std::string_view topology = "ring",
        std::vector<int> host_numbers = {})
      : comm(communicator),
        hosts(std::move(host_numbers)),
        codec(make_codec(parse_codec_spec(spec))),
        gradient(elements),
        residual(codec->spec().feedback ? elements : 0),
        segment((segment_floats + codec->block() - 1) / codec->block() * codec->block()),
        exchange(
            find_topology(topology).make({.communicator = &comm,
                                          .bucket = bucket,
                                          .offset = 0,
                                          .gradient = gradient,
                                          .residual = residual.empty() ? nullptr : residual.data(),
                                          .codec = codec.get(),
                                          .seed = 1,
                                          .segment = segment,
                                          .window = 4,
                                          .hosts = hosts})),
        buffers(exchange->needs()) {
    comm.barrier();
  }

  [[nodiscard]] ExchangeShape shape() const {
    return {gradient.size(), static_cast<std::size_t>(comm.size()), segment};
  }

  // Runs one exchange to its end; `between` is called between looks.
  void run(std::uint64_t step, const std::function<void()>& between = {}) {
    exchange->post_receives(buffers, step);
    exchange->start();
    while (!exchange->done()) {
      exchange->progress();
      if (between) between();
    }
  }

  Communicator& comm;
  std::vector<int> hosts;
  std::unique_ptr<Codec> codec;
  std::vector<float> gradient, residual;
  std::size_t segment;
  std::unique_ptr<Exchange> exchange;
  BufferSet buffers;
};

// The same vector of rank 0 on all ranks.
inline std::vector<float> of_rank_0(Communicator& comm, std::vector<float> values) {
  MPI_Bcast(values.data(), static_cast<int>(values.size()), MPI_FLOAT, 0, comm.handle());
  return values;
}

// Fails on the ranks whose bits differ from rank 0's.
inline void expect_same_bits(Communicator& comm, const std::vector<float>& values) {
  const auto first = of_rank_0(comm, values);
  if (values.empty()) return;
  EXPECT_EQ(std::memcmp(first.data(), values.data(), values.size() * sizeof(float)), 0)
      << "differs from rank 0";
}

// Sums over ranks, in double.
inline std::vector<double> sum_over_ranks(Communicator& comm, const std::vector<float>& values) {
  std::vector<double> sum(values.begin(), values.end());
  MPI_Allreduce(MPI_IN_PLACE, sum.data(), static_cast<int>(sum.size()), MPI_DOUBLE, MPI_SUM,
                comm.handle());
  return sum;
}

inline void fill_normal(std::vector<float>& values, std::uint64_t seed, double scale = 1.0) {
  const CounterRng rng(seed, RandomStream::test);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(scale * normal(rng, i));
  }
}

}  // namespace dp::testing_support
