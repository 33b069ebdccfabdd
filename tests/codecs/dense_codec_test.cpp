// What each dense codec's header promises beyond codec_test.cpp: the bytes of an example computed
// by hand, the best scale of one level, the error on heavy tails.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "kernels/base/error.hpp"
#include "kernels/base/random.hpp"
#include "kernels/codecs/bf16.hpp"
#include "kernels/codecs/codec.hpp"
#include "tests/codecs/gradients.hpp"

namespace dp {
namespace {

std::vector<std::byte> encode(const Codec& codec, const std::vector<float>& v) {
  std::vector<std::byte> payload(codec.max_payload_bytes(v.size()));
  const EncodeResult result = codec.encode(v, nullptr, payload, {});
  EXPECT_TRUE(result.finite);
  payload.resize(result.payload_bytes);
  return payload;
}

std::vector<float> round_trip(const Codec& codec, const std::vector<float>& v) {
  std::vector<float> out(v.size(), std::numeric_limits<float>::quiet_NaN());
  codec.decode(encode(codec, v), out);
  return out;
}

double squares(const std::vector<float>& v) {
  double sum = 0.0;
  for (const float x : v) sum += static_cast<double>(x) * static_cast<double>(x);
  return sum;
}
double squared_error(const std::vector<float>& v, const std::vector<float>& out) {
  double sum = 0.0;
  for (std::size_t i = 0; i < v.size(); ++i) {
    sum += std::pow(static_cast<double>(v[i]) - static_cast<double>(out[i]), 2);
  }
  return sum;
}

std::vector<float> draws_of(std::size_t n, std::uint64_t seed,
                            const std::function<double(double)>& shape) {
  const CounterRng rng(seed, RandomStream::test);
  std::vector<float> v(n);
  for (std::size_t i = 0; i < n; ++i) v[i] = static_cast<float>(shape(normal(rng, i)));
  return v;
}

// ---- bytes --------------------------------------------------------------------------------------

struct Example {
  const char* spec;
  std::vector<float> values;
  std::vector<int> bytes;
  std::vector<float> decoded;
};

const Example kExamples[] = {
    // 1.00390625 and 1.01171875 lie in the middle between two numbers: to the even one.
    {"bf16",
     {1.0f, -2.5f, 3.14159274f, 1.00390625f, 1.01171875f},
     {0x80, 0x3F, 0x20, 0xC0, 0x49, 0x40, 0x80, 0x3F, 0x82, 0x3F},
     {1.0f, -2.5f, 3.140625f, 1.0f, 1.015625f}},
    // absmax 16383.5 is 32767 steps of a half.
    {"q16:block=8",
     {16383.5f, -1.0f, 0.2f, 0.25f, -0.75f, 100.0f, 0.0f, -16383.5f},
     {0x00, 0x00, 0x00, 0x3F, 0xFF, 0x7F, 0xFE, 0xFF, 0x00, 0x00,
      0x00, 0x00, 0xFE, 0xFF, 0xC8, 0x00, 0x00, 0x00, 0x01, 0x80},
     {16383.5f, -1.0f, 0.0f, 0.0f, -1.0f, 100.0f, 0.0f, -16383.5f}},
    {"q8:block=8",
     {63.5f, -1.0f, 0.2f, 0.25f, -0.75f, 10.0f, 0.0f, -63.5f, 254.0f},
     {0x00, 0x00, 0x00, 0x3F, 0x00, 0x00, 0x00, 0x40, 0x7F, 0xFE, 0x00, 0x00, 0xFE, 0x14, 0x00,
      0x81, 0x7F},
     {63.5f, -1.0f, 0.0f, 0.0f, -1.0f, 10.0f, 0.0f, -63.5f, 254.0f}},
    // Byte i: float i and float i + 4; codes + 8. A block of one float follows.
    {"q4:block=8",
     {7.0f, -3.0f, 0.4f, 0.0f, -7.0f, 2.4f, 2.6f, -0.6f, -14.0f},
     {0x00, 0x00, 0x80, 0x3F, 0x00, 0x00, 0x00, 0x40, 0x1F, 0xA5, 0xB8, 0x78, 0x81},
     {7.0f, -3.0f, 0.0f, 0.0f, -7.0f, 2.0f, 3.0f, -1.0f, -14.0f}},
    // absmax 127^2: the values are whole squares.
    {"q8n:block=8",
     {16129.0f, -100.0f, 2.4f, 2.6f, 0.4f, -0.6f, 0.0f, -15876.0f},
     {0x00, 0x00, 0x80, 0x3F, 0x7F, 0xF6, 0x01, 0x02, 0x00, 0xFF, 0x00, 0x82},
     {16129.0f, -100.0f, 1.0f, 4.0f, 0.0f, -1.0f, 0.0f, -15876.0f}},
    {"q4n:block=8",
     {49.0f, -16.0f, 4.0f, 1.0f, 0.4f, 0.0f, -1.6f, -36.0f},
     {0x00, 0x00, 0x80, 0x3F, 0x8F, 0x84, 0x7A, 0x29},
     {49.0f, -16.0f, 4.0f, 1.0f, 0.0f, 0.0f, -1.0f, -36.0f}},
    // Four values of 4: 16^2 / 4 = 64; with the ones 18^2 / 6 = 54.
    {"q2:block=8",
     {4.0f, -4.0f, 4.0f, 0.0f, 1.0f, -1.0f, 0.0f, 4.0f},
     {0x00, 0x00, 0x80, 0x40, 0x05, 0x43},
     {4.0f, -4.0f, 4.0f, 0.0f, 0.0f, 0.0f, 0.0f, 4.0f}},
    // Digits 2,2,1,1,- and 0,1,0... of byte i: floats i, i + 2, i + 4, i + 6, none.
    {"ternary:block=8",
     {4.0f, -4.0f, 4.0f, 0.0f, 1.0f, -1.0f, 0.0f, 4.0f},
     {0x00, 0x00, 0x80, 0x40, 2 + 3 * 2 + 9 * 1 + 27 * 1 + 81 * 1,
      0 + 3 * 1 + 9 * 1 + 27 * 2 + 81 * 1},
     {4.0f, -4.0f, 4.0f, 0.0f, 0.0f, 0.0f, 0.0f, 4.0f}},
    {"sign:block=8",
     {1.0f, -2.0f, 3.0f, -4.0f, 5.0f, -6.0f, 7.0f, -8.0f},
     {0x00, 0x00, 0x90, 0x40, 0xAA},
     {4.5f, -4.5f, 4.5f, -4.5f, 4.5f, -4.5f, 4.5f, -4.5f}},
};

TEST(DenseCodec, BytesAreThoseOfTheHeader) {
  for (const Example& example : kExamples) {
    SCOPED_TRACE(example.spec);
    const auto codec = make_codec(parse_codec_spec(example.spec));
    std::vector<int> bytes;
    for (const std::byte b : encode(*codec, example.values)) bytes.push_back(static_cast<int>(b));
    EXPECT_EQ(bytes, example.bytes);
    EXPECT_EQ(round_trip(*codec, example.values), example.decoded);
  }
}

// Codes that no encoder writes.
TEST(DenseCodec, UnknownCodesThrow) {
  const auto expect_throw = [](const char* spec, std::size_t at, int byte) {
    const auto codec = make_codec(parse_codec_spec(spec));
    const std::vector<float> v(37, 1.0f);
    auto payload = encode(*codec, v);
    payload.at(at) = static_cast<std::byte>(byte);
    std::vector<float> out(v.size());
    EXPECT_THROW(codec->decode(payload, out), Error) << spec;
    EXPECT_THROW(codec->decode_add(payload, out), Error) << spec;
  };
  for (const int shift : {0, 2, 4, 6}) expect_throw("q2", 4 + 9, 2 << shift);
  expect_throw("ternary", 4 + 7, 243);
  expect_throw("ternary", 4, 255);
  expect_throw("bf16", 73, 0x7F);  // with the 0x80 before it: an infinity
  expect_throw("fp16", 73, 0x7C);
}

// ---- single values ------------------------------------------------------------------------------

TEST(Bf16, RoundsToTheNearestAndClamps) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (std::uint32_t upper = 0; upper < 0x7F80u; ++upper) {
    const auto number = static_cast<std::uint16_t>(upper);
    const float exact = bfloat16::to_float(number);
    ASSERT_EQ(bfloat16::from_float(exact), number);
    ASSERT_EQ(bfloat16::from_float(-exact), number | 0x8000u);
    if (upper == 0x7F7Fu) break;
    const float tie = std::bit_cast<float>((upper << 16) + 0x8000u);
    ASSERT_EQ(bfloat16::from_float(tie), upper % 2 == 0 ? upper : upper + 1);
    ASSERT_EQ(bfloat16::from_float(std::nextafter(tie, 0.0f)), upper);
    ASSERT_EQ(bfloat16::from_float(std::nextafter(tie, kInfinity)), upper + 1);
  }
  EXPECT_EQ(bfloat16::from_float(std::numeric_limits<float>::max()), 0x7F7F);
  EXPECT_EQ(bfloat16::from_float(-std::numeric_limits<float>::max()), 0xFF7F);
}

// The nearest entry of the table, found by comparing with all of them.
TEST(Nonlinear, TakesTheNearestSquare) {
  for (const char* name : {"q8n", "q4n"}) {
    const int levels = name[1] == '8' ? 127 : 7;
    auto v = draws_of(4096, 1, [](double z) { return z * z * z; });
    v[17] = static_cast<float>(levels * levels);  // the scale of the first block is 1
    v[17 + 2048] = v[17];
    for (float& x : v) x = std::clamp(x, -v[17], v[17]);
    const auto out = round_trip(*make_codec(parse_codec_spec(name)), v);
    for (std::size_t i = 0; i < v.size(); ++i) {
      double best = 1e9;
      for (int k = -levels; k <= levels; ++k) {
        best = std::min(best, std::abs(static_cast<double>(v[i]) - k * std::abs(k)));
      }
      ASSERT_LE(std::abs(v[i] - out[i]), best * (1.0 + 1e-5) + 1e-6) << v[i];
    }
  }
}

// ---- one level ----------------------------------------------------------------------------------

// The least squared error that {-s, 0, s} can have, over all s.
double best_squared_error(const std::vector<float>& v) {
  std::vector<double> magnitudes;
  for (const float x : v) magnitudes.push_back(std::abs(static_cast<double>(x)));
  std::sort(magnitudes.rbegin(), magnitudes.rend());
  double sum = 0.0, best = 0.0;
  for (std::size_t k = 0; k < magnitudes.size(); ++k) {
    sum += magnitudes[k];
    best = std::max(best, sum * sum / static_cast<double>(k + 1));
  }
  return squares(v) - best;
}

TEST(ThreeLevels, ErrorIsWithinOnePercentOfTheBest) {
  const std::function<double(double)> shapes[] = {
      [](double z) { return z; },
      [](double z) { return z * z * z; },
      [](double z) { return std::copysign(z * z, z); },
      [](double z) { return std::exp(2.0 * z); },
      [](double z) { return 1e20 * z; },
      [](double z) { return std::abs(z) > 3.0 ? 1e6 : z; },  // huge outliers
  };
  for (const std::size_t block : {8, 64, 256, 2048, 16384}) {
    for (const char* name : {"q2", "ternary"}) {
      const auto codec = make_codec(parse_codec_spec(fmt::format("{}:block={}", name, block)));
      std::uint64_t seed = 1;
      for (const auto& shape : shapes) {
        for (int repeat = 0; repeat < 5; ++repeat) {
          const auto v = draws_of(block, ++seed, shape);
          const double error = squared_error(v, round_trip(*codec, v)),
                       best = best_squared_error(v);
          EXPECT_LE(error, 1.01 * best + 1e-9 * squares(v)) << name << " " << block;
          EXPECT_GE(error, best * (1.0 - 1e-5) - 1e-6 * squares(v));
        }
      }
    }
  }
}

TEST(Sign, ErrorIsThatOfTheMeanMagnitude) {
  for (const std::size_t block : {8, 64, 2048, 16384}) {
    const auto codec = make_codec(parse_codec_spec(fmt::format("sign:block={}", block)));
    const auto v = draws_of(block, block, [](double z) { return z * z * z; });
    double sum = 0.0;
    for (const float x : v) sum += std::abs(static_cast<double>(x));
    const double best = squares(v) - sum * sum / static_cast<double>(block);
    EXPECT_NEAR(squared_error(v, round_trip(*codec, v)), best, 1e-5 * best);
  }
}

// ---- heavy tails --------------------------------------------------------------------------------

TEST(HeavyTails, AreThoseOfGradients) {
  const auto v = test::heavy_tailed_gradient(1 << 18, 1);
  double fourth = 0.0;
  for (const float x : v) fourth += std::pow(static_cast<double>(x), 4);
  const double n = static_cast<double>(v.size()), variance = squares(v) / n;
  const double kurtosis = fourth / n / (variance * variance);
  EXPECT_GT(kurtosis, 60.0);
  EXPECT_LT(kurtosis, 145.0);
}

// Bins that are denser near zero have a smaller error than linear ones of the same width, by what
// nonlinear.hpp says.
TEST(HeavyTails, SuitDenserBins) {
  const auto v = test::heavy_tailed_gradient(1 << 18, 2);
  const auto error = [&](const char* spec) {
    return std::sqrt(squared_error(v, round_trip(*make_codec(parse_codec_spec(spec)), v)) /
                     squares(v));
  };
  for (const char* spec : {"q8", "q8n", "q4", "q4n", "q2", "sign", "bf16"}) {
    RecordProperty(spec, std::to_string(error(spec)));
  }
  EXPECT_LT(error("q8n"), 0.6 * error("q8"));
  EXPECT_LT(error("q4n"), 0.6 * error("q4"));
}

}  // namespace
}  // namespace dp
