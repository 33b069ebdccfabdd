// The error of each single value that the headers of dense codecs promise, and the blocks with
// which their contraction is all but reached. (What holds of every codec is in codec_test.cpp.)
#include <functional>
#include <map>

#include "tests/codecs/codec_testing.hpp"

namespace dp {
namespace {

using namespace test;

// The most that value v of a block with largest magnitude absmax may be off.
using Bound = std::function<double(const CodecSpec&, double v, double absmax)>;

Bound linear(double levels) {
  return [=](const CodecSpec& spec, double v, double absmax) {
    return absmax / levels * (spec.is_biased() ? 0.5 : 1.0) + 0x1p-22 * std::abs(v);
  };
}
Bound squares_of(double levels) {
  return [=](const CodecSpec&, double v, double absmax) {
    const double t = levels * std::sqrt(std::abs(v) / absmax), scale = absmax / (levels * levels);
    return std::min(std::abs(v), (t + 0.5) * scale) + 0x1p-20 * std::abs(v);
  };
}
// One level: its error is at most the largest magnitude (of a whole block: see
// dense_codec_test.cpp).
double one_level(const CodecSpec&, double, double absmax) { return absmax * 1.000001; }

const std::map<std::string, Bound, std::less<>> kBounds = {
    {"none", [](const CodecSpec&, double, double) { return 0.0; }},
    {"fp16",
     [](const CodecSpec&, double v, double) {
       return std::max({std::ldexp(std::abs(v), -11), 0x1p-25, std::abs(v) - 65504.0});
     }},
    {"bf16", [](const CodecSpec&, double v,
                double) { return std::max(std::ldexp(std::abs(v), -8), 0x1p-134); }},
    {"q16", linear(32767)},
    {"q8", linear(127)},
    {"q4", linear(7)},
    {"q8n", squares_of(127)},
    {"q4n", squares_of(7)},
    {"fp8",
     [](const CodecSpec&, double v, double absmax) {
       const double scale = absmax / 448.0, magnitude = std::abs(v);
       return (magnitude >= 0x1p-6 * scale ? magnitude / 17.0 : 0x1p-10 * scale) +
              0x1p-22 * magnitude;
     }},
    {"q2", one_level},
    {"sign", one_level},
    {"ternary", one_level},
};

class HeaderBound : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Codec> codec_ = make_codec(parse_codec_spec(GetParam()));

