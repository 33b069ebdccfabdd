// DGC's momentum: momentum SGD where everything is sent, algorithm 4 by hand, masking, clipping,
// and conservation with the velocity as the exchange's input.
#include "comm/topologies/velocity.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/comm/exchange/exchange_fixture.hpp"

namespace dp {
namespace {

using namespace testing_support;

float integer_gradient(int rank, std::uint64_t step, std::size_t i) {
  const auto mixed = i * 7 + static_cast<std::size_t>(rank) * 13 + step * 29;
  return static_cast<float>(static_cast<int>(mixed % 61) - 30);
}

// Integers and a momentum of 1/2: every value is exact in fp32.
TEST(LocalVelocity, IsMomentumSgdWhereEverythingIsSent) {
  Communicator comm;
  const std::size_t n = 1003;
  LocalVelocity local(n, {.momentum = 0.5f, .ranks = static_cast<std::size_t>(comm.size())});
  Bench bench(comm, "none", n, 64);
  std::vector<float> velocity(n), weights(n), want(n);
  for (std::uint64_t step = 0; step < 6; ++step) {
    for (std::size_t i = 0; i < n; ++i) {
      bench.gradient[i] = integer_gradient(comm.rank(), step, i);
      float sum = 0.0f;
      for (int rank = 0; rank < comm.size(); ++rank) sum += integer_gradient(rank, step, i);
      velocity[i] = 0.5f * velocity[i] + sum;
      want[i] -= 0.25f * velocity[i];
    }
    local.prepare(0, bench.gradient);
    bench.run(step);
    for (std::size_t i = 0; i < n; ++i) weights[i] -= 0.25f * bench.gradient[i];
    EXPECT_EQ(weights, want) << "step " << step;
  }
}

// With masking, what is sent in every step has no momentum: SGD without.
TEST(LocalVelocity, MaskingForgetsWhatWasSent) {
  Communicator comm;
  const std::size_t n = 64;
  LocalVelocity local(n, {.momentum = 0.5f});
  std::vector<float> gradient(n), residual(n);
  for (std::uint64_t step = 0; step < 3; ++step) {
    for (std::size_t i = 0; i < n; ++i) gradient[i] = integer_gradient(0, step, i);
    const auto given = gradient;
    local.prepare(0, gradient);
    EXPECT_EQ(gradient, given) << "step " << step;
    local.mask(0, residual);
  }
  // The even ones stay behind, by 0.5 and -0: only zeros are masked, of either sign.
  for (std::size_t i = 0; i < n; ++i) {
    gradient[i] = 1.0f;
    residual[i] = i % 2 == 0 ? 0.5f : (i % 4 == 1 ? 0.0f : -0.0f);
  }
  local.prepare(0, gradient);
  local.mask(0, residual);
  for (std::size_t i = 0; i < n; ++i) EXPECT_EQ(local.velocity()[i], i % 2 == 0 ? 1.0f : 0.0f);
  // By what was delivered: the first half.
  std::vector<float> delivered(n);
  std::fill_n(delivered.begin(), n / 2, -3.0f);
  local.mask_delivered(0, delivered);
  for (std::size_t i = 0; i < n; ++i) {
    EXPECT_EQ(local.velocity()[i], i % 2 == 0 && i >= n / 2 ? 1.0f : 0.0f);
  }
}

// Wherever the only value of either sign lies, in pieces and behind the last; -0 is no value.
TEST(LocalVelocity, MaskingFindsSingleValues) {
  constexpr std::size_t kMost = 100;
  for (const std::size_t n : {1u, 31u, 32u, 33u, 100u}) {
    for (std::size_t place = 0; place < n; ++place) {
      LocalVelocity local(kMost + 1, {});
      std::vector<float> gradient(kMost + 1, 1.0f), delivered(n, place % 2 == 0 ? 0.0f : -0.0f);
      local.prepare(0, gradient);
      delivered[place] = place % 3 == 0 ? 1e-45f : -2.0f;
      local.mask_delivered(1, delivered);
      for (std::size_t i = 0; i <= kMost; ++i) {
        EXPECT_EQ(local.velocity()[i], i == place + 1 ? 0.0f : 1.0f) << n << ", " << place;
      }
    }
  }
}

// Algorithm 4 for one worker, written out: the k largest of v are sent and forgotten.
TEST(LocalVelocity, IsAlgorithm4) {
  const std::size_t n = 200, k = 10;
  const auto codec = make_codec(parse_codec_spec("dgc:ratio=0.05"));
  LocalVelocity local(n, {.momentum = 0.9f});
  std::vector<float> gradient(n), residual(n), delivered(n), u(n), v(n);
  std::vector<std::byte> payload(codec->max_payload_bytes(n));
  for (std::uint64_t step = 0; step < 30; ++step) {
    fill_normal(gradient, step);
    std::vector<float> want(n), magnitudes(n);
    for (std::size_t i = 0; i < n; ++i) {
      u[i] = 0.9f * u[i] + gradient[i];
      v[i] = v[i] + u[i];
      magnitudes[i] = std::abs(v[i]);
    }
    std::ranges::sort(magnitudes, std::greater<>());
    for (std::size_t i = 0; i < n; ++i) {
      if (std::abs(v[i]) < magnitudes[k - 1]) continue;
      want[i] = v[i];
      u[i] = v[i] = 0.0f;
    }
    local.prepare(0, gradient);
    const auto result = codec->encode(gradient, residual.data(), payload, {});
    codec->decode(std::span(payload).first(result.payload_bytes), delivered);
    local.mask(0, residual);
    EXPECT_EQ(delivered, want) << "step " << step;
    EXPECT_EQ(residual, v) << "step " << step;
    EXPECT_TRUE(std::ranges::equal(local.velocity(), u)) << "step " << step;
  }
}

TEST(LocalVelocity, ClipsEachBucketToItsShare) {
  const std::size_t n = 100;
  std::vector<float> gradient(n, 3.0f);  // its norm is 30
  LocalVelocity clipping(2 * n, {.momentum = 0.5f, .clip = 10.0, .ranks = 4});
  clipping.prepare(n, gradient);
  for (const float v : gradient) EXPECT_FLOAT_EQ(v, 0.5f);  // a norm of 5
  // The gradient is clipped, not the velocity.
  std::ranges::fill(gradient, 0.25f);
  clipping.prepare(n, gradient);
  for (const float v : gradient) EXPECT_FLOAT_EQ(v, 0.5f);
  // The other bucket has not been touched.
  for (std::size_t i = 0; i < n; ++i) EXPECT_EQ(clipping.velocity()[i], 0.0f);
}

TEST(LocalVelocity, WhatIsNotFiniteIsLeftAlone) {
  const std::size_t n = 2 * LocalVelocity::kPiece + 10, end = LocalVelocity::kPiece;
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const double clip : {0.0, 1e6}) {
      LocalVelocity velocity(n, {.momentum = 0.5f, .clip = clip});
      std::vector<float> gradient(n, 0.25f);
      velocity.prepare(0, gradient);
      std::ranges::fill(gradient, 1.0f);
      gradient[3] = bad;
      velocity.prepare(0, gradient);
      EXPECT_FALSE(std::isfinite(gradient[3]));
      for (std::size_t i = 0; i < n; ++i) {
        const bool is_left = clip > 0.0 || i < end;
        ASSERT_EQ(velocity.velocity()[i], is_left ? 0.25f : 1.125f) << i;
      }
    }
  }
}

