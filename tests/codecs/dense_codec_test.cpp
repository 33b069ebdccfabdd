// What each dense codec's header promises beyond codec_test.cpp: the bytes of an example computed
// by hand, the best scale of one level, the error on heavy tails.
#include <cstring>
#include <functional>

#include "kernels/codecs/bf16.hpp"
#include "kernels/codecs/fp16.hpp"
#include "kernels/codecs/fp8.hpp"
#include "tests/codecs/codec_testing.hpp"
#include "tests/codecs/gradients.hpp"

namespace dp {
namespace {

using namespace test;

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
    // absmax 448: the values are E4M3 numbers. 1.0625 lies in the middle between two, and so does
    // the smallest, 2^-10: to the even one.
    {"fp8:block=8",
     {448.0f, -1.0f, 1.0625f, 1.1875f, 0.0f, -0.0009765625f, 0.001953125f, -272.0f},
     {0x00, 0x00, 0x80, 0x3F, 0x7E, 0xB8, 0x38, 0x3A, 0x00, 0x80, 0x01, 0xF8},
     {448.0f, -1.0f, 1.0f, 1.25f, 0.0f, 0.0f, 0.001953125f, -256.0f}},
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

// Scales, codes and padding that no encoder writes; 37 values, the last byte of a block of narrow
// codes is not full.
TEST(DenseCodec, WhatNoEncoderWritesThrows) {
  const std::size_t n = 37;
  const auto expect_throw = [&](const char* spec, std::size_t at, int byte) {
    SCOPED_TRACE(testing::Message() << spec << ", byte " << at << " is " << byte);
    const auto codec = make_codec(parse_codec_spec(spec));
    auto payload = encode(*codec, std::vector<float>(n, 1.0f));
    ASSERT_NE(payload.at(at), static_cast<std::byte>(byte));
    payload.at(at) = static_cast<std::byte>(byte);
    expect_throws(*codec, payload, n);
  };
  // The values 1 are 0x3F800000, 0x3C00 and 0x3F80.
  for (const int upper : {0x7F, 0xFF}) {
    expect_throw("none", 4 * 36 + 3, upper);
    expect_throw("bf16", 2 * 36 + 1, upper);
    expect_throw("fp8", 4 + 36, upper);
  }
  for (const int upper : {0x7C, 0xFF}) expect_throw("fp16", 2 * 36 + 1, upper);
  for (const int shift : {0, 2, 4, 6}) expect_throw("q2", 4 + 3, 2 << shift);
  expect_throw("ternary", 4 + 4, 243);
  expect_throw("ternary", 4, 255);
  // Scales: negative, too large, infinite.
  for (const char* spec : {"q16", "q8", "q4", "q8n", "q4n", "fp8", "q2", "ternary",
                           "ternary:round=stochastic", "sign"}) {
    for (const int upper : {0xBF, 0xFE, 0x7F}) expect_throw(spec, 3, upper);
  }
  // Padding: the upper half of byte 18, the upper 2 bits of byte 9, the uppermost of byte 4, the
  // last digit of byte 7.
  expect_throw("q4", 4 + 18, 0x0F);
  expect_throw("q4n", 4 + 18, 0x7F);
  expect_throw("q2", 4 + 9, 0x40 | 0x15);
  expect_throw("sign", 4 + 4, 0x80);
  for (const int digit : {0, 2}) {
    expect_throw("ternary", 4 + 7, 2 * (1 + 3 + 9 + 27) + 81 * digit);
  }
}

// The one code below the least that an encoder writes is let through, as codec.hpp says.
TEST(DenseCodec, TheLeastCodeIsANumber) {
  const auto decoded = [](const char* spec, std::initializer_list<int> bytes) {
    Payload payload;
    for (const int byte : bytes) payload.push_back(static_cast<std::byte>(byte));
    return decode(*make_codec(parse_codec_spec(spec)), payload, 1)[0];
  };
  EXPECT_EQ(decoded("q16", {0, 0, 0x80, 0x3F, 0x00, 0x80}), -32768.0f);
  EXPECT_EQ(decoded("q8", {0, 0, 0x80, 0x3F, 0x80}), -128.0f);
  EXPECT_EQ(decoded("q4", {0, 0, 0x80, 0x3F, 0x80}), -8.0f);
  EXPECT_EQ(decoded("q8n", {0, 0, 0x80, 0x3F, 0x80}), -128.0f * 128.0f);
  EXPECT_EQ(decoded("q4n", {0, 0, 0x80, 0x3F, 0x80}), -64.0f);
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

TEST(Fp16, Clamps) {
  const std::vector<float> v = {65504.0f, 65520.0f, 1e30f, -1e30f, -65505.0f};
  EXPECT_EQ(round_trip(*make_codec(parse_codec_spec("fp16")), v),
            (std::vector<float>{65504.0f, 65504.0f, 65504.0f, -65504.0f, -65504.0f}));
}

// Every half precision number, its neighbours and the ties between them: the vector path of the
// codec (with the processor's instruction) and the integer arithmetic give the same bits.
TEST(Fp16, InstructionAndArithmeticAgree) {
  const auto codec = make_codec(parse_codec_spec("fp16:ef=off"));
  std::vector<float> v;
  for (std::uint32_t half = 0; half < 0x7C00u; ++half) {
    const float exact = fp16::to_float(static_cast<std::uint16_t>(half));
    const float next = fp16::to_float(static_cast<std::uint16_t>(half + 1));
    const float tie = half == 0x7BFFu ? 65519.0f : 0.5f * (exact + next);
    for (const float x : {exact, tie, std::nextafter(tie, 0.0f), std::nextafter(tie, 1e9f)}) {
      v.push_back(x);
      v.push_back(-x);
    }
  }
  const auto payload = encode(*codec, v);
  for (std::size_t i = 0; i < v.size(); ++i) {
    std::uint16_t half = 0;
    std::memcpy(&half, payload.data() + 2 * i, 2);
    ASSERT_EQ(half, fp16::from_float(fp16::clamp(v[i]))) << v[i];
  }
}

// Every E4M3 number, against its definition, and the ties between neighbours, to the even one.
TEST(Fp8, RoundsToTheNearest) {
  for (std::uint32_t code = 0; code < 0x7Fu; ++code) {
    const int exponent = static_cast<int>(code >> 3), mantissa = static_cast<int>(code & 7u);
    const float exact = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                      : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
    ASSERT_EQ(fp8::to_float(code), exact);
    ASSERT_EQ(fp8::to_float(code | 0x80u), -exact);
    ASSERT_EQ(fp8::from_magnitude(exact), code);
    if (code == 0x7Eu) break;
    const float tie = 0.5f * (exact + fp8::to_float(code + 1));
    ASSERT_EQ(fp8::from_magnitude(tie), code % 2 == 0 ? code : code + 1);
    ASSERT_EQ(fp8::from_magnitude(std::nextafter(tie, 0.0f)), code);
    ASSERT_EQ(fp8::from_magnitude(std::nextafter(tie, 1e9f)), code + 1);
  }
  EXPECT_EQ(fp8::to_float(0x7Eu), fp8::kLargest);
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
