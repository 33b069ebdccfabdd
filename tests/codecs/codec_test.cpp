// Every codec of the list, in every form of codec_testing.hpp, against what codec.hpp promises:
// errors within the stated bounds, the same bytes twice, the residual exactly what was dropped,
// awkward sizes and values, payloads that cannot be, and no drift. What a codec's own header says
// beside is tested in dense_codec_test.cpp, header_bounds_test.cpp and sparse_codec_test.cpp.
#include "tests/codecs/codec_testing.hpp"

namespace dp {
namespace {

using namespace test;

// Around words, the default block and the strides of the sparse codecs' selection.
constexpr std::size_t kSizes[] = {0,   1,   2,    7,    31,   33,   63,     64,    65,
                                  255, 999, 2047, 2048, 2049, 4097, 16'383, 70'001};

class EveryCodec : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Codec> codec_ = make_codec(parse_codec_spec(GetParam()));

  [[nodiscard]] bool is_biased() const { return codec_->spec().is_biased(); }

  // What codec.hpp says of values within the codec's normal range. (Of codecs that round at random
  // it speaks of the mean over draws: see stochastic_codec_test.cpp.)
  void expect_within_bounds(const std::vector<float>& v) {
    const auto out = round_trip(*codec_, v);
    if (codec_->is_lossless()) {
      ASSERT_EQ(out, v);
    }
    if (!is_biased()) return;
    const double absolute = codec_->absolute_error();
    const std::size_t step = codec_->block() > 1 ? codec_->block() : std::max(v.size(), {1});
    for (std::size_t begin = 0; begin < v.size(); begin += step) {
      const std::size_t m = std::min(step, v.size() - begin);
      const auto block = std::span(v).subspan(begin, m), got = std::span(out).subspan(begin, m);
      ASSERT_LE(std::sqrt(squared_error(block, got)),
                codec_->contraction() * std::sqrt(squares(block)) * (1.0 + 1e-9))
          << "block at " << begin << " of " << v.size();
    }
    for (std::size_t i = 0; absolute > 0.0 && i < v.size(); ++i) {
      if (out[i] == 0.0f) {
        ASSERT_LT(std::abs(v[i]), absolute);
      }
    }
  }

