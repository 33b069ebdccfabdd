// Every topology, and many codecs at the same time on one of them. Records what goes in and what
// comes out, so that tests can balance the two.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/topologies/grid.hpp"
#include "comm/topologies/hierarchical.hpp"
#include "tests/comm/exchange/exchange_fixture.hpp"
#include "tests/comm/wrapped_codec.hpp"

namespace dp::testing_support {

struct Case {
  std::string topology;
  std::vector<int> hosts;
  std::vector<std::uint32_t> owner_weights = {};

  [[nodiscard]] std::string text() const {
    std::string words = topology;
    for (const int host : hosts) words += " " + std::to_string(host);
    for (const std::uint32_t weight : owner_weights) words += ":" + std::to_string(weight);
    return words;
  }
  // The number of hosts; for other topologies than the hierarchical one, the number of ranks.
  [[nodiscard]] std::size_t host_count(int ranks) const {
    if (hosts.empty()) return static_cast<std::size_t>(ranks);
    return static_cast<std::size_t>(*std::max_element(hosts.begin(), hosts.end())) + 1;
  }
};

// All topologies. The hierarchical one comes three times: two neighbouring ranks per host, ranks on
// two hosts in turn, and one host. Direct comes again with owners of different weights, of which
// one owns nothing.
inline std::vector<Case> all_cases(int ranks) {
  std::vector<Case> cases;
  for (const Topology& topology : topology_list()) {
    if (topology.name != "hierarchical") {
      cases.push_back({std::string(topology.name), {}});
      if (!topology.has_owner_weights) continue;
      std::vector<std::uint32_t> weights;
      for (int rank = 0; rank < ranks; ++rank) {
        weights.push_back(rank == ranks / 2 && ranks > 1 ? 0 : 100 + 170 * (rank % 3));
      }
      cases.push_back({std::string(topology.name), {}, weights});
      continue;
    }
    std::vector<int> pairs, in_turn;
    for (int rank = 0; rank < ranks; ++rank) {
      pairs.push_back(rank / 2);
      in_turn.push_back(rank % 2);
    }
    cases.push_back({"hierarchical", pairs});
    cases.push_back({"hierarchical", in_turn});
    cases.push_back({"hierarchical", std::vector<int>(static_cast<std::size_t>(ranks), 0)});
  }
  return cases;
}

// This rank's input of a step: normal numbers, or the worst that a block can hold: zeros, denormals
// and one value far above the others.
inline std::vector<float> rank_input(const Communicator& comm, std::size_t n, std::uint64_t step,
                                     bool is_awkward = false) {
  std::vector<float> values(n);
  fill_normal(values, 100 * step + static_cast<std::uint64_t>(comm.rank()));
  if (!is_awkward) return values;
  for (std::size_t i = 0; i < n; ++i) {
    if (i % 5 == 0) values[i] = 0.0f;
    if (i % 5 == 1) values[i] *= 1e-41f;
    if (i % 64 == 17) values[i] = 1e6f;
  }
  return values;
}

// A bucket of n floats for each codec, all on one topology. Collective: all ranks make it together.
class Fleet {
 public:
  Fleet(Communicator& comm, Case c, std::vector<std::string> specs, std::size_t n,
        std::size_t segment)
      : comm_(comm), case_(std::move(c)), specs_(std::move(specs)), n_(n) {
    for (std::size_t s = 0; s < specs_.size(); ++s) {
      auto codec = std::make_unique<RecordingCodec>(parse_codec_spec(specs_[s]), n);
      recorders_.push_back(codec.get());
      benches_.push_back(std::make_unique<Bench>(comm, std::move(codec), n, segment,
                                                 static_cast<std::uint32_t>(s), case_.topology,
                                                 case_.hosts, case_.owner_weights));
    }
    comm.barrier();
    counted_.resize(specs_.size());
    residuals_.resize(specs_.size());
  }

