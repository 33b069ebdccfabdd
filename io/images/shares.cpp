#include "io/images/shares.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "kernels/base/error.hpp"

namespace dp {

Shares::Shares(std::vector<std::uint64_t> weights) {
  DP_ASSERT(!weights.empty(), "shares of no ranks");
  const auto [least, most] = std::ranges::minmax(weights);
  DP_ASSERT(most > 0 && most <= kMostWeight, "a weight of {}", most);
  if (least == most) return;
  weights_ = std::move(weights);
  before_.push_back(0);
  for (const std::uint64_t weight : weights_) before_.push_back(before_.back() + weight);
}

StepImages Shares::of(std::size_t images, std::size_t rank, std::size_t ranks, std::size_t part,
                      std::size_t parts) const {
  DP_ASSERT(rank < ranks && part < parts,
            "there is no rank {} among {} ranks, or no part {} among {} parts", rank, ranks, part,
            parts);
  if (is_even()) {
    const std::size_t first = part * ranks + rank, stride = ranks * parts;
    return {first, stride, images > first ? (images - first - 1) / stride + 1 : 0};
  }
  DP_ASSERT(weights_.size() == ranks, "{} shares for {} ranks", weights_.size(), ranks);
  const std::size_t begin = begin_of(images, rank), count = begin_of(images, rank + 1) - begin;
  const std::size_t first = count * part / parts, end = count * (part + 1) / parts;
  return {begin + first, 1, end - first};
}

std::size_t Shares::count(std::size_t images, std::size_t rank, std::size_t ranks) const {
  return of(images, rank, ranks).count;
}

std::vector<std::size_t> Shares::counts(std::size_t images, std::size_t ranks) const {
  std::vector<std::size_t> counts;
  for (std::size_t rank = 0; rank < ranks; ++rank) counts.push_back(count(images, rank, ranks));
  return counts;
}

std::size_t Shares::most(std::size_t images, std::size_t ranks) const {
  std::size_t most = 0;
  for (std::size_t rank = 0; rank < ranks; ++rank)
    most = std::max(most, count(images, rank, ranks));
  return most;
}

std::size_t Shares::least(std::size_t images, std::size_t ranks) const {
  std::size_t least = images;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    least = std::min(least, count(images, rank, ranks));
  }
  return least;
}

std::string Shares::text() const {
  return is_even() ? "even" : fmt::format("{}", fmt::join(weights_, ":"));
}

}  // namespace dp
