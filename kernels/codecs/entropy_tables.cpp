#include "kernels/codecs/entropy_tables.hpp"

#include <algorithm>
#include <bit>

namespace dp::entropy {
namespace {

// Sets each symbol's share in proportion to its weight, but to at least 1. The largest share
// absorbs the rounding error.
template <std::size_t kCount>
void fill(Table& table, const std::array<double, kCount>& weights) {
  static_assert(kCount <= kGapSymbols);
  double all = 0;
  for (const double weight : weights) all += weight;
  std::int64_t left = kTableSize;
  std::array<std::int64_t, kCount> shares{};
  for (std::size_t s = 0; s < kCount; ++s) {
    const double exact = weights[s] / all * static_cast<double>(kTableSize);
    shares[s] = std::max<std::int64_t>(1, static_cast<std::int64_t>(exact + 0.5));
    left -= shares[s];
  }
  *std::max_element(shares.begin(), shares.end()) += left;
  std::uint32_t start = 0;
  for (std::size_t s = 0; s < kCount; ++s) {
    const auto share = static_cast<std::uint32_t>(shares[s]);
    table.symbols[s] = Symbol(start, share);
    table.parts[s] = start | share << 16;
    const LaneSymbol in_lane(start, share);
    table.lane_reciprocals[s] = in_lane.reciprocal;
    table.lane_rests[s] = in_lane.rest;
    constexpr std::uint32_t kGroup = 1u << Table::kGroupBits;
    for (std::uint32_t group = (start + kGroup - 1) / kGroup; group * kGroup < start + share;
         ++group) {
      table.first_of_group[group] = static_cast<std::uint8_t>(s);
    }
    for (std::uint32_t q = 0; q < share; ++q)
      table.symbol_of[start + q] = static_cast<std::uint8_t>(s);
    start += share;
  }
}

// The weights of 0, 1, ..., each q times the one before. The last weight instead stands for all
// further values: it is the sum of their weights.
template <std::size_t kCount>
std::array<double, kCount> geometric(double q) {
  std::array<double, kCount> weights{};
  double power = 1;
  for (std::size_t s = 0; s + 1 < kCount; ++s, power *= q) weights[s] = power * (1 - q);
  weights[kCount - 1] = power;
  return weights;
}

// Weights that fall by `ratio` with the distance from `middle`, plus `least`.
template <std::size_t kCount>
std::array<double, kCount> near(std::size_t middle, double ratio, double least) {
  std::array<double, kCount> weights{};
  for (std::size_t s = 0; s < kCount; ++s) {
    double weight = 1;
    for (std::size_t d = std::min(s, middle); d < std::max(s, middle); ++d) weight *= ratio;
    weights[s] = weight + least;
  }
  return weights;
}

}  // namespace

Symbol::Symbol(std::uint32_t start, std::uint32_t share)
    : reciprocal(share == 1 ? ~std::uint64_t{0} : ~std::uint64_t{0} / share + 1),
      limit(share << (32 - kTableBits)),
      bias(share == 1 ? start + kTableSize - 1 : start),
      complement(kTableSize - share) {}

LaneSymbol::LaneSymbol(std::uint32_t start, std::uint32_t share) {
  const auto shift = static_cast<std::uint32_t>(share == 1 ? 0 : std::bit_width(share - 1) - 1);
  reciprocal =
      share == 1
          ? ~std::uint32_t{0}
          : static_cast<std::uint32_t>(((std::uint64_t{1} << (32 + shift)) + share - 1) / share);
  const std::uint32_t bias = share == 1 ? start + kTableSize - 1 : start;
  rest = bias | (kTableSize - share) << kComplementFrom | shift << kShiftFrom;
}

Tables::Tables() {
  for (std::size_t b = 0; b < kCountBuckets.size(); ++b) {
    const auto [first, bits] = kCountBuckets[b];
    const std::size_t counts = std::size_t{1} << bits;
    std::fill_n(bucket_of_count.begin() + first, counts, static_cast<std::uint8_t>(b));
    const double mean = std::max(0.5, first + (static_cast<double>(counts) - 1) / 2);
    const double full = std::min(0.98, mean / static_cast<double>(kBlock));
    // Shift until the shifted gap is 0 with a probability of 0.117 (about 1/8) or more.
    double empty = 1 - full;
    while (1 - empty < 0.117) {
      empty *= empty;
      ++shift[b];
    }
    fill(gap[b], geometric<kGapSymbols>(empty));
    // A block is often as full as the previous one, so weights are largest near the bucket of that
    // block. Empty blocks are frequent, too, so bucket 0 gets additional weight.
    auto of_next = near<kCountBuckets.size()>(b, b == 0 ? 0.06 : b <= 8 ? 0.72 : 0.56, 0.005);
    if (b > 0) of_next[0] += 2.0 / static_cast<double>(b);
    fill(count[b], of_next);
  }
  double mean = 1.0 / 16 / 1.2247;  // mean level of the first bucket that has levels
  for (std::size_t b = 0; b < kSizeBuckets; ++b) {
    fill(size[b], near<kSizeBuckets>(b, 0.6, 0.01));
    if (b == 0) continue;
    fill(level[b], geometric<kLevelSymbols>(mean / (1 + mean)));
    mean *= 1.5;
  }
}

const Tables& tables() {
  static const Tables made;
  return made;
}

std::size_t size_bucket(std::uint32_t count, std::uint32_t sum) {
  if (sum == 0) return 0;
  std::size_t bucket = 1;
  std::uint64_t mean = std::uint64_t{sum} << 20, step = std::uint64_t{count} << 16;
  for (; bucket + 1 < kSizeBuckets && mean >= step; ++bucket) step += step / 2;
  return bucket;
}

}  // namespace dp::entropy