  [[nodiscard]] std::size_t size() const { return specs_.size(); }
  [[nodiscard]] const std::string& spec(std::size_t s) const { return specs_[s]; }
  [[nodiscard]] Bench& bench(std::size_t s) { return *benches_[s]; }
  [[nodiscard]] const RecordingCodec::Records& records(std::size_t s) const {
    return recorders_[s]->records();
  }
  // The residual before the last run.
  [[nodiscard]] const std::vector<float>& residual_before(std::size_t s) const {
    return residuals_[s];
  }
  // What counts as this rank's input to the last run: the gradient, unless the test sets something
  // else.
  [[nodiscard]] std::vector<float>& counted(std::size_t s) { return counted_[s]; }

  void set_input(const std::vector<float>& values) {
    for (const auto& bench : benches_) bench->gradient = values;
  }

  void run(std::uint64_t step, const std::function<void()>& between = {}) {
    for (std::size_t s = 0; s < size(); ++s) {
      recorders_[s]->forget();
      counted_[s] = benches_[s]->gradient;
      residuals_[s] = benches_[s]->residual;
    }
    run_together(benches_, step, between);
  }

  // I1: all ranks hold the same bits.
  void expect_same_bits() {
    std::vector<float> all;
    for (const auto& bench : benches_) {
      all.insert(all.end(), bench->gradient.begin(), bench->gradient.end());
    }
    const auto first = of_rank_0(comm_, all);
    for (std::size_t s = 0; s < size() && n_ > 0; ++s) {
      EXPECT_EQ(std::memcmp(&first[s * n_], &all[s * n_], n_ * sizeof(float)), 0)
          << specs_[s] << " differs from rank 0";
    }
  }

  // I2: the sum of inputs is the delivered sum plus what residuals took (with feedback) or what
  // encoders dropped (without). Skips values for which `is_left_out`, by spec and place, is set.
  void expect_conserved(const std::vector<std::vector<bool>>& is_left_out = {}) {
    std::vector<double> balance = over_all([&](std::size_t s, std::size_t i) {
      return double_of(counted_[s][i]) +
             (has_residual(s) ? double_of(residuals_[s][i]) - double_of(benches_[s]->residual[i])
                              : -records(s).lost[i]);
    });
    std::vector<double> sizes = over_all([&](std::size_t s, std::size_t i) {
      return std::abs(double_of(counted_[s][i])) + records(s).sizes[i] +
             (has_residual(s) ? std::abs(double_of(residuals_[s][i])) +
                                    std::abs(double_of(benches_[s]->residual[i]))
                              : 0.0);
    });
    for (std::size_t s = 0; s < size(); ++s) {
      for (std::size_t i = 0; i < n_; ++i) {
        if (!is_left_out.empty() && is_left_out[s][i]) continue;
        // Rounding errors are at most 2^-24 of the `sizes` each: of P - 1 additions, and at every
        // encode of the sum of value and residual and of the new residual.
        const double tolerance = (comm_.size() + 2.0) * 0x1p-24 * sizes[s * n_ + i];
        const double delivered = double_of(benches_[s]->gradient[i]);
        EXPECT_LE(std::abs(balance[s * n_ + i] - delivered), tolerance)
            << specs_[s] << " at " << i << ": delivered " << delivered << ", given, less what was "
            << (has_residual(s) ? "kept, " : "dropped, ") << balance[s * n_ + i];
        if (!(std::abs(balance[s * n_ + i] - delivered) <= tolerance)) break;
      }
    }
  }

  // Every value was encoded that often, on all ranks together.
  void expect_encodes(std::size_t want) {
    const std::vector<double> encodes = over_all(
        [&](std::size_t s, std::size_t i) { return static_cast<double>(records(s).encodes[i]); });
    for (std::size_t s = 0; s < size(); ++s) {
      const auto begin = encodes.begin() + static_cast<std::ptrdiff_t>(s * n_);
      EXPECT_EQ(
          std::count(begin, begin + static_cast<std::ptrdiff_t>(n_), static_cast<double>(want)),
          static_cast<std::ptrdiff_t>(n_))
          << specs_[s] << ", not all " << want;
    }
  }