// I2 with the corrected velocity as the input, masking and a bad step on the way, on every
// topology; with two ranks a host where there are hosts.
TEST(LocalVelocity, TheExchangeConservesTheVelocity) {
  Communicator comm;
  const std::size_t n = 1003;
  constexpr std::uint64_t kSteps = 20;
  std::vector<int> hosts;
  for (int rank = 0; rank < comm.size(); ++rank) hosts.push_back(rank / 2);
  for (const Topology& topology : topology_list()) {
    SCOPED_TRACE(topology.name);
    // Who encodes nothing has no residual to go by.
    const bool is_inside_host = topology.name == "hierarchical";
    const bool encodes = !is_inside_host || (comm.size() > 2 && comm.rank() % 2 == 0);
    LocalVelocity local(n, {.clip = 20.0, .ranks = static_cast<std::size_t>(comm.size())});
    Bench bench(comm, "dgc:ratio=0.1", n, 128, 0, topology.name, hosts);
    std::vector<double> given(n), delivered(n);
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      fill_normal(bench.gradient, 1000 * step + static_cast<std::uint64_t>(comm.rank()));
      const bool is_bad = step == 7;
      if (is_bad && comm.rank() == comm.size() - 1) {
        std::ranges::fill(bench.gradient, std::numeric_limits<float>::quiet_NaN());
      }
      local.prepare(0, bench.gradient);
      auto counted = bench.gradient;
      for (float& v : counted) v = std::isfinite(v) ? v : 0.0f;
      const auto sum = sum_over_ranks(comm, counted);
      bench.run(step);
      EXPECT_EQ(bench.exchange->finite(), !is_bad);
      if (encodes) {
        local.mask(0, bench.residual);
      } else {
        local.mask_delivered(0, bench.gradient);
      }
      if (is_bad) bench.exchange->put_back_delivered();
      // Where nothing is encoded a skipped step's sum is lost with the step.
      const bool is_lost = is_bad && (comm.size() == 1 || (is_inside_host && comm.size() == 2));
      for (std::size_t i = 0; i < n; ++i) {
        if (!is_lost) given[i] += sum[i];
        if (!is_bad) delivered[i] += static_cast<double>(bench.gradient[i]);
      }
      expect_same_bits(comm, bench.gradient);
    }
    if (comm.size() == 1) continue;  // there are no residuals
    const auto kept = sum_over_ranks(comm, bench.residual);
    // Velocities and residuals of up to 64 or so, rounded by every rank in every step.
    const double tolerance = static_cast<double>(kSteps) * 3.0 * comm.size() * 0x1p-24 * 64.0;
    for (std::size_t i = 0; i < n; ++i) {
      EXPECT_NEAR(given[i], delivered[i] + kept[i], tolerance) << "at " << i;
      if (std::abs(given[i] - delivered[i] - kept[i]) > tolerance) break;
    }
  }
}

TEST(DgcLadder, ClimbsDownByQuarters) {
  const double rungs[] = {0.25, 0.0625, 0.015625, 0.01, 0.01};
  for (std::size_t epoch = 0; epoch < 5; ++epoch)
    EXPECT_EQ(warmup_ratio(0.01, epoch), rungs[epoch]);
  EXPECT_EQ(warmup_ratio(0.001, 3), 0.00390625);
  EXPECT_EQ(warmup_ratio(0.001, 4), 0.001);
  EXPECT_EQ(warmup_ratio(0.5, 0), 0.5);
  EXPECT_EQ(warmup_ratio(1e-5, 10'000), 1e-5);
}

}  // namespace
}  // namespace dp
