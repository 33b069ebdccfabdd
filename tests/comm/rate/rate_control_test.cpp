// The rate: the histogram's entropies, the plan of a run, the controller, and an exchange whose
// ranks agree on it without a message more.
#include "comm/rate/rate_control.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "comm/gradient_sync.hpp"
#include "comm/rate/auto_rate.hpp"
#include "comm/replica_hash.hpp"
#include "kernels/base/random.hpp"
#include "tests/comm/tensor_slots.hpp"

namespace dp {
namespace {

std::vector<float> normals(std::size_t count, std::uint64_t key, double deviation = 1.0) {
  const CounterRng rng(key, RandomStream::test);
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>(deviation * normal(rng, i));
  }
  return values;
}

// In double, from the codes themselves.
double entropy_of(const std::vector<float>& values, double step) {
  std::map<long, double> counts;
  for (const float v : values) counts[std::lround(static_cast<double>(v) / step)] += 1;
  double bits = 0;
  for (const auto& [code, count] : counts) {
    const double share = count / static_cast<double>(values.size());
    bits -= share * std::log2(share);
  }
  return bits;
}

TEST(RateWish, IsTheLeastOfAll) {
  EXPECT_FALSE(RateWish().is_given());
  EXPECT_FALSE(RateWish::of_bits(INFINITY).is_given());
  EXPECT_FALSE(RateWish::of_bits(NAN).is_given());
  for (const double bits : {0.001, 0.05, 0.35, 1.0, 8.0, 32.0}) {
    const RateWish wish = RateWish::of_bits(bits);
    EXPECT_LE(wish.bits(), bits * (1 + 1e-12));
    EXPECT_GE(wish.bits(), bits * 0.9996);
  }
  EXPECT_EQ(RateWish::of_bits(0.0).code(), 0);
  EXPECT_EQ(RateWish::of_bits(-1.0).code(), RateWish::kNone);
  RateWish least = RateWish::of_bits(2.0);
  least.meet(RateWish());
  EXPECT_EQ(least.code(), RateWish::of_bits(2.0).code());
  least.meet(RateWish::of_bits(0.5));
  EXPECT_EQ(least.code(), RateWish::of_bits(0.5).code());
}

TEST(MagnitudeHistogram, KnowsTheEntropyOfMultiples) {
  const std::vector<float> values = normals(50'000, 1);
  MagnitudeHistogram histogram;
  histogram.add(values, nullptr);
  for (const double step : {0.1, 0.5, 1.0, 2.0, 3.0, 4.0}) {
    const double exact = entropy_of(values, step);
    // Bins of a quarter octave divide the values between two codes wrongly at their edges.
    EXPECT_NEAR(histogram.bits(step), exact, 0.12 * exact + 0.02) << step;
  }
}

TEST(MagnitudeHistogram, FindsTheStepForTheBits) {
  for (const double deviation : {1e-20, 1.0, 1e10}) {
    const std::vector<float> values = normals(30'000, 2, deviation);
    MagnitudeHistogram histogram;
    histogram.add(values, nullptr);
    for (const double bits : {0.05, 0.35, 1.0, 1.5, 3.0, 5.0}) {
      const double step = histogram.step_for(bits);
      EXPECT_LE(histogram.bits(step), bits);
      // A bin's edge may lie between the codes 0 and 1: at low bits a quarter octave counts more.
      const double actual = entropy_of(values, step);
      EXPECT_GT(actual, 0.4 * bits) << deviation << " " << bits;
      EXPECT_LT(actual, 1.25 * bits) << deviation << " " << bits;
    }
  }
}

TEST(MagnitudeHistogram, KnowsTheErrorOfMultiples) {
  const std::vector<float> values = normals(50'000, 3);
  MagnitudeHistogram histogram;
  histogram.add(values, nullptr);
  const auto exact = [&](double step) {
    double dropped = 0, all = 0;
    for (const float value : values) {
      const auto v = static_cast<double>(value);
      dropped += std::pow(v - step * std::nearbyint(v / step), 2);
      all += v * v;
    }
    return std::sqrt(dropped / all);
  };
  for (const double step : {0.05, 0.5, 1.0, 2.0, 3.0, 4.0}) {
    EXPECT_NEAR(histogram.relative_error(step), exact(step), 0.15 * exact(step)) << step;
  }
  for (const double error : {0.05, 0.2, 0.5, 0.8}) {
    EXPECT_NEAR(exact(histogram.step_for_error(error)), error, 0.2 * error) << error;
  }
}

TEST(MagnitudeHistogram, AddsTheResidualAndLeavesOutWhatIsNotFinite) {
  const std::vector<float> values = {1.0f, NAN, INFINITY, 3.0f},
                           residual = {1.0f, 0.0f, 0.0f, -1.0f};
  MagnitudeHistogram histogram;
  histogram.add(values, residual.data());
  std::int64_t all = 0;
  for (const std::int64_t count : histogram.counts()) all += count;
  EXPECT_EQ(all, 2);
  EXPECT_EQ(*std::ranges::max_element(histogram.counts()), 2);  // both are 2
}

TEST(MagnitudeHistogram, ZerosAloneHaveNoStep) {
  const std::vector<float> zeros(100);
  MagnitudeHistogram histogram;
  EXPECT_EQ(histogram.step_for(0.5), 0.0);
  histogram.add(zeros, nullptr);
  EXPECT_EQ(histogram.step_for(0.5), 0.0);
  RateController controller;
  controller.start({histogram, histogram}, 0.5);
  EXPECT_FALSE(controller.is_started());
}

TEST(PlannedBits, HasTheMeanOfTheRun) {
  EXPECT_EQ(planned_bits(0.35, -1.0), 0.35);
  double sum = 0;
  constexpr int kSteps = 10'000;
  for (int i = 0; i < kSteps; ++i) sum += planned_bits(0.35, (i + 0.5) / kSteps);
  EXPECT_NEAR(sum / kSteps, 0.35, 1e-4);
  EXPECT_NEAR(planned_bits(0.5, 0.0) / planned_bits(0.5, 0.75), 6.0, 1e-9);
  EXPECT_EQ(planned_bits(1.0, 0.5), planned_bits(1.0, 1.0));
  // Not more than 2.5 bits at the start, where the mean is not more.
  EXPECT_NEAR(planned_bits(2.0, 0.0), 2.5, 0.06);
  sum = 0;
  for (int i = 0; i < kSteps; ++i) sum += planned_bits(2.0, (i + 0.5) / kSteps);
  EXPECT_NEAR(sum / kSteps, 2.0, 1e-3);
  EXPECT_NEAR(planned_bits(4.0, 0.0), 4.0, 0.15);
}

// A site with feedback, as an encoder has it: v = gradient + residual, codes are multiples.
class Site {
 public:
  RateTally::Site step(std::uint64_t number, double step, MagnitudeHistogram* histogram = nullptr) {
    std::vector<float> v = normals(kValues, 100 + number);
    if (histogram != nullptr) histogram->add(v, residual_.data());
    for (std::size_t i = 0; i < kValues; ++i) v[i] += residual_[i];
    if (step > 0) {
      const double bits = entropy_of(v, step) * kValues;
      for (std::size_t i = 0; i < kValues; ++i) {
        residual_[i] = static_cast<float>(v[i] - step * std::nearbyint(v[i] / step));
      }
      return {.bytes = static_cast<std::uint64_t>(bits / 8), .values = kValues};
    }
    return {.bytes = kValues, .values = kValues};
  }

 private:
  static constexpr std::size_t kValues = 4000;
  std::vector<float> residual_ = std::vector<float>(kValues);
};

TEST(RateController, BringsTheMeanToWhatIsPlanned) {
  for (const double bits : {0.1, 0.35, 1.2}) {
    Site sites[kRateSites];
    RateController controller;
    std::array<MagnitudeHistogram, kRateSites> histograms;
    for (std::size_t s = 0; s < kRateSites; ++s) {
      static_cast<void>(sites[s].step(s, 0.0, &histograms[s]));
    }
    controller.start(histograms, bits);
    constexpr int kSteps = 300;
    double sum = 0, largest_change = 0, sum_of_last = 0;
    for (int i = 0; i < kSteps; ++i) {
      const auto steps = controller.steps();
      RateTally tally;
      for (std::size_t s = 0; s < kRateSites; ++s) {
        tally.sites[s] = sites[s].step(static_cast<std::uint64_t>(2 * i + 10) + s,
                                       static_cast<double>(steps[s]));
      }
      sum += tally.bits();
      if (i >= kSteps / 2) sum_of_last += tally.bits();
      controller.update(tally, bits, bits);
      largest_change =
          std::max(largest_change,
                   std::abs(std::log(static_cast<double>(controller.steps()[0] / steps[0]))));
    }
    EXPECT_NEAR(sum / kSteps, bits, 0.08 * bits);
    EXPECT_NEAR(sum_of_last / (kSteps / 2), bits, 0.03 * bits);
    EXPECT_LE(largest_change, RateController::kMostChange + 1e-3);
  }
}

TEST(RateController, FollowsTheMeanOfWhatRanksFind) {
  RateController controller;
  std::array<MagnitudeHistogram, kRateSites> histograms;
  for (MagnitudeHistogram& histogram : histograms) histogram.add(normals(1000, 1), nullptr);
  controller.follow(RateController::own_step(8.0));  // nothing to compare it with
  controller.start(histograms, 1.0);
  const std::array<float, kRateSites> steps = controller.steps();
  controller.follow({0, 0});  // all values are 0
  EXPECT_EQ(controller.steps(), steps);
  const auto one = RateController::own_step(4.0), two = RateController::own_step(1.0);
  controller.follow({one[0] + two[0], one[1] + two[1]});
  for (std::size_t s = 0; s < kRateSites; ++s) {
    EXPECT_NEAR(controller.steps()[s], steps[s] / 4, 1e-3 * steps[s]);
  }
  EXPECT_EQ(RateController::own_step(0.0), (std::array<std::int64_t, 2>{0, 0}));
}

TEST(RateErrors, TheLargestOfAllCount) {
  EXPECT_FALSE(RateErrors().is_given(RateSite::partial));
  RateErrors errors = RateErrors::of({0.5, 0.0});
  EXPECT_NEAR(errors.over_wanted(RateSite::partial), 0.5, 0.005);
  EXPECT_FALSE(errors.is_given(RateSite::total));
  errors.meet(RateErrors::of({0.4, 1.3}));
  EXPECT_NEAR(errors.over_wanted(RateSite::partial), 0.5, 0.005);
  EXPECT_NEAR(errors.over_wanted(RateSite::total), 1.3, 0.013);
  errors.meet(RateErrors());
  EXPECT_TRUE(errors.is_given(RateSite::total));
  errors.meet(RateErrors::of({1000.0, 0.001}));
  EXPECT_NEAR(errors.over_wanted(RateSite::partial), 4.0, 0.1);
  EXPECT_NEAR(RateErrors::of({1e-9, NAN}).over_wanted(RateSite::partial), 0.25, 0.01);
  EXPECT_EQ(RateErrors::of({NAN, 0.0}).code(), RateErrors::kNone);
}

TEST(ResidualGuard, RisesWhileItMustAndFallsSlowly) {
  ResidualGuard guard;
  EXPECT_EQ(guard.factor(), 1.0);
  guard.update(false);
  EXPECT_EQ(guard.factor(), 1.0);
  guard.update(true);
  EXPECT_NEAR(guard.factor(), 1.09, 0.005);
  const double risen = guard.factor();
  guard.update(false);
  EXPECT_LT(guard.factor(), risen);
  EXPECT_GT(guard.factor(), 0.99 * risen);
  for (int i = 0; i < 1000; ++i) guard.update(true);
  EXPECT_EQ(guard.factor(), 16.0);
}

// ---- auto ---------------------------------------------------------------------------------------

TEST(ParseCompress, KnowsAutoAndItsLimits) {
  EXPECT_FALSE(parse_compress("q8").is_auto());
  EXPECT_EQ(parse_compress("q8").codec, parse_codec_spec("q8"));
  EXPECT_EQ(parse_compress("q8").text, "q8");
  EXPECT_EQ(parse_compress("none").codec, CodecSpec::exact());
  EXPECT_EQ(parse_compress("q8").with_velocities(true).codec, parse_codec_spec("q8"));
  const CompressChoice plain = parse_compress("auto");
  ASSERT_TRUE(plain.is_auto());
  EXPECT_EQ(plain.codec, parse_codec_spec("ecq:bits=0.35"));
  const CompressChoice limited = parse_compress("auto:min=0.5,max=0.75");
  EXPECT_EQ(limited.limits->least_bits, 0.5);
  EXPECT_EQ(limited.limits->most_bits, 0.75);
  EXPECT_EQ(limited.codec, parse_codec_spec("ecq:bits=0.5"));
  EXPECT_EQ(parse_compress("auto:velocity=off").codec, plain.codec);
  EXPECT_EQ(parse_compress("auto:velocity=off").with_velocities(true).codec, plain.codec);
  EXPECT_EQ(plain.with_velocities(true).codec, parse_compress("auto:velocity=on").codec);
  EXPECT_EQ(plain.with_velocities(false).codec, plain.codec);
  EXPECT_EQ(plain.with_velocities(true).text, "auto");
  // Velocities gain nothing from more than 0.4 bits. What is asked for is taken.
  EXPECT_EQ(plain.limits->most_bits, 1.0);
  const auto for_adam = [](const char* text) { return parse_compress(text).for_adam(); };
  EXPECT_EQ(for_adam("auto").limits->least_bits, 2.0);
  EXPECT_EQ(for_adam("auto").limits->most_bits, 2.0);
  EXPECT_EQ(for_adam("auto").codec, parse_codec_spec("ecq:bits=2,velocity=off"));
  EXPECT_EQ(for_adam("auto:max=1.5").limits->least_bits, 1.5);
  EXPECT_EQ(for_adam("auto:min=0.2").limits->least_bits, 0.2);
  EXPECT_EQ(for_adam("auto:velocity=on").codec, parse_compress("auto:velocity=on").codec);
  EXPECT_EQ(for_adam("ecq:bits=0.35").codec, parse_codec_spec("ecq:bits=0.35"));
  EXPECT_EQ(parse_compress("auto").with_velocities(true).limits->most_bits, 0.4);
  EXPECT_EQ(parse_compress("auto:velocity=off").with_velocities(true).limits->most_bits, 1.0);
  EXPECT_EQ(parse_compress("auto:min=0.7").with_velocities(true).limits->most_bits, 0.7);
  EXPECT_EQ(parse_compress("auto:max=3").with_velocities(true).limits->most_bits, 3.0);
  EXPECT_TRUE(parse_compress("auto").with_velocities(true).limits->allows_dense);
  // A run begins with more, as one with bits= does, unless a most was given.
  const RateLimits velocities = *parse_compress("auto").with_velocities(true).limits;
  EXPECT_EQ(velocities.at(-1.0).most_bits, 0.4);
  EXPECT_EQ(velocities.at(0.0).most_bits, planned_bits(0.4, 0.0));
  EXPECT_NEAR(velocities.at(0.0).most_bits, 1.27, 0.01);
  EXPECT_GT(velocities.at(0.3).most_bits, 0.4);
  EXPECT_EQ(velocities.at(0.35).most_bits, 0.4);
  EXPECT_EQ(velocities.at(0.0).least_bits, 0.1);
  EXPECT_EQ(parse_compress("auto:max=0.4").with_velocities(true).limits->at(0.0).most_bits, 0.4);
  EXPECT_EQ(parse_compress("auto:velocity=on,max=0.2").codec,
            parse_codec_spec("ecq:bits=0.2,velocity=masked"));
  for (const char* bad : {"auto:velocity", "auto:velocity=masked", "auto:", "auto:min", "auto:min=",
                          "auto:min=0", "auto:min=x", "auto:max=7", "auto:min=1,max=0.5",
                          "auto:bits=1", "auto:min=nan", "automatic", "auto:min=0.1,,max=1"}) {
    if (std::string_view(bad) == "auto:") {
      EXPECT_TRUE(parse_compress(bad).is_auto());
    } else {
      EXPECT_THROW(static_cast<void>(parse_compress(bad)), Error) << bad;
    }
  }
}

TEST(ParseCompress, FewestHasTheBitsOfTheNetworkTheRanksAndTheOptimiser) {
  constexpr std::size_t kResNet20 = 272'474, kResNet18 = 11'173'962;
  const CompressChoice fewest = parse_compress("fewest");
  EXPECT_FALSE(fewest.is_auto());
  EXPECT_EQ(fewest.text, "fewest");
  const auto codec = [&](const CompressChoice& choice, std::size_t values, std::size_t ranks) {
    EXPECT_EQ(choice.for_network(values, ranks).text, choice.text);
    return choice.for_network(values, ranks).codec;
  };
  const CompressChoice velocities = fewest.with_velocities(true);
  EXPECT_EQ(codec(velocities, kResNet20, 4), parse_codec_spec("ecq:bits=0.1,velocity=masked"));
  EXPECT_EQ(codec(velocities, kResNet20, 16), parse_codec_spec("ecq:bits=0.2,velocity=masked"));
  EXPECT_EQ(codec(velocities, kResNet18, 8), parse_codec_spec("ecq:bits=0.03,velocity=masked"));
  EXPECT_EQ(codec(velocities, 1'970'000, 4), parse_codec_spec("ecq:bits=0.0527,velocity=masked"));
  // No fewer than was tried, and no more for small networks.
  EXPECT_EQ(codec(velocities, 100 * kResNet18, 4), codec(velocities, kResNet18, 4));
  EXPECT_EQ(codec(velocities, 1000, 2), codec(velocities, kResNet20, 4));
  EXPECT_EQ(codec(fewest.with_velocities(false), kResNet18, 4), parse_codec_spec("ecq:bits=0.35"));
  EXPECT_EQ(codec(fewest, kResNet20, 16), parse_codec_spec("ecq:bits=0.7"));
  EXPECT_EQ(codec(velocities.for_adam(), kResNet20, 4),
            parse_codec_spec("ecq:bits=0.35,velocity=masked"));
  EXPECT_EQ(codec(fewest.for_adam(), kResNet20, 4), parse_codec_spec("ecq:bits=2"));
  EXPECT_EQ(codec(parse_compress("q8").with_velocities(true).for_adam(), kResNet20, 64),
            parse_codec_spec("q8"));
  for (const char* bad : {"fewest:", "fewest:bits=1", "fewer"}) {
    EXPECT_THROW(static_cast<void>(parse_compress(bad)), Error) << bad;
  }
  const auto message = [](const char* bad) {
    try {
      static_cast<void>(parse_compress(bad));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(message("fewer"), testing::EndsWith(", powersgd, auto, fewest"));
  EXPECT_THAT(message("fewest:bits=1"), testing::EndsWith("to choose the bits, use ecq:bits=X"));
}

TEST(ParseCompress, AutosLeastGrowsFromEightRanksOn) {
  const auto limits = [](const char* text, std::size_t ranks) {
    return *parse_compress(text).with_velocities(true).for_network(270'000, ranks).limits;
  };
  EXPECT_EQ(limits("auto", 8).least_bits, 0.1);
  EXPECT_EQ(limits("auto", 16).least_bits, 0.2);
  EXPECT_EQ(limits("auto", 16).most_bits, 0.4);
  EXPECT_EQ(limits("auto", 64).least_bits, 0.8);
  EXPECT_EQ(limits("auto", 64).most_bits, 0.8);
  EXPECT_EQ(limits("auto:min=0.1", 64).least_bits, 0.1);
  EXPECT_EQ(limits("auto:max=0.5", 64).least_bits, 0.5);
  EXPECT_EQ(limits("auto:max=0.5", 64).most_bits, 0.5);
  // Adam's gradients have more bits on any number of ranks; nothing has more than max= may be.
  for (const std::size_t ranks : {16, 64, 100'000}) {
    const CompressChoice adam = parse_compress("auto").for_adam().for_network(270'000, ranks);
    EXPECT_EQ(adam.limits->least_bits, 2.0) << ranks;
  }
  // Its steps have those of fewest.
  const auto of_steps = [](const char* text, std::size_t ranks) {
    return parse_compress(text).with_velocities(true).for_adam().for_network(270'000, ranks);
  };
  EXPECT_EQ(of_steps("auto", 4).limits->least_bits, 0.35);
  EXPECT_EQ(of_steps("auto", 4).limits->most_bits, 0.4);
  EXPECT_EQ(of_steps("auto", 16).limits->least_bits, 0.7);
  EXPECT_EQ(of_steps("auto", 16).codec, of_steps("fewest", 16).codec);
  EXPECT_EQ(of_steps("auto:min=0.1", 4).limits->least_bits, 0.1);
  EXPECT_EQ(of_steps("auto:max=0.2", 4).limits->least_bits, 0.2);
  EXPECT_EQ(limits("auto", 100'000).least_bits, 6.0);
  EXPECT_EQ(fewest_bits(SentKind::gradients, 270'000, 100'000), 6.0);
}

TEST(DenseChoice, TakesAFormThatTheLinkHasCarriedForSomeSteps) {
  const RateLimits limits;
  const double q4 = 4.0 + 1.0 / 64, q8 = 8.0 + 1.0 / 64;
  DenseChoice choice;
  for (int i = 1; i < DenseChoice::kPatience; ++i) EXPECT_EQ(choice.next(100.0, limits), 1.0);
  EXPECT_EQ(choice.next(100.0, limits), 32.0);
  EXPECT_EQ(choice.next(33.0, limits), 32.0);  // it needs no margin to stay
  EXPECT_EQ(choice.next(31.0, limits), 16.0);  // it goes back at once
  EXPECT_EQ(choice.next(15.9, limits), q8);
  EXPECT_EQ(choice.next(8.0, limits), q4);
  EXPECT_EQ(choice.next(4.0, limits), 1.0);
  EXPECT_EQ(choice.next(0.5, limits), 0.5);
  // Now it waits twice as long for each time, and every step counts.
  for (int i = 1; i < 16 * DenseChoice::kPatience; ++i) EXPECT_EQ(choice.next(5.0, limits), 1.0);
  EXPECT_EQ(choice.next(4.3, limits), 1.0);
  for (int i = 1; i < 16 * DenseChoice::kPatience; ++i) EXPECT_EQ(choice.next(5.0, limits), 1.0);
  EXPECT_EQ(choice.next(5.0, limits), q4);
  for (int i = 1; i < 16 * DenseChoice::kPatience; ++i) EXPECT_EQ(choice.next(20.0, limits), q4);
  EXPECT_EQ(choice.next(20.0, limits), 16.0);
  // A least and a most that were given hold.
  const RateLimits least = *parse_compress("auto:min=5").limits;
  DenseChoice of_five;
  for (int i = 0; i < 50; ++i) EXPECT_EQ(of_five.next(4.9, least), 5.0);
  const RateLimits given = *parse_compress("auto:max=2").limits;
  DenseChoice never;
  for (int i = 0; i < 50; ++i) EXPECT_EQ(never.next(1000.0, given), 2.0);
}

TEST(DenseChoice, APlanSaysWhichFormItIs) {
  for (const DenseForm& form : kDenseForms)
    EXPECT_EQ(dense_bits_of(form.bits_per_value), form.bits);
  for (const double bits : {0.0, 0.35, 4.0, 6.0, 8.0}) EXPECT_EQ(dense_bits_of(bits), 0u);
}

BusyPeriod period_of(std::uint64_t bytes, double wire_s) {
  return {.begin_s = 10.0, .end_s = 10.0 + wire_s + 0.3, .sent_bytes = bytes, .codec_s = 0.3};
}

TEST(LinkRateEstimate, IsBetweenWhatPeriodsAllow) {
  LinkRateEstimate link(1e6);
  // 1 MB in 1.1 s, of which 0.1 s may be latency: 0.91 to 1 MB/s allow what was there.
  for (int i = 0; i < 5; ++i) link.add(period_of(1'000'000, 1.1), 0.1);
  EXPECT_NEAR(link.bytes_per_s(), 1e6, 1e-3);
  // Now it is ten times slower: the median follows when three of five say so.
  for (int i = 0; i < 2; ++i) link.add(period_of(1'000'000, 10.1), 0.1);
  EXPECT_NEAR(link.bytes_per_s(), 1e6, 1e-3);
  link.add(period_of(1'000'000, 10.1), 0.1);
  EXPECT_NEAR(link.bytes_per_s(), 1e5, 1e-3);
  // A period without bytes says nothing; nor does one of few bytes whose time is latency, so the
  // estimate rises slowly, up to what was there before the first step.
  link.add(period_of(0, 1.0), 0.0);
  EXPECT_NEAR(link.bytes_per_s(), 1e5, 1e-3);
  for (int i = 0; i < 5; ++i) link.add(period_of(10, 0.01), 0.01);
  EXPECT_GT(link.bytes_per_s(), 1e5);
  EXPECT_LT(link.bytes_per_s(), 1.7e5);
  for (int i = 0; i < 200; ++i) link.add(period_of(10, 0.01), 0.006);
  EXPECT_EQ(link.bytes_per_s(), 1e6);
  // Half of the time is more than latency: that bounds it.
  for (int i = 0; i < 5; ++i) link.add(period_of(10'000, 0.1), 0.04);
  EXPECT_NEAR(link.bytes_per_s(), 1e4 / 0.06, 1e-3);
  // Other ranks that had not begun may have kept it from sending.
  BusyPeriod waits = period_of(10'000, 0.01);
  waits.end_s += 0.01;
  waits.peer_wait_s = 0.01;
  for (int i = 0; i < 5; ++i) link.add(waits, 0.0);
  EXPECT_NEAR(link.bytes_per_s(), 1e4 / 0.02, 1e-3);
  // Fast again: w / t is a bound from below.
  for (int i = 0; i < 3; ++i) link.add(period_of(1'000'000, 0.1), 0.0);
  EXPECT_NEAR(link.bytes_per_s(), 1e7, 1e-3);
}

// A step of 1 s of backward and 0.2 s besides, over a link of `rate` bytes per second. Its only
// bucket is ready after 0.1 s and takes `bits` a value.
StepTimes step_at(double bits, double rate, std::span<const double> ready_s, double elements) {
  const double bytes = 1.5 * elements * bits / 8;
  const double end_s = 0.1 + bytes / rate;
  return {
      .begin_s = 0.0,
      .ready_s = ready_s,
      .backward_end_s = 1.0,
      .next_begin_s = 1.2 + std::max(0.0, end_s - 1.0),
      .exposed_s = std::max(0.0, end_s - 1.0),
      .busy = {.begin_s = 0.1, .end_s = end_s, .sent_bytes = static_cast<std::uint64_t>(bytes)}};
}

TEST(AutoRate, FollowsTheLink) {
  constexpr double kElements = 1e7;
  const std::vector<double> ready_s = {0.1};
  AutoRate rate({{.elements = static_cast<std::size_t>(kElements)}}, 2, 1.5,
                {.bytes_per_s = 1.25e7, .latency_s = 0.0});
  EXPECT_FALSE(rate.is_known());
  double bits = 0.35;
  const auto run = [&](double bytes_per_s, int steps) {
    for (int i = 0; i < steps; ++i) {
      rate.add(step_at(bits, bytes_per_s, ready_s, kElements));
      bits = RateLimits{.least_bits = 0.01, .most_bits = 6.0}.limited(rate.budget().bits_per_value);
    }
    return bits;
  };
  // 0.9 s and a slack of 0.036 s carry 1.17e6 bytes, which are 1.5 x 1e7 x bits / 8.
  const double hidden = (0.9 + 0.036 - 2 * AutoRate::kWakeUp_s) * 1.25e6 * 8 / 1.5 / kElements;
  EXPECT_NEAR(run(1.25e6, 20), hidden, 0.08 * hidden);
  EXPECT_NEAR(run(1.25e5, 20), hidden / 10, 0.008 * hidden);
  EXPECT_NEAR(run(1.25e6, 20), hidden, 0.08 * hidden);
}

// A busy machine: every exchange takes 0.2 s more than its bytes do, and the last bucket is late by
// that in any case. Fewer bits would not help.
TEST(AutoRate, DoesNotTakeABusyMachineForASlowLink) {
  constexpr double kRate = 1.25e7, kElements = 1e6, kLate_s = 0.2;
  const std::vector<double> ready_s = {0.9, 1.0};
  AutoRate rate({{.elements = static_cast<std::size_t>(kElements)}, {.fixed_bytes = 1000}}, 2, 1.5,
                {.bytes_per_s = kRate, .latency_s = 0.0});
  double bits = 0.35, least = 2.0;
  for (int i = 0; i < 120; ++i) {
    const double bytes = 1.5 * (kElements * bits / 8 + 1000), end_s = 1.0 + kLate_s + bytes / kRate;
    rate.add(
        {.begin_s = 0.0,
         .ready_s = ready_s,
         .backward_end_s = 1.0,
         .next_begin_s = 1.2 + end_s - 1.0,
         .exposed_s = end_s - 1.0,
         .busy = {
             .begin_s = 1.0, .end_s = end_s, .sent_bytes = static_cast<std::uint64_t>(bytes)}});
    bits = RateLimits{}.limited(rate.budget().bits_per_value);
    if (i > 80) least = std::min(least, bits);
  }
  EXPECT_GE(bits, 1.0);
  EXPECT_GE(least, 0.5);
}

// Encoding of the last values and decoding come before and after their time on the wire: 0.08 s, of
// which the model knows nothing.
TEST(AutoRate, HidesWhatCodingTakesToo) {
  constexpr double kElements = 1e7, kRate = 1.25e6, kCodec_s = 0.08;
  const std::vector<double> ready_s = {0.1};
  AutoRate rate({{.elements = static_cast<std::size_t>(kElements)}}, 2, 1.5,
                {.bytes_per_s = kRate, .latency_s = 0.0});
  double bits = 0.35, exposed_s = 0.0;
  const auto step = [&](double codec_s) {
    StepTimes times = step_at(bits, kRate, ready_s, kElements);
    times.busy.end_s += codec_s;
    times.busy.codec_s = codec_s;
    exposed_s = times.exposed_s = std::max(0.0, times.busy.end_s - 1.0);
    times.next_begin_s = 1.2 + exposed_s;
    rate.add(times);
    bits = RateLimits{.least_bits = 0.01, .most_bits = 6.0}.limited(rate.budget().bits_per_value);
  };
  const double slack_s = AutoRate::kSlack * 1.2;
  step(kCodec_s);
  step(kCodec_s);
  EXPECT_GT(exposed_s, 2 * slack_s);
  for (int i = 0; i < 60; ++i) step(kCodec_s);
  EXPECT_NEAR(exposed_s, slack_s, 0.1 * slack_s);
  // Without coding the time is used again.
  const double less = bits;
  for (int i = 0; i < 60; ++i) step(0.0);
  EXPECT_NEAR(exposed_s, slack_s, 0.1 * slack_s);
  EXPECT_GT(bits, 1.05 * less);
}

// A rank that is late, be it for good, does not make others take their links for slow; and one
// whose link was slow for a time sees that it has mended.
TEST(AutoRate, ALateRankHoldsUpNoLink) {
  constexpr double kElements = 1e6;
  const std::vector<double> ready_s = {0.1};
  AutoRate rate({{.elements = static_cast<std::size_t>(kElements)}}, 2, 1.5,
                {.bytes_per_s = 1e6, .latency_s = 0.0});
  double bits = 1.0;
  const auto run = [&](double bytes_per_s, double late_s, int steps) {
    for (int i = 0; i < steps; ++i) {
      StepTimes step = step_at(bits, bytes_per_s, ready_s, kElements);
      step.busy.end_s += late_s;
      step.busy.peer_wait_s = late_s;
      step.exposed_s = std::max(0.0, step.busy.end_s - 1.0);
      step.next_begin_s = 1.2 + step.exposed_s;
      rate.add(step);
      bits = RateLimits{.least_bits = 0.01, .most_bits = 6.0}.limited(rate.budget().bits_per_value);
    }
    return bits;
  };
  const double before = run(1e6, 0.0, 10);
  EXPECT_NEAR(run(1e6, 5.0, 1), before, 0.01 * before);
  EXPECT_NEAR(run(1e6, 5.0, 100), before, 0.01 * before);
  EXPECT_NEAR(rate.bytes_per_s(), 1e6, 2e5);
  EXPECT_NEAR(run(1e5, 0.1, 20), before / 10, 0.02 * before);
  EXPECT_GT(run(1e6, 0.3, 100), 0.6 * before);
}

// ---- in an exchange -----------------------------------------------------------------------------

constexpr std::size_t kRows = 32, kColumns = 256, kSmall = 300;

std::vector<TensorSlot> tensors() {
  return test::two_matrices_and_a_vector(kRows, kColumns, kSmall);
}

GradientSyncOptions options_of(const std::string& topology,
                               const std::string& compress = "ecq:bits=0.5") {
  return {.compress = parse_compress(compress),
          .bucket_bytes = kRows * kColumns * sizeof(float),
          .reducer = {.topology = topology, .segment_bytes = 16384, .buckets_in_flight = 2}};
}

std::vector<float> gradient_of(int rank, int step, std::size_t count) {
  return normals(count,
                 1000 * static_cast<std::uint64_t>(rank + 1) + static_cast<std::uint64_t>(step));
}

struct Trained {
  std::vector<double> sums;  // over all steps
  std::vector<double> rest;  // the residuals at the end, over all ranks
  std::vector<double> bits, steps, guards;
  std::vector<double> errors;   // the mean over ranks
  std::vector<double> growths;  // of this rank
  bool operator==(const Trained&) const = default;
};

Trained train(Communicator& comm, const GradientSyncOptions& options, int count,
              double exchanges_of_gradient = 1.0) {
  std::vector<float> gradient(2 * kRows * kColumns + kSmall);
  GradientSync sync(nullptr, gradient, tensors(), options);
  sync.connect(comm);
  sync.governor()->set_exchanges_of_gradient(exchanges_of_gradient);
  Trained trained;
  trained.sums.resize(gradient.size());
  for (int i = 0; i < count; ++i) {
    const auto step = static_cast<std::uint64_t>(i);
    sync.begin_step(step);
    std::ranges::copy(gradient_of(comm.rank(), i, gradient.size()), gradient.begin());
    sync.all_final();
    EXPECT_TRUE(sync.finish_step().finite);
    for (std::size_t k = 0; k < gradient.size(); ++k) {
      trained.sums[k] += static_cast<double>(gradient[k]);
    }
    const RateReport& report = sync.rate_report();
    if (i > 0) trained.bits.push_back(report.mean_bits());
    for (const double next : report.next_steps) trained.steps.push_back(next);
    trained.guards.push_back(report.guard_factor);
    trained.errors.push_back(report.relative_error);
    trained.growths.push_back(report.residual_growth);
    sync.reducer().run([&](Communicator& c) { static_cast<void>(agree_on_hash(c, gradient)); });
  }
  trained.rest.assign(sync.reducer().residual().begin(), sync.reducer().residual().end());
  // All ranks have seen the same bits and chosen the same steps.
  sync.reducer().run([&](Communicator& c) {
    for (auto* list : {&trained.bits, &trained.steps, &trained.guards}) {
      const auto values = std::span(reinterpret_cast<const float*>(list->data()), 2 * list->size());
      static_cast<void>(agree_on_hash(c, values));
    }
    c.all_sum(std::span<double>(trained.rest));
    c.all_sum(std::span<double>(trained.errors));
    for (double& error : trained.errors) error /= c.size();
  });
  return trained;
}

// What has been delivered and what residuals still hold is what was given.
void expect_nothing_is_lost(const Communicator& comm, const Trained& trained, int count) {
  double given = 0, missing = 0;
  std::vector<double> exact(trained.sums.size());
  for (int rank = 0; rank < comm.size(); ++rank) {
    for (int i = 0; i < count; ++i) {
      const std::vector<float> part = gradient_of(rank, i, exact.size());
      for (std::size_t k = 0; k < exact.size(); ++k) exact[k] += static_cast<double>(part[k]);
    }
  }
  for (std::size_t k = 0; k < exact.size(); ++k) {
    given += exact[k] * exact[k];
    missing += std::pow(exact[k] - trained.sums[k] - trained.rest[k], 2);
  }
  EXPECT_LT(missing, 1e-9 * given);
}

double mean_of_second_half(const std::vector<double>& values) {
  double sum = 0;
  for (std::size_t i = values.size() / 2; i < values.size(); ++i) sum += values[i];
  return sum / static_cast<double>(values.size() - values.size() / 2);
}

TEST(RateOfAnExchange, IsReachedAndTheSameOnAllRanks) {
  Communicator comm;
  if (comm.size() == 1) return;  // nothing is sent
  for (const char* topology : {"direct", "ring", "tree", "ps"}) {
    SCOPED_TRACE(topology);
    constexpr int kSteps = 40;
    const Trained trained = train(comm, options_of(topology), kSteps);
    EXPECT_NEAR(mean_of_second_half(trained.bits), 0.5, 0.05);
    EXPECT_TRUE(trained == train(comm, options_of(topology), kSteps));
    expect_nothing_is_lost(comm, trained, kSteps);
    EXPECT_EQ(std::ranges::max(trained.guards), 1.0);
  }
}

// In rounds the values are there before the exchange begins, and may be far larger or smaller than
// the last ones. The plan is kept nevertheless, also over few rounds.
TEST(RateOfAnExchange, FollowsTheValuesOfRounds) {
  Communicator comm;
  if (comm.size() == 1) return;
  for (const char* topology : {"direct", "ring"}) {
    SCOPED_TRACE(topology);
    std::vector<float> gradient(2 * kRows * kColumns + kSmall);
    GradientSync sync(nullptr, gradient, tensors(), options_of(topology));
    sync.connect(comm);
    constexpr int kRounds = 18;
    double sent = 0, planned = 0;
    for (int i = 0; i < kRounds; ++i) {
      const float scale = std::exp2(static_cast<float>(i < kRounds / 2 ? i : kRounds - i));
      std::ranges::copy(gradient_of(comm.rank(), i, gradient.size()), gradient.begin());
      for (float& value : gradient) value *= scale;
      sync.governor()->set_round({.number = static_cast<std::uint64_t>(i)});
      sync.begin_step(static_cast<std::uint64_t>(8 * i), static_cast<double>(i) / kRounds);
      sync.all_final();
      EXPECT_TRUE(sync.finish_step().finite);
      sync.reducer().run([&](Communicator& c) { static_cast<void>(agree_on_hash(c, gradient)); });
      if (i == 0) continue;  // its steps are each segment's own
      sent += sync.rate_report().mean_bits();
      planned += sync.rate_report().planned_bits;
    }
    EXPECT_NEAR(sent / planned, 1.0, 0.15);
  }
}

TEST(RateOfAnExchange, ErrorIsReachedAndTheSameOnAllRanks) {
  Communicator comm;
  if (comm.size() == 1) return;
  for (const char* topology : {"direct", "ring"}) {
    SCOPED_TRACE(topology);
    for (const double wanted : {0.2, 0.6}) {
      constexpr int kSteps = 30;
      const auto options = options_of(topology, fmt::format("ecq:error={}", wanted));
      const Trained trained = train(comm, options, kSteps);
      EXPECT_NEAR(mean_of_second_half(trained.errors), wanted, 0.06 * wanted);
      expect_nothing_is_lost(comm, trained, kSteps);
      if (wanted == 0.6) {
        EXPECT_TRUE(trained == train(comm, options, kSteps));
      }
    }
  }
}

// With a limit that noise at so few bits must exceed.
TEST(RateOfAnExchange, SendsMoreWhileTooMuchWaitsInResiduals) {
  Communicator comm;
  if (comm.size() == 1) return;
  constexpr int kSteps = 48;
  const auto options = [](double growth) {
    return options_of("direct", fmt::format("ecq:bits=0.08,growth={}", growth));
  };
  const Trained free = train(comm, options(0), kSteps);
  const Trained guarded = train(comm, options(0.8), kSteps);
  EXPECT_EQ(std::ranges::max(free.guards), 1.0);
  EXPECT_GT(free.growths.back(), 0.9);
  EXPECT_GT(guarded.guards.back(), 1.3);
  EXPECT_LT(guarded.growths.back(), free.growths.back());
  EXPECT_GT(guarded.bits.back(), 1.2 * free.bits.back());
  EXPECT_TRUE(guarded == train(comm, options(0.8), kSteps));
  expect_nothing_is_lost(comm, guarded, kSteps);
  // As many times as much may wait as a gradient comes into exchanges.
  EXPECT_TRUE(guarded == train(comm, options(0.2), kSteps, 4.0));
  EXPECT_EQ(std::ranges::max(train(comm, options(0.8), kSteps, 100.0).guards), 1.0);
}

TEST(RateOfAnExchange, ManyVelocitiesMayWait) {
  Communicator comm;
  if (comm.size() == 1) return;
  GradientSyncOptions options = options_of("direct", "ecq:bits=1,growth=4,velocity=on");
  options.momentum = 0.75f;
  std::vector<float> gradient(2 * kRows * kColumns + kSmall, 1.0f);
  GradientSync sync(nullptr, gradient, tensors(), options);
  sync.connect(comm);
  sync.begin_step(0);
  sync.all_final();
  EXPECT_TRUE(sync.finish_step().finite);
  EXPECT_DOUBLE_EQ(sync.rate_report().most_growth, 16.0);
}

// auto, with a plan as an earlier run has it: floats and back again.
TEST(RateOfAnExchange, CanBeThatOfFloats) {
  Communicator comm;
  if (comm.size() == 1) return;
  GradientSyncOptions options = options_of("direct", "auto");
  options.planned_bits = {2, 2, 2, 16, 16, 32, 32, 1, 1, 1, 1, 1};
  const int steps = static_cast<int>(options.planned_bits.size());
  const Trained trained = train(comm, options, steps);
  // The first step is not in `bits`.
  EXPECT_NEAR(trained.bits[2], 16, 0.1);
  EXPECT_NEAR(trained.bits[3], 16, 0.1);
  EXPECT_NEAR(trained.bits[4], 32, 0.1);
  EXPECT_NEAR(trained.bits[5], 32, 0.1);
  EXPECT_LT(trained.bits[6], 3);
  EXPECT_NEAR(trained.bits.back(), 1, 0.3);
  EXPECT_TRUE(trained == train(comm, options, steps));
  expect_nothing_is_lost(comm, trained, steps);
  // fp32 leaves no residual but that of the small tensor, which q8 sends.
  options.planned_bits = {2, 2, 32};
  const std::vector<double> rest = train(comm, options, 3).rest;
  EXPECT_TRUE(std::all_of(rest.begin(), rest.end() - kSmall, [](double r) { return r == 0; }));
}

// Steps of a run in which a gradient that is not finite may come.
class SteppedRun {
 public:
  SteppedRun(Communicator& comm, const GradientSyncOptions& options)
      : comm_(comm), sync_(nullptr, gradient_, tensors(), options) {
    sync_.connect(comm);
  }
  // Returns the sums; none where the step is skipped.
  std::vector<float> step(int i, bool is_spoilt = false) {
    sync_.begin_step(static_cast<std::uint64_t>(i));
    std::ranges::copy(gradient_of(comm_.rank(), i, gradient_.size()), gradient_.begin());
    if (is_spoilt && comm_.rank() == comm_.size() - 1) gradient_[7] = std::nanf("");
    sync_.all_final();
    const bool is_finite = sync_.finish_step().finite;
    EXPECT_EQ(is_finite, !is_spoilt) << "step " << i;
    return is_finite ? gradient_ : std::vector<float>();
  }
  const RateReport& report() const { return sync_.rate_report(); }
  std::vector<double> of_all_ranks(double mine) {
    return sync_.reducer().run([&](Communicator& c) { return c.all_gather(mine); });
  }
  std::vector<std::vector<std::byte>> state() {
    std::vector<std::vector<std::byte>> copies;
    for (const StateBlock& block : blocks()) {
      copies.emplace_back(block.bytes.begin(), block.bytes.end());
    }
    return copies;
  }
  void restore(const std::vector<std::vector<std::byte>>& copies) {
    const std::vector<StateBlock> to = blocks();
    for (std::size_t b = 0; b < to.size(); ++b) {
      std::ranges::copy(copies[b], to[b].bytes.begin());
    }
  }

 private:
  std::vector<StateBlock> blocks() {
    StateList list;
    sync_.list_state(list);
    return list.blocks;
  }

  Communicator& comm_;
  std::vector<float> gradient_ = std::vector<float>(2 * kRows * kColumns + kSmall);
  GradientSync sync_;
};

// Whichever rank's it is.
TEST(RateOfAnExchange, TheLeastWishIsReportedOnAllRanks) {
  Communicator comm;
  if (comm.size() == 1) return;
  GradientSyncOptions options = options_of("direct", "auto");
  options.link_bytes_per_s = comm.rank() == comm.size() - 1 ? 1e5 : 1e9;
  SteppedRun steps(comm, options);
  for (int i = 0; i < 4; ++i) {
    static_cast<void>(steps.step(i));
    const double wished = steps.report().wished_bits;
    std::vector<double> hidden = steps.of_all_ranks(steps.report().hidden_bits);
    EXPECT_EQ(std::isnan(wished), i == 0) << "step " << i;
    if (i == 0) continue;
    for (double& bits : hidden) bits = RateWish::of_bits(bits).bits();
    EXPECT_EQ(wished, std::ranges::min(hidden)) << "step " << i;
  }
}

// The plan moves at every step, also at the one that is skipped.
TEST(RateOfAnExchange, ASkippedStepIsReportedWithItsOwnPlan) {
  Communicator comm;
  if (comm.size() == 1) return;
  constexpr int kSkipped = 3;
  GradientSyncOptions options = options_of("direct", "auto");
  const std::vector<double> planned = {0.5, 0.6, 0.8, 1.4, 0.9, 0.7, 0.5, 0.4};
  options.planned_bits = planned;
  const auto run = [&](std::vector<double>& reported) {
    SteppedRun steps(comm, options);
    std::vector<std::vector<float>> sums;
    for (int i = 0; i < static_cast<int>(planned.size()); ++i) {
      sums.push_back(steps.step(i, i == kSkipped));
      reported.push_back(steps.report().planned_bits);
      EXPECT_EQ(std::isnan(steps.report().mean_bits()), i == kSkipped) << "step " << i;
    }
    return sums;
  };
  std::vector<double> reported, repeated;
  const std::vector<std::vector<float>> sums = run(reported);
  EXPECT_EQ(reported, planned);
  options.planned_bits = reported;
  EXPECT_TRUE(sums == run(repeated));
}

// The step in which values are counted is skipped; a run goes on after it, or from its state.
TEST(RateOfAnExchange, ASkippedStepIsNotCounted) {
  Communicator comm;
  if (comm.size() == 1) return;
  const GradientSyncOptions options = options_of("direct");
  std::vector<std::vector<std::byte>> state;
  const auto run = [&](bool is_resumed) {
    SteppedRun steps(comm, options);
    if (is_resumed) {
      steps.restore(state);
    } else {
      static_cast<void>(steps.step(0, true));
      state = steps.state();
    }
    std::vector<std::vector<float>> sums;
    for (int i = 1; i < 5; ++i) sums.push_back(steps.step(i));
    return sums;
  };
  const std::vector<std::vector<float>> whole = run(false);
  EXPECT_TRUE(whole == run(true));
}

TEST(RateOfAnExchange, WrongCombinationsAreRefused) {
  std::vector<float> gradient(2 * kRows * kColumns + kSmall);
  for (const char* spec : {"ecq:bits=0.5,error=0.5", "ecq:error=0.5,ef=off"}) {
    EXPECT_THROW(GradientSync(nullptr, gradient, tensors(), options_of("direct", spec)), Error)
        << spec;
  }
}

TEST(RateOfAnExchange, IsRefusedWhereHostsAddExactly) {
  std::vector<float> gradient(2 * kRows * kColumns + kSmall);
  EXPECT_THROW(GradientSync(nullptr, gradient, tensors(), options_of("hierarchical")), Error);
}

}  // namespace
}  // namespace dp