  // The change of the residuals since `before` is the delivered sum.
  void expect_put_back(const std::vector<std::vector<float>>& before) {
    std::vector<double> taken = over_all([&](std::size_t s, std::size_t i) {
      return has_residual(s) ? double_of(benches_[s]->residual[i]) - double_of(before[s][i]) : 0.0;
    });
    std::vector<double> sizes = over_all([&](std::size_t s, std::size_t i) {
      return has_residual(s) ? std::abs(double_of(benches_[s]->residual[i])) : 0.0;
    });
    for (std::size_t s = 0; s < size(); ++s) {
      for (std::size_t i = 0; i < n_ && has_residual(s); ++i) {
        const double delivered = double_of(benches_[s]->gradient[i]);
        EXPECT_NEAR(taken[s * n_ + i], delivered, 0x1p-24 * sizes[s * n_ + i])
            << specs_[s] << " at " << i;
        if (testing::Test::HasFailure()) return;
      }
    }
  }

  // Runs three steps on `n` values of every rank, awkward ones in the second (rank_input). Expects
  // finite values, the same bits everywhere, nothing lost, and at the end the bytes of the formula.
  // `encodes` is how often every value must be encoded; nothing: not checked.
  void run_steps(const Communicator& comm, std::size_t n, std::optional<std::size_t> encodes = {}) {
    constexpr std::uint64_t kSteps = 3;
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      set_input(rank_input(comm, n, step, step == 1));
      run(step);
      for (std::size_t s = 0; s < size(); ++s) {
        EXPECT_TRUE(bench(s).exchange->finite()) << spec(s);
      }
      expect_same_bits();
      expect_conserved();
      if (encodes) expect_encodes(*encodes);
    }
    expect_bytes_of_formula(kSteps);
  }

  // I3: the bytes of `steps` exchanges since the start are those of the formula.
  void expect_bytes_of_formula(std::uint64_t steps) {
    std::vector<std::uint64_t> counts;
    for (const auto& bench : benches_) {
      counts.push_back(bench->exchange->stats().sent_bytes);
      counts.push_back(bench->exchange->stats().received_bytes);
    }
    MPI_Allreduce(MPI_IN_PLACE, counts.data(), static_cast<int>(counts.size()), MPI_UINT64_T,
                  MPI_SUM, comm_.handle());
    for (std::size_t s = 0; s < size(); ++s) {
      const Bench& bench = *benches_[s];
      EXPECT_EQ(counts[2 * s], counts[2 * s + 1]) << specs_[s];
      if (!bench.codec->fixed_payload_bytes(bench.segment)) continue;
      const std::uint64_t want =
          find_topology(case_.topology)
              .wire_bytes(bench.shape(), case_.hosts, static_cast<std::size_t>(comm_.rank()),
                          *bench.codec);
      EXPECT_EQ(bench.exchange->stats().sent_bytes, steps * want) << specs_[s];
    }
  }

  // How the bucket is divided into chunks and segments.
  [[nodiscard]] ExchangePlan cut(std::size_t s) const {
    const ExchangeShape shape = benches_[s]->shape();
    if (case_.topology == "tree" || case_.topology == "ps") return ExchangePlan(shape.whole());
    if (case_.topology == "grid") return ExchangePlan(grid_plan(shape, {}, 0, 1).shape);
    if (case_.topology != "hierarchical") return ExchangePlan(shape);
    return ExchangePlan(hierarchical_plan(shape, case_.hosts, 0, 1).shape);
  }

  [[nodiscard]] bool has_residual(std::size_t s) const { return !benches_[s]->residual.empty(); }

 private:
  static double double_of(float v) { return static_cast<double>(v); }

  // value(spec, place), summed over ranks.
  template <class Value>
  std::vector<double> over_all(Value value) {
    std::vector<double> all;
    all.reserve(size() * n_);
    for (std::size_t s = 0; s < size(); ++s) {
      for (std::size_t i = 0; i < n_; ++i) all.push_back(value(s, i));
    }
    sum_over_ranks(comm_, all);
    return all;
  }

  Communicator& comm_;
  Case case_;
  std::vector<std::string> specs_;
  std::size_t n_;
  std::vector<std::unique_ptr<Bench>> benches_;
  std::vector<RecordingCodec*> recorders_;
  std::vector<std::vector<float>> counted_, residuals_;
};

}  // namespace dp::testing_support
