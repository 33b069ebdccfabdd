#include "comm/topologies/owner_weights.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "kernels/base/error.hpp"

namespace dp {

namespace {

// Measured rates that differ by less than this factor are taken to be equal (LinkProbe::kClearly).
constexpr double kClearlyFaster = 1.25;

}  // namespace

std::vector<std::uint32_t> owner_weights(std::span<const double> bytes_per_s) {
  const std::size_t ranks = bytes_per_s.size();
  if (ranks < 3) return {};
  const auto [slowest, fastest] = std::ranges::minmax(bytes_per_s);
  if (!(slowest > 0.0) || fastest <= kClearlyFaster * slowest) return {};
  std::vector<double> shares(ranks);
  const auto sum_at = [&](double time) {
    for (std::size_t r = 0; r < ranks; ++r) {
      const double rate = bytes_per_s[r] / fastest;
      shares[r] = std::max(0.0, (time * rate - 1.0) / static_cast<double>(ranks - 2));
    }
    return std::accumulate(shares.begin(), shares.end(), 0.0);
  };
  // Rates are multiples of the fastest link's rate. At T = P - 1 the fastest rank alone would own
  // everything, so T is not larger.
  double low = 1.0, high = static_cast<double>(ranks - 1);
  constexpr int kHalvings = 60;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = 0.5 * (low + high);
    (sum_at(middle) < 1.0 ? low : high) = middle;
  }
  static_cast<void>(sum_at(high));
  std::vector<std::uint32_t> weights;
  for (const double share : shares) {
    weights.push_back(static_cast<std::uint32_t>(std::lround(1000.0 * share)));
  }
  return weights;
}

double owner_wire_factor(std::span<const std::uint32_t> weights, std::size_t ranks,
                         std::size_t rank) {
  if (ranks < 2) return 0.0;
  const auto p = static_cast<double>(ranks);
  if (weights.empty()) return 2.0 * (p - 1.0) / p;
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  return 1.0 + (p - 2.0) * weights[rank] / all;
}

std::string owner_percentages(std::span<const std::uint32_t> weights) {
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<std::string> shares;
  for (const std::uint32_t weight : weights)
    shares.push_back(fmt::format("{:.0f} %", 100 * weight / all));
  return fmt::format("{}", fmt::join(shares, " "));
}

std::string owner_weights_text(std::span<const std::uint32_t> weights) {
  return fmt::format("{}", fmt::join(weights, ":"));
}

std::vector<std::uint32_t> parse_owner_weights(std::string_view text) {
  std::vector<std::uint32_t> weights;
  std::uint64_t sum = 0;
  for (bool is_over = text.empty(); !is_over;) {
    const std::size_t colon = std::min(text.find(':'), text.size());
    std::uint32_t weight = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + colon, weight);
    if (error != std::errc() || end != text.data() + colon || weight > 1000) {
      throw_error(ErrorKind::data, "'{}' is not an owner's weight", text.substr(0, colon));
    }
    weights.push_back(weight);
    sum += weight;
    is_over = colon == text.size();
    text.remove_prefix(std::min(colon + 1, text.size()));
  }
  if (!weights.empty() && sum == 0) throw_error(ErrorKind::data, "no rank owns anything");
  return weights;
}

}  // namespace dp