  void expect_within_bound(const std::vector<float>& v) {
    const CodecSpec& spec = codec_->spec();
    const Bound& bound = kBounds.at(spec.name);
    const auto out = round_trip(*codec_, v);
    for (std::size_t begin = 0; begin < v.size(); begin += codec_->block()) {
      const std::size_t end = std::min(begin + codec_->block(), v.size());
      double absmax = 0.0;
      for (std::size_t i = begin; i < end; ++i) absmax = std::max<double>(absmax, std::abs(v[i]));
      // A block of tiny values is sent as zeros.
      const bool is_tiny = codec_->block() > 1 && absmax < 0x1p-100;
      for (std::size_t i = begin; i < end; ++i) {
        const double error = std::abs(static_cast<double>(v[i]) - static_cast<double>(out[i]));
        ASSERT_LE(error, is_tiny ? std::abs(v[i]) : bound(spec, v[i], absmax))
            << "at " << i << ": " << v[i];
        // Zero is exact, but of two levels none is zero.
        if (v[i] == 0.0f && (absmax == 0.0 || spec.name != "sign")) {
          ASSERT_EQ(out[i], 0.0f);
        }
      }
    }
  }
};

TEST_P(HeaderBound, HoldsForEveryValue) {
  for (const std::size_t n : {1, 63, 64, 65, 2047, 2048, 2049, 40'003}) {
    for (const double scale : {1e-3, 1.0, 1e3}) expect_within_bound(normals(n, n, scale));
    expect_within_bound(awkward(n, n));
    for (const float value : {0.0f, -0.0f, 1e-41f, 0x1p-100f, 0x1.fffffep-101f, 0x1.fffffep125f}) {
      expect_within_bound(std::vector<float>(n, value));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, HeaderBound,
                         testing::ValuesIn(codec_specs_where([](const Codec& codec) {
                           return kBounds.contains(codec.spec().name);
                         })),
                         codec_test_name);

// ---- the worst blocks ---------------------------------------------------------------------------

// A block with one value `top` and all others `rest`.
std::vector<float> one_above(std::size_t n, double top, double rest) {
  std::vector<float> v(n, static_cast<float>(rest));
  v[n / 2] = static_cast<float>(-top);
  return v;
}

using WorstBlock = std::function<std::vector<float>(std::size_t n)>;

// Half a bin beside the top of the scale.
WorstBlock worst_of_linear(double levels) {
  return [=](std::size_t n) { return one_above(n, levels, 0.5); };
}
// The middle between two squares, of those with the largest error.
WorstBlock worst_of_squares(double levels) {
  return [=](std::size_t n) {
    const auto others = static_cast<double>(n - 1);
    double worst = 0.0, rest = 0.0;
    for (double k = 0.0; k < levels; k += 1.0) {
      const double middle = k * k + k + 0.5, error = k + 0.5;
      const double squared =
          others * error * error / (others * middle * middle + std::pow(levels, 4.0));
      if (squared > worst) worst = squared, rest = middle;
    }
    return one_above(n, levels * levels, rest);
  };
}

const std::map<std::string, WorstBlock, std::less<>> kWorstBlocks = {
    {"q16", worst_of_linear(32767)},
    {"q8", worst_of_linear(127)},
    {"q4", worst_of_linear(7)},
    {"q8n", worst_of_squares(127)},
    {"q4n", worst_of_squares(7)},
    {"fp8", [](std::size_t n) { return one_above(n, 448.0, 272.0); }},
    {"sign", [](std::size_t n) { return one_above(n, 3.0, 0.0); }},
};

class WorstBlocks : public testing::TestWithParam<std::string> {};

// The stated contraction holds and is no idle bound: these blocks reach it within a tenth.
TEST_P(WorstBlocks, AllButReachTheContraction) {
  const auto codec = make_codec(parse_codec_spec(GetParam()));
  const auto v = kWorstBlocks.at(codec->spec().name)(codec->block());
  const double error = relative_error(v, round_trip(*codec, v));
  EXPECT_LE(error, codec->contraction());
  EXPECT_GE(error, 0.9 * codec->contraction());
}

INSTANTIATE_TEST_SUITE_P(Codecs, WorstBlocks,
                         testing::ValuesIn(codec_specs_where([](const Codec& codec) {
                           return codec.spec().is_biased() &&
                                  kWorstBlocks.contains(codec.spec().name);
                         })),
                         codec_test_name);

// No other block of fp8 loses more: with the largest value and one other magnitude, of all there
// are, down to the denormals. (Of several magnitudes the one that loses most is the worst.)
TEST(WorstBlocks, OfFp8IsTheMiddleOfTheFirstGap) {
  for (const std::size_t block : {kMinBlock, std::size_t{2048}, kMaxBlock}) {
    const auto codec = make_codec(parse_codec_spec(fmt::format("fp8:block={}", block)));
    double worst = 0.0, worst_rest = 0.0;
    // Steps of a sixteenth of a gap, and both sides of each middle.
    for (int exponent = -11; exponent <= 8; ++exponent) {
      for (int step = 0; step < 128; ++step) {
        for (const double beside : {-1e-6, 0.0, 1e-6}) {
          const double rest = std::ldexp(1.0 + step / 128.0 + beside, exponent);
          if (rest > 448.0) continue;
          const auto v = one_above(block, 448.0, rest);
          const double error = relative_error(v, round_trip(*codec, v));
          if (error > worst) worst = error, worst_rest = rest;
        }
      }
    }
    EXPECT_LE(worst, codec->contraction());
    EXPECT_GE(worst, 0.999 * codec->contraction());
    EXPECT_NEAR(worst_rest, 272.0, 0.01);
  }
}

}  // namespace
}  // namespace dp
