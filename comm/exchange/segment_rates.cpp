#include "comm/exchange/segment_rates.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace dp {
namespace {

constexpr int kBinShift = 19;  // sign, exponent and four bits of the mantissa remain
constexpr std::uint32_t kMagnitude = 0x7fffffffu;
constexpr int kMostCode = 127;              // the codec's largest code
constexpr double kPrecision = 1.0 / 128.0;  // of step sizes, in octaves

// The sample of a segment: kRun consecutive values in each of kMostRuns places.
constexpr std::size_t kRun = 256, kMostRuns = 16;

}  // namespace

RelativeMagnitudes::RelativeMagnitudes(std::span<const float> values, const float* residual,
                                       float step, const SegmentMemory& memory) {
  const float inverse = 1.0f / step;
  const std::size_t n = values.size();
  std::array<float, (kMostRuns + 1) * kRun> sample;  // n may be no multiple of kMostRuns
  sampled_ =
      memory.sample(values.data(), residual, n, kRun, std::max(kRun, n / kMostRuns), sample.data());
  std::array<std::uint8_t, kRun> bins;
  // The tables are used in turn. With a single table, an increment would often wait for the
  // previous one, because half of all values are in the first bin. A branch that skips that bin
  // would be mispredicted too often.
  constexpr std::size_t kTables = 4;
  std::array<std::array<std::uint32_t, kBins + 1>, kTables> tables = {};
  static_assert(kBins < 256);
  for (std::size_t begin = 0; begin < sampled_; begin += kRun) {
    const std::size_t count = std::min(kRun, sampled_ - begin);
    const float* v = sample.data() + begin;
    const auto bin_of = [=](float value) {
      const std::uint32_t bin = (std::bit_cast<std::uint32_t>(value) & kMagnitude) >> kBinShift;
      return static_cast<std::uint8_t>(
          std::min(std::max(bin, kBefore) - kBefore, std::uint32_t{kBins}));
    };
#pragma omp simd
    for (std::size_t i = 0; i < count; ++i) bins[i] = bin_of(v[i] * inverse);
    for (std::size_t i = 0; i < count; ++i) ++tables[i % kTables][bins[i]];
  }
  std::uint32_t above = 0;
  for (std::size_t bin = kBins; bin > 0; --bin) {
    for (const auto& table : tables) above += table[bin];
    from_[bin] = above;
  }
  from_[0] = above;
}

double RelativeMagnitudes::count_from(float steps) const {
  const auto bits = std::bit_cast<std::uint32_t>(steps);
  const std::uint32_t bin = (bits >> kBinShift) - kBefore;
  if (bin >= kBins) return 0.0;
  // Values are assumed to be spread evenly within a bin.
  constexpr double kWidth = 1u << kBinShift;
  const double above = static_cast<double>(bits & ((1u << kBinShift) - 1u)) / kWidth;
  return from_[bin] - above * (from_[bin] - from_[bin + 1]);
}

double RelativeMagnitudes::bits(double octaves) const {
  if (sampled_ == 0) return 0.0;
  const auto all = static_cast<double>(sampled_);
  const float step = std::exp2(static_cast<float>(octaves));
  const auto entropy_of = [&](double count) {
    return count > 0.0 ? count / all * -std::log2(count / all) : 0.0;
  };
  double least = count_from(0.5f * step);              // values of this code or larger
  double sum = entropy_of(all - least) + least / all;  // a bit for each sign
  for (int code = 1; code <= kMostCode && least > 0.0; ++code) {
    const double next =
        code == kMostCode ? 0.0 : count_from((static_cast<float>(code) + 0.5f) * step);
    sum += entropy_of(least - next);
    least = next;
  }
  return sum;
}

float SegmentRates::step_for(std::size_t segment, std::span<const float> values,
                             const float* residual, const Plan& plan, const SegmentMemory& memory) {
  const RelativeMagnitudes magnitudes(values, residual, plan.step, memory);
  const double now = magnitudes.bits(0.0) / plan.planned_bits;
  float& share = shares_[segment];
  if (share == kUnknown) {
    share = static_cast<float>(now);
    return plan.step;
  }
  const double usual = std::max(share * plan.share_factor, kLeastShare);
  share = static_cast<float>(usual + kWeight * (now - usual));
  const double target = usual * plan.planned_bits;
  double fine = -kMostOctaves, coarse = kMostOctaves;
  while (coarse - fine > kPrecision) {
    const double middle = (fine + coarse) / 2;
    (magnitudes.bits(middle) > target ? fine : coarse) = middle;
  }
  return plan.step * std::exp2(static_cast<float>((fine + coarse) / 2));
}

}  // namespace dp
