// Helpers for tests that drive exchanges by hand.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "comm/mpi/communicator.hpp"
#include "comm/mpi/mpi_transport.hpp"
#include "comm/topologies/topology.hpp"
#include "kernels/base/random.hpp"
#include "kernels/codecs/codec.hpp"
#include "tests/codecs/codec_testing.hpp"

namespace dp::testing_support {

// One bucket on one rank: gradient, residual, codec and exchange.
struct Bench {
  Bench(Communicator& communicator, const std::string& spec, std::size_t elements,
        std::size_t segment_floats, std::uint32_t bucket = 0, std::string_view topology = "ring",
        std::vector<int> host_numbers = {}, std::vector<std::uint32_t> weights = {},
        CodecThreads* threads = nullptr)
      : Bench(communicator, make_codec(parse_codec_spec(spec)), elements, segment_floats, bucket,
              topology, std::move(host_numbers), std::move(weights), threads) {
    comm.barrier();
  }
  // With a codec of the test's own, and without the barrier that goes before an exchange that takes
  // over a bucket's number: who makes several at once waits for all of them together.
  Bench(Communicator& communicator, std::unique_ptr<Codec> own_codec, std::size_t elements,
        std::size_t segment_floats, std::uint32_t bucket = 0, std::string_view topology = "ring",
        std::vector<int> host_numbers = {}, std::vector<std::uint32_t> weights = {},
        CodecThreads* threads = nullptr)
      : comm(communicator),
        transport(communicator),
        hosts(std::move(host_numbers)),
        owner_weights(std::move(weights)),
        codec(std::move(own_codec)),
        gradient(elements),
        residual(codec->spec().feedback ? elements : 0),
        segment((segment_floats + codec->block() - 1) / codec->block() * codec->block()),
        number(bucket),
        exchange(
            find_topology(topology).make({.transport = &transport,
                                          .bucket = bucket,
                                          .stream = bucket,
                                          .offset = 0,
                                          .gradient = gradient,
                                          .residual = residual.empty() ? nullptr : residual.data(),
                                          .codec = codec.get(),
                                          .seed = 1,
                                          .segment = segment,
                                          .window = 4,
                                          .hosts = hosts,
                                          .owner_weights = owner_weights,
                                          .threads = threads,
                                          .stop_wish = &stop_wish})),
        buffers(exchange->needs()) {}

  [[nodiscard]] ExchangeShape shape() const {
    return {.elements = gradient.size(),
            .ranks = static_cast<std::size_t>(comm.size()),
            .segment = segment,
            .turn = number,
            .owner_weights = owner_weights};
  }

  // Runs one exchange to its end and calls `between` after each look.
  void run(std::uint64_t step, const std::function<void()>& between = {});

