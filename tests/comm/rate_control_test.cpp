// The rate: the histogram's entropies, the plan of a run, the controller, and an exchange whose
// ranks agree on it without a message more.
#include "comm/rate_control.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "comm/gradient_sync.hpp"
#include "comm/replica_hash.hpp"
#include "kernels/base/random.hpp"

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
  EXPECT_NEAR(planned_bits(1.0, 0.0) / planned_bits(1.0, 0.75), 6.0, 1e-9);
  EXPECT_EQ(planned_bits(1.0, 0.5), planned_bits(1.0, 1.0));
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
      controller.update(tally, bits);
      largest_change =
          std::max(largest_change,
                   std::abs(std::log(static_cast<double>(controller.steps()[0] / steps[0]))));
    }
    EXPECT_NEAR(sum / kSteps, bits, 0.08 * bits);
    EXPECT_NEAR(sum_of_last / (kSteps / 2), bits, 0.03 * bits);
    EXPECT_LE(largest_change, RateController::kMostChange + 1e-3);
  }
}

// ---- in an exchange -----------------------------------------------------------------------------

constexpr std::size_t kRows = 32, kColumns = 256, kSmall = 300;

std::vector<TensorSlot> tensors() {
  std::vector<TensorSlot> slots = {{.rows = kRows, .columns = kColumns, .name = "a"},
                                   {.rows = kRows, .columns = kColumns, .name = "b"},
                                   {.rows = 1, .columns = kSmall, .is_1d = true, .name = "c"}};
  std::size_t offset = 0;
  for (TensorSlot& slot : slots) {
    slot.offset = offset;
    offset += slot.elements();
  }
  return slots;
}

GradientSyncOptions options_of(const std::string& topology) {
  return {.compress = "ecq:bits=0.5",
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
  std::vector<double> bits, steps;
  bool operator==(const Trained&) const = default;
};

Trained train(Communicator& comm, const std::string& topology, int count) {
  std::vector<float> gradient(2 * kRows * kColumns + kSmall);
  GradientSync sync(nullptr, gradient, tensors(), options_of(topology));
  sync.connect(comm);
  Trained trained{.sums = std::vector<double>(gradient.size())};
  for (int i = 0; i < count; ++i) {
    const auto step = static_cast<std::uint64_t>(i);
    sync.begin_step(step);
    std::ranges::copy(gradient_of(comm.rank(), i, gradient.size()), gradient.begin());
    sync.all_final();
    EXPECT_TRUE(sync.finish_step().finite);
    for (std::size_t k = 0; k < gradient.size(); ++k) {
      trained.sums[k] += static_cast<double>(gradient[k]);
    }
    const RateReport report = sync.rate_report().value_or(RateReport{});
    if (i > 0) trained.bits.push_back((report.bits[0] + report.bits[1]) / 2);
    for (const double next : report.next_steps) trained.steps.push_back(next);
    sync.reducer().run([&](Communicator& c) { static_cast<void>(agree_on_hash(c, gradient)); });
  }
  trained.rest.assign(sync.reducer().residual().begin(), sync.reducer().residual().end());
  // All ranks have seen the same bits and chosen the same steps.
  sync.reducer().run([&](Communicator& c) {
    for (auto* list : {&trained.bits, &trained.steps}) {
      const auto values = std::span(reinterpret_cast<const float*>(list->data()), 2 * list->size());
      static_cast<void>(agree_on_hash(c, values));
    }
    c.all_sum(std::span<double>(trained.rest));
  });
  return trained;
}

TEST(RateOfAnExchange, IsReachedAndTheSameOnAllRanks) {
  Communicator comm;
  if (comm.size() == 1) return;  // nothing is sent
  for (const char* topology : {"direct", "ring", "tree", "ps"}) {
    constexpr int kSteps = 40;
    const Trained trained = train(comm, topology, kSteps);
    double late = 0;  // the mean of the second half
    for (std::size_t i = kSteps / 2; i < trained.bits.size(); ++i) late += trained.bits[i];
    late /= static_cast<double>(trained.bits.size() - kSteps / 2);
    EXPECT_NEAR(late, 0.5, 0.05) << topology;
    EXPECT_TRUE(trained == train(comm, topology, kSteps)) << topology;
    // What has been delivered and what residuals still hold is what was given.
    double given = 0, missing = 0;
    std::vector<double> exact(trained.sums.size());
    for (int rank = 0; rank < comm.size(); ++rank) {
      for (int i = 0; i < kSteps; ++i) {
        const std::vector<float> part = gradient_of(rank, i, exact.size());
        for (std::size_t k = 0; k < exact.size(); ++k) exact[k] += static_cast<double>(part[k]);
      }
    }
    for (std::size_t k = 0; k < exact.size(); ++k) {
      given += exact[k] * exact[k];
      missing += std::pow(exact[k] - trained.sums[k] - trained.rest[k], 2);
    }
    EXPECT_LT(missing, 1e-9 * given) << topology;
  }
}

TEST(RateOfAnExchange, IsRefusedWhereHostsAddExactly) {
  std::vector<float> gradient(2 * kRows * kColumns + kSmall);
  EXPECT_THROW(GradientSync(nullptr, gradient, tensors(), options_of("hierarchical")), Error);
}

}  // namespace
}  // namespace dp
