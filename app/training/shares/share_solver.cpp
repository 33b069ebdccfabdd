#include "app/training/shares/share_solver.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/base/error.hpp"

namespace dp {
namespace {

// The number of whole images that a rank computes in `time_s`, within the rank's bounds.
std::size_t images_in(double time_s, const StepModel& model, const ShareBounds& bounds) {
  const double images = std::floor((time_s - model.fixed_s) / model.image_s);
  if (!(images > static_cast<double>(bounds.least))) return bounds.least;
  if (images >= static_cast<double>(bounds.most)) return bounds.most;
  return static_cast<std::size_t>(images);
}

}  // namespace

double slowest_s(std::span<const StepModel> models, std::span<const std::size_t> images) {
  double slowest = 0;
  for (std::size_t r = 0; r < models.size(); ++r) {
    slowest = std::max(slowest, models[r].seconds(images[r]));
  }
  return slowest;
}

std::vector<std::size_t> divide_images(std::size_t images, std::span<const StepModel> models,
                                       std::span<const ShareBounds> bounds) {
  const std::size_t ranks = models.size();
  std::vector<std::size_t> counts(ranks);
  const auto fill = [&](double time_s) {
    for (std::size_t r = 0; r < ranks; ++r) counts[r] = images_in(time_s, models[r], bounds[r]);
    return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  };
  // Finds, by bisection, the largest time in which no more than `images` images are computed.
  double low = 0, high = 0;
  for (std::size_t r = 0; r < ranks; ++r) {
    high = std::max(high, models[r].seconds(bounds[r].most) + models[r].image_s);
  }
  constexpr int kHalvings = 100;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = 0.5 * (low + high);
    (fill(middle) <= images ? low : high) = middle;
  }
  std::size_t sum = fill(low);
  DP_ASSERT(sum <= images, "the smallest allowed shares of {} ranks add up to more than {} images",
            ranks, images);
  // Each of the few remaining images goes to the rank that would then finish first.
  for (; sum < images; ++sum) {
    std::size_t next = ranks;
    for (std::size_t r = 0; r < ranks; ++r) {
      if (counts[r] == bounds[r].most) continue;
      if (next == ranks ||
          models[r].seconds(counts[r] + 1) < models[next].seconds(counts[next] + 1)) {
        next = r;
      }
    }
    DP_ASSERT(next < ranks, "{} ranks have no room for {} images", ranks, images);
    ++counts[next];
  }
  return counts;
}

}  // namespace dp