  Communicator& comm;
  MpiTransport transport;
  std::vector<int> hosts;
  std::vector<std::uint32_t> owner_weights;
  std::unique_ptr<Codec> codec;
  std::vector<float> gradient, residual;
  std::size_t segment;
  std::uint32_t number;                 // the bucket's
  std::atomic<bool> stop_wish = false;  // this rank's
  std::unique_ptr<Exchange> exchange;
  BufferSet buffers;
};

// A pause after a look that has moved nothing. Ranks share processors. A rank that sleeps leaves
// its processor to the ranks that it waits for and soon has it again. A rank that only yields waits
// for the others' time slices.
inline void rest() { std::this_thread::sleep_for(std::chrono::microseconds(20)); }

// Runs one exchange of each bench at the same time, until all have ended. If they ran one after the
// other, ranks that share a processor would wait for each other once per bucket.
inline void run_together(std::span<const std::unique_ptr<Bench>> benches, std::uint64_t step,
                         const std::function<void()>& between = {}) {
  for (const auto& bench : benches) bench->exchange->post_receives(bench->buffers, step);
  for (const auto& bench : benches) bench->exchange->start();
  for (bool all_done = false; !all_done;) {
    bool has_moved = false;
    all_done = true;
    for (const auto& bench : benches) {
      has_moved = bench->exchange->progress() || has_moved;
      all_done = all_done && bench->exchange->done();
    }
    if (between) between();
    if (!has_moved) rest();
  }
}

inline void Bench::run(std::uint64_t step, const std::function<void()>& between) {
  exchange->post_receives(buffers, step);
  exchange->start();
  while (!exchange->done()) {
    if (!exchange->progress()) rest();
    if (between) between();
  }
}

// The spec with one more key.
inline std::string with_key(const std::string& spec, std::string_view key, std::string_view value) {
  return fmt::format("{}{}{}={}", spec, spec.find(':') == std::string::npos ? ':' : ',', key,
                     value);
}

// Every codec that writes segments, with blocks of 64 values and with a tenth of the values sent,
// or those above the usual magnitude. Each codec comes again with every other choice of its keys
// (rounding at random, bf16 values, ...) except `ef`.
inline std::vector<std::string> small_specs() {
  // Numbers that suit buckets of a few hundred normal values; other keys keep their defaults.
  const std::pair<std::string_view, std::string_view> numbers[] = {
      {"block", "64"}, {"ratio", "0.1"}, {"alpha", "1"}};
  std::vector<std::string> specs;
  for (const CodecInfo& info : codec_list()) {
    if (info.is_exchange) continue;
    std::string spec(info.name);
    for (const auto& [key, value] : numbers) {
      if (info.find(key) != nullptr) spec = with_key(spec, key, value);
    }
    specs.push_back(spec);
    for (const CodecParameter& parameter : info.parameters) {
      if (parameter.kind != CodecParameter::Kind::choice || parameter.key == "ef") continue;
      for (const std::string& choice : test::tried_values(parameter, {})) {
        specs.push_back(with_key(spec, parameter.key, choice));
      }
    }
  }
  return specs;
}

// All of small_specs(), again with the other choice of `ef` than their default, and every codec
// with its defaults.
inline std::vector<std::string> all_specs() {
  std::vector<std::string> specs = small_specs();
  for (std::size_t i = 0, n = specs.size(); i < n; ++i) {
    const CodecSpec spec = parse_codec_spec(specs[i]);
    if (!find_codec(spec.name)->can_feedback()) continue;
    specs.push_back(with_key(specs[i], "ef", spec.feedback ? "off" : "force"));
  }
  for (const CodecInfo& info : codec_list()) {
    const std::string name(info.name);
    if (!info.is_exchange && std::ranges::count(specs, name) == 0) specs.push_back(name);
  }
  return specs;
}

// Rank 0's vector on all ranks.
inline std::vector<float> of_rank_0(Communicator& comm, std::vector<float> values) {
  MPI_Bcast(values.data(), static_cast<int>(values.size()), MPI_FLOAT, 0, comm.handle());
  return values;
}

// Fails on each rank whose bits differ from rank 0's.
inline void expect_same_bits(Communicator& comm, const std::vector<float>& values) {
  const auto first = of_rank_0(comm, values);
  if (values.empty()) return;
  EXPECT_EQ(std::memcmp(first.data(), values.data(), values.size() * sizeof(float)), 0)
      << "differs from rank 0";
}

// Sums over ranks, in double.
inline void sum_over_ranks(Communicator& comm, std::vector<double>& values) {
  MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_DOUBLE, MPI_SUM,
                comm.handle());
}
inline std::vector<double> sum_over_ranks(Communicator& comm, const std::vector<float>& values) {
  std::vector<double> sum(values.begin(), values.end());
  sum_over_ranks(comm, sum);
  return sum;
}

inline void fill_normal(std::vector<float>& values, std::uint64_t seed, double scale = 1.0) {
  const CounterRng rng(seed, RandomStream::test);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(scale * normal(rng, i));
  }
}

}  // namespace dp::testing_support