  // What holds of all finite values: they come out finite, feedback keeps what is dropped, no error
  // is larger than the whole, zeros are zeros. Or the codec says that it cannot carry them.
  void expect_keeps_its_word(const std::vector<float>& v) {
    std::vector<float> residual(v.size(), 0.0f);
    bool finite = true;
    const auto out = decode(*codec_, encode(*codec_, v, residual.data(), &finite), v.size());
    ASSERT_TRUE(finite || !codec_->is_lossless());
    for (std::size_t i = 0; i < v.size(); ++i) {
      ASSERT_TRUE(std::isfinite(out[i])) << i;
      if (codec_->is_lossless() || !finite) {
        ASSERT_EQ(residual[i], 0.0f) << i;
      } else {
        ASSERT_EQ(residual[i], v[i] - out[i]) << i;
      }
    }
    if (codec_->is_lossless()) {
      ASSERT_EQ(out, v);
    }
    if (!finite || squares(v) == 0.0) {
      ASSERT_EQ(out, std::vector<float>(v.size(), 0.0f));
    } else if (is_biased()) {
      ASSERT_LE(relative_error(v, out), 1.0 + 1e-6);
    }
  }
};

TEST_P(EveryCodec, ErrorIsWithinTheBounds) {
  for (const std::size_t n : kSizes) {
    expect_within_bounds(normals(n, n, 1e-3));
    expect_within_bounds(normals(n, n + 1));
    expect_within_bounds(normals(n, n + 2, 100.0));
  }
}

TEST_P(EveryCodec, AwkwardValues) {
  for (const std::size_t n : {std::size_t{1}, std::size_t{64}, std::size_t{3 * 2048 + 5}}) {
    for (const float value : {0.0f, -0.0f, 3.0f, -3.0f, 1e-45f, 1e-41f, 1e30f,
                              0x1p-100f,            // the smallest that is no zero in blocks
                              0x1.fffffep-101f}) {  // the largest that is one
      SCOPED_TRACE(testing::Message() << n << " times " << value);
      expect_keeps_its_word(std::vector<float>(n, value));
    }
    expect_keeps_its_word(awkward(n, n));
    auto outlier = normals(n, 3, 1e-3);
    outlier[n / 3] = 6e4f;
    outlier[n - 1] = -6e4f;
    expect_keeps_its_word(outlier);
    // The largest that all codecs carry, and the largest.
    for (const float most : {0x1.fffffep125f, std::numeric_limits<float>::max()}) {
      outlier[n / 2] = most;
      outlier[n - 1] = -most;
      expect_keeps_its_word(outlier);
    }
    if (HasFailure()) return;
  }
}

TEST_P(EveryCodec, EncodesTheSameBytesTwice) {
  const auto other = make_codec(parse_codec_spec(GetParam()));
  for (const std::size_t n : kSizes) {
    const auto v = normals(n, 7);
    const auto payload = encode(*codec_, v);
    EXPECT_EQ(encode(*codec_, v), payload);
    EXPECT_EQ(encode(*other, v), payload);
  }
}

TEST_P(EveryCodec, ResidualIsExactlyWhatWasDropped) {
  if (codec_->is_lossless()) GTEST_SKIP() << "has no residual";
  for (const std::size_t n : kSizes) {
    for (const bool is_awkward : {false, true}) {
      const auto partial = is_awkward ? awkward(n, 8) : normals(n, 8);
      const auto before = is_awkward ? awkward(n, 9) : normals(n, 9, 0.01);
      std::vector<float> sum(n), residual = before;
      for (std::size_t i = 0; i < n; ++i) sum[i] = partial[i] + before[i];
      const auto payload = encode(*codec_, partial, residual.data());
      // The same payload as that of the sum without feedback.
      EXPECT_EQ(payload, encode(*codec_, sum));
      const auto out = decode(*codec_, payload, n);
      for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(residual[i], sum[i] - out[i]) << i;
    }
  }
}

TEST_P(EveryCodec, DecodeAddAdds) {
  for (const std::size_t n : kSizes) {
    const auto payload = encode(*codec_, awkward(n, 10));
    const auto out = decode(*codec_, payload, n), base = normals(n, 11);
    auto sum = base;
    codec_->decode_add(payload, sum);
    for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(sum[i], base[i] + out[i]) << i;
  }
}

TEST_P(EveryCodec, InputThatIsNotFiniteIsZerosAndReported) {
  const float bad[] = {
      std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(),
      std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()};
  for (const std::size_t n : {std::size_t{1}, std::size_t{33}, std::size_t{5000}}) {
    for (const float value : bad) {
      for (const std::size_t at : {std::size_t{0}, n / 2, n - 1}) {
        auto v = normals(n, 12);
        const auto before = normals(n, 13);
        auto residual = before;
        v[at] = value;
        bool finite = true;
        const auto payload = encode(*codec_, v, residual.data(), &finite);
        EXPECT_FALSE(finite);
        EXPECT_EQ(residual, before);
        EXPECT_EQ(decode(*codec_, payload, n), std::vector<float>(n, 0.0f));
      }
    }
  }
}

// Though both parts are finite.
TEST_P(EveryCodec, SumThatOverflowsIsReported) {
  if (codec_->is_lossless()) GTEST_SKIP() << "has no residual";
  const std::vector<float> huge(40, std::numeric_limits<float>::max());
  std::vector<float> residual = huge;
  bool finite = true;
  (void)encode(*codec_, huge, residual.data(), &finite);
  EXPECT_FALSE(finite);
  EXPECT_EQ(residual, huge);
}

TEST_P(EveryCodec, PayloadsThatCannotBeThrow) {
  for (const std::size_t n : {std::size_t{1}, std::size_t{64}, std::size_t{5000}}) {
    auto payload = encode(*codec_, normals(n, 14));
    expect_throws(*codec_, std::span(payload).first(payload.size() - 1), n);
    expect_throws(*codec_, {}, n);
    auto longer = payload;
    longer.push_back(std::byte{0});
    expect_throws(*codec_, longer, n);
    // NaN as scales, values and counts.
    std::fill(payload.begin(), payload.end(), std::byte{0xFF});
    expect_throws(*codec_, payload, n);
  }
}

// I7: with feedback errors must shrink.
TEST_P(EveryCodec, IsAContraction) {
  const double c = codec_->contraction();
  if (codec_->is_lossless()) {
    EXPECT_EQ(c, 0.0);
  } else if (!is_biased()) {
    // Rounding at random is none: a small value may become a large one.
    EXPECT_GE(c, 1.0);
  } else {
    // randk contracts over draws (RandK.ContractsOverDraws); no other codec may say so.
    EXPECT_TRUE(c < 1.0 || codec_->absolute_error() > 0.0 || codec_->spec().name == "randk") << c;
  }
  const std::size_t n = 4 * codec_->block() * (codec_->block() == 1 ? 2048 : 1);
  expect_within_bounds(normals(n, 15));
  expect_within_bounds(normals(n, 16, 1e-3));
  auto heavy = normals(n, 17);
  for (float& v : heavy) v = v * v * v;
  expect_within_bounds(heavy);
  // Every number of values sent is as good as any other for one level: sqrt(i) - sqrt(i - 1).
  std::vector<float> slow(n);
  for (std::size_t i = 0; i < n; ++i) {
    const auto place = static_cast<double>(i % std::max<std::size_t>(codec_->block(), 2));
    slow[i] = static_cast<float>(std::sqrt(place + 1.0) - std::sqrt(place));
  }
  expect_within_bounds(slow);
  // One value of a block and nothing else.
  std::vector<float> lonely(n, 0.0f);
  for (std::size_t i = 0; i < n; i += std::max<std::size_t>(codec_->block(), 2)) lonely[i] = 7.0f;
  expect_within_bounds(lonely);
  expect_within_bounds(std::vector<float>(n, 0.25f));
}

// ---- I4: no bias --------------------------------------------------------------------------------

// The errors of a round trip: their sum and the sum of those outwards (away from zero), both in
// standard errors of a sum, and the mean error outwards over the root mean square error.
struct Drift {
  double sum = 0.0, outwards = 0.0, share_outwards = 0.0;
};

Drift drift_of(std::span<const float> v, std::span<const float> out) {
  double sum = 0.0, outwards = 0.0;
  for (std::size_t i = 0; i < v.size(); ++i) {
    const double error = static_cast<double>(out[i]) - static_cast<double>(v[i]);
    sum += error;
    outwards += std::copysign(1.0, static_cast<double>(v[i])) * error;
  }
  const double norm = std::sqrt(squared_error(v, out));
  if (norm == 0.0) return {};
  return {sum / norm, outwards / norm, outwards / norm / std::sqrt(static_cast<double>(v.size()))};
}

// Rounding to the nearest value shrinks values a little, since their density falls: by 0.06 of the
// root mean square error for q4, 0.31 for q2 and ternary (all below s/2 become zero). Truncation
// does so by 0.87, h/2 over h/sqrt(3) for bins of width h.
constexpr double kMostShareOutwards = 0.5;

bool has_drift(const Codec& codec, const Drift& drift) {
  // 4 standard errors; the input is fixed, so this either holds or not.
  if (std::abs(drift.sum) > 4.0) return true;
  if (!codec.spec().is_biased()) return std::abs(drift.outwards) > 4.0;
  // A codec that sends something of every value; others drop values whole, for a while.
  const bool is_dense = codec.fixed_payload_bytes(1) && codec.contraction() < 1.0;
  return is_dense && std::abs(drift.share_outwards) > kMostShareOutwards;
}

TEST_P(EveryCodec, SymmetricInputDoesNotDrift) {
  const auto v = normals(400'000, 18);
  const Drift drift = drift_of(v, round_trip(*codec_, v));
  EXPECT_FALSE(has_drift(*codec_, drift))
      << drift.sum << ", " << drift.outwards << ", " << drift.share_outwards;
}

// The check itself: floor errs by half a bin downwards, truncation by half a bin towards zero,
// which the mean error of symmetric input does not show.
TEST(Drift, OfFloorAndTruncationIsSeen) {
  const auto v = normals(400'000, 18);
  const auto drift = [&](float (*round)(float)) {
    std::vector<float> out(v.size());
    for (std::size_t i = 0; i < v.size(); ++i) out[i] = 0.5f * round(2.0f * v[i]);
    return drift_of(v, out);
  };
  for (const char* spec : {"q4", "q4:round=stochastic"}) {
    const auto codec = make_codec(parse_codec_spec(spec));
    EXPECT_TRUE(has_drift(*codec, drift(std::floor))) << spec;
    const Drift truncation = drift(std::trunc);
    EXPECT_TRUE(has_drift(*codec, truncation)) << spec;
    EXPECT_LE(std::abs(truncation.sum), 4.0);
    EXPECT_NEAR(truncation.share_outwards, -std::sqrt(3.0) / 2.0, 0.02);
  }
  EXPECT_FALSE(has_drift(*make_codec(parse_codec_spec("q4")), drift(std::nearbyint)));
}

INSTANTIATE_TEST_SUITE_P(Codecs, EveryCodec, testing::ValuesIn(all_codec_specs()), codec_test_name);

}  // namespace
}  // namespace dp
