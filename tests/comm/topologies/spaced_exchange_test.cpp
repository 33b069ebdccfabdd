// Steps with and without an exchange, the residual between them, and gradients that are not finite.
#include "comm/topologies/spaced_exchange.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "kernels/codecs/codec.hpp"
#include "tests/comm/exchange/fake_exchange.hpp"

namespace dp {
namespace {

using testing_support::FakeExchange;

constexpr std::uint64_t kEvery = 3;

// The exchange of a bucket of three values around a fake one.
struct Spaced {
  std::vector<float> gradient = std::vector<float>(3), residual = std::vector<float>(3);
  std::unique_ptr<Codec> codec = make_codec(parse_codec_spec("q8"));
  std::vector<std::string> calls;
  FakeExchange* inner = nullptr;
  std::unique_ptr<Exchange> exchange;
  BufferSet buffers{{1, 64}};

  Spaced() {
    auto fake = std::make_unique<FakeExchange>();
    inner = fake.get();
    inner->calls = &calls;
    exchange = make_spaced_exchange(
        {.gradient = gradient, .residual = residual.data(), .codec = codec.get()}, std::move(fake),
        kEvery);
  }

  void begin(std::uint64_t step, const std::vector<float>& values) {
    exchange->post_receives(buffers, step);
    gradient = values;  // of the same size, so where the exchange looks for them
    exchange->prepare();
    exchange->start();
  }
};

// The steps' numbers do not matter: with rounds they are not consecutive.
TEST(SpacedExchange, EveryThirdStepExchanges) {
  Spaced spaced;
  for (std::uint64_t i = 0; i < 7; ++i) {
    spaced.calls.clear();
    spaced.begin(100 + 16 * i, {1.0f, 2.0f, -4.0f});
    if (i % kEvery == 0) {
      EXPECT_EQ(spaced.calls, (std::vector<std::string>{"post 0", "prepare 0", "start 0"})) << i;
      EXPECT_EQ(spaced.inner->step, 100 + 16 * i);
      const auto gathered = i == 0 ? 1.0f : static_cast<float>(kEvery);
      EXPECT_EQ(spaced.gradient, (std::vector<float>{gathered, 2 * gathered, -4 * gathered}));
      EXPECT_EQ(spaced.residual, std::vector<float>(3));
      EXPECT_FALSE(spaced.exchange->delivered());
      spaced.inner->has_delivered = true;
      EXPECT_TRUE(spaced.exchange->delivered());
      EXPECT_FALSE(spaced.exchange->done());
      spaced.inner->is_done = true;
    } else {
      EXPECT_TRUE(spaced.calls.empty()) << i;
      EXPECT_TRUE(spaced.exchange->delivered());
      EXPECT_EQ(spaced.gradient, std::vector<float>(3)) << "nothing is delivered";
      const auto gathered = static_cast<float>(i % kEvery);
      EXPECT_EQ(spaced.residual, (std::vector<float>{gathered, 2 * gathered, -4 * gathered}));
      EXPECT_TRUE(spaced.exchange->finite());
      EXPECT_FALSE(spaced.exchange->waits_for_peer());
    }
    EXPECT_TRUE(spaced.exchange->done());
  }
}

// Before its start, a step between has delivered nothing.
TEST(SpacedExchange, WaitsForItsStart) {
  Spaced spaced;
  spaced.begin(0, {1.0f, 1.0f, 1.0f});
  spaced.exchange->post_receives(spaced.buffers, 1);
  EXPECT_FALSE(spaced.exchange->delivered());
  EXPECT_FALSE(spaced.exchange->done());
  EXPECT_FALSE(spaced.exchange->progress());
}

// All ranks must reach the same verdict, so the next exchange reports it.
TEST(SpacedExchange, ReportsValuesThatAreNotFiniteInTheNextExchange) {
  Spaced spaced;
  spaced.begin(0, {1.0f, 1.0f, 1.0f});
  spaced.begin(1, {1.0f, 1.0f, 1.0f});
  spaced.begin(2, {1.0f, std::numeric_limits<float>::infinity(), 1.0f});
  EXPECT_TRUE(spaced.exchange->finite());
  EXPECT_EQ(spaced.residual, (std::vector<float>{1.0f, 1.0f, 1.0f}));
  EXPECT_EQ(spaced.gradient, std::vector<float>(3));
  spaced.begin(3, {1.0f, 1.0f, 1.0f});
  EXPECT_TRUE(std::isnan(spaced.gradient[0]));
  EXPECT_EQ(spaced.residual, (std::vector<float>{1.0f, 1.0f, 1.0f})) << "it stays";
  spaced.begin(4, {1.0f, 1.0f, 1.0f});
  spaced.begin(5, {1.0f, 1.0f, 1.0f});
  spaced.begin(6, {1.0f, 1.0f, 1.0f});
  EXPECT_EQ(spaced.gradient[0], 4.0f) << "it is reported once";
}

TEST(SpacedExchange, CostsWhatTheInnerOneCosts) {
  Spaced spaced;
  spaced.begin(0, {1.0f, 1.0f, 1.0f});
  spaced.inner->cost().sent_bytes = 70;
  spaced.inner->cost().sent_messages = 6;
  (void)spaced.exchange->progress();
  (void)spaced.exchange->progress();
  EXPECT_EQ(spaced.exchange->stats().sent_bytes, 70u);
  EXPECT_EQ(spaced.exchange->stats().sent_messages, 6u);
  spaced.exchange->put_back_delivered();
  EXPECT_EQ(spaced.calls.back(), "put back 0");
  spaced.begin(1, {1.0f, 1.0f, 1.0f});
  spaced.exchange->put_back_delivered();
  EXPECT_EQ(spaced.calls.size(), 4u) << "nothing was delivered that could be put back";
}

// A resumed run keeps its place between two exchanges.
TEST(SpacedExchange, ResumesBetweenTwoExchanges) {
  struct Keep final : StateVisitor {
    std::vector<std::vector<std::byte>> kept;
    bool brings_back = false;
    std::size_t at = 0;
    void block(const StateBlock& block) override {
      if (brings_back) {
        std::memcpy(block.bytes.data(), kept[at++].data(), block.bytes.size());
      } else {
        kept.emplace_back(block.bytes.begin(), block.bytes.end());
      }
    }
    void text(const StateText&) override {}
  } state;
  Spaced before, after;
  before.begin(0, {1.0f, 1.0f, 1.0f});
  before.begin(1, {1.0f, NAN, 1.0f});
  before.exchange->list_state("bucket/", state);
  state.brings_back = true;
  after.exchange->list_state("bucket/", state);
  after.begin(2, {1.0f, 1.0f, 1.0f});
  EXPECT_TRUE(after.calls.empty());
  after.begin(3, {1.0f, 1.0f, 1.0f});
  EXPECT_EQ(after.calls.size(), 3u);
  EXPECT_TRUE(std::isnan(after.gradient[0]));
}

}  // namespace
}  // namespace dp
