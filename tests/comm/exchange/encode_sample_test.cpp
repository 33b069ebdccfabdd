// What is told of encodes: errors, and values beyond a codec's scale.
#include "comm/exchange/encode_sample.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/comm/exchange/exchange_fixture.hpp"

namespace dp {
namespace {

using testing_support::fill_normal;

TEST(Saturation, ByHand) {
  // Blocks of four: largest 2, largest 1, nothing sent.
  const std::vector<float> decoded{2, -2, 0, 1, -1, 1, 1, 0, 0, 0};
  const std::vector<float> rest{0.1f, 0.1f, 5, 5, -0.001f, -0.5f, 0.02f, 0, 3, 4};
  // 2 + 0.1 and 1 + 0.02 lie beyond; -2 + 0.1, 1 - 0.5 and -1 - 0.001 (rounding) do not, nor do
  // values that were sent as less than the largest, or not at all.
  EXPECT_EQ(count_saturated(decoded, rest, 4), 2u);
  // One block: only the first is.
  EXPECT_EQ(count_saturated(decoded, rest, 1), 1u);
  EXPECT_EQ(count_saturated({}, {}, 4), 0u);
}

EncodeSample::Sums sums_of(const std::string& spec, bool has_residual) {
  const auto codec = make_codec(parse_codec_spec(spec));
  constexpr std::size_t kValues = 32768;
  std::vector<float> values(kValues), residual(kValues);
  fill_normal(values, 5);
  EncodeSample sample(*codec, 1, kValues);
  EncodeSample::Sums sums;
  std::vector<std::byte> payload(codec->max_payload_bytes(kValues));
  float* memory = has_residual ? residual.data() : nullptr;
  sample.measure_saturation();
  for (std::uint64_t step = 0; step < 2; ++step) {
    sample.begin_step(step);
    EXPECT_TRUE(sample.is_next());
    sample.before(values, memory);
    const EncodeResult result = codec->encode(values, memory, payload, {});
    sample.after(values, memory, std::span(payload).first(result.payload_bytes), sums);
    std::fill(residual.begin(), residual.end(), 0.0f);
  }
  return sums;
}

TEST(Saturation, OfNormalValues) {
  for (const bool has_residual : {false, true}) {
    for (const char* spec : {"q8", "q4", "q8n", "fp16", "topk:ratio=0.01,value=fp32"}) {
      const EncodeSample::Sums sums = sums_of(spec, has_residual);
      EXPECT_EQ(sums.values, EncodeSample::kMostValues) << spec;
      EXPECT_EQ(sums.saturated, 0u) << spec;
    }
    // s = 1.224 deviations is the best one for normal values; 22 % lie beyond it, the slack of 2^-7
    // less.
    const EncodeSample::Sums q2 = sums_of("q2", has_residual);
    EXPECT_NEAR(static_cast<double>(q2.saturated) / static_cast<double>(q2.values), 0.22, 0.02);
    // The error of the same levels: 1 - 0.81 of the squares.
    EXPECT_NEAR(q2.error_squares / q2.value_squares, 0.19, 0.01);
  }
}

// Whole numbers, so that every order of additions gives the same; lengths that leave lanes of the
// sum without a term.
TEST(EncodeSample, SquaresAreThoseOfEveryValue) {
  for (std::size_t n = 0; n < 70; ++n) {
    std::vector<float> a(n), b(n);
    double squares = 0.0, of_sum = 0.0, of_difference = 0.0;
    for (std::size_t i = 0; i < n; ++i) {
      const double x = static_cast<double>(i) + 1.0, y = 3.0 * x + 1.0;
      a[i] = static_cast<float>(x);
      b[i] = static_cast<float>(y);
      squares += x * x;
      of_sum += (x + y) * (x + y);
      of_difference += (x - y) * (x - y);
    }
    EXPECT_EQ(host_memory().squares_of_sum(a.data(), nullptr, n), squares) << n;
    EXPECT_EQ(host_memory().squares_of_sum(a.data(), b.data(), n), of_sum) << n;
    EXPECT_EQ(host_memory().squares_of_difference(a.data(), b.data(), n), of_difference) << n;
  }
  // Squares that no float holds.
  const std::vector<float> huge(3, 1e38f);
  EXPECT_DOUBLE_EQ(host_memory().squares_of_sum(huge.data(), nullptr, 3),
                   3.0 * static_cast<double>(1e38f) * static_cast<double>(1e38f));
}

// A residual that is sent only once in a while: the mean of what waits, over what a step delivers.
TEST(EncodeSample, ResidualsHaveAnAge) {
  const auto codec = make_codec(parse_codec_spec("ecq"));
  constexpr std::size_t kValues = 4096;
  std::vector<float> values(kValues), residual(kValues);
  std::vector<std::byte> payload(codec->max_payload_bytes(kValues));
  EncodeSample sample(*codec, 1, kValues);
  EncodeSample::Sums sums;
  EXPECT_TRUE(std::isnan(sums.residual_age()) && std::isnan(sums.residual_growth()));
  // Ones, in steps of 8: what waits is 1, 2, 3, 4, then 8 are delivered of 5, then -3, -2, -1, 0.
  // Every second of these steps is examined: squares of 1, 9, 9 and 1, and 64 delivered.
  for (std::uint64_t step = 0; step < 160; ++step) {
    std::ranges::fill(values, 1.0f);
    sample.begin_step(step);
    ASSERT_TRUE(sample.is_next());
    sample.before(values, residual.data());
    const EncodeResult result =
        codec->encode(values, residual.data(), payload, {.quantiser_step = 8.0f});
    sample.after(values, residual.data(), std::span(payload).first(result.payload_bytes), sums);
  }
  EXPECT_DOUBLE_EQ(sums.residual_growth(), std::sqrt(5.0));
  EXPECT_DOUBLE_EQ(sums.residual_age(), 5.0 / 16.0);
}

TEST(EncodeSample, LooksAtOneEncodeOfAStep) {
  const auto codec = make_codec(parse_codec_spec("q8"));
  EncodeSample sample(*codec, 3, 64);
  for (std::uint64_t step = 0; step < 6; ++step) {
    sample.begin_step(step);
    for (std::uint64_t encode = 0; encode < 3; ++encode) {
      EXPECT_EQ(sample.is_next(), encode == step % 3);
    }
  }
  const auto lossless = make_codec(parse_codec_spec("none"));
  EncodeSample nothing(*lossless, 3, 64);
  nothing.begin_step(0);
  EXPECT_FALSE(nothing.is_next());
}

}  // namespace
}  // namespace dp
