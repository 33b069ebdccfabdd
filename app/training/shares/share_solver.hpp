// Divides the images of a step so that the slowest rank takes the least time.
//
// A rank's time for n images is modelled as fixed_s + image_s n. The best division minimises the
// largest time: without bounds all ranks then need the same time T, and
//     n_r = (T - fixed_s_r) / image_s_r,   sum of n_r = the images of the step.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace dp {

struct StepModel {
  double fixed_s = 0;  // the time of a step apart from its images
  double image_s = 0;  // the time of each image; above 0

  [[nodiscard]] double seconds(std::size_t images) const {
    return fixed_s + image_s * static_cast<double>(images);
  }
  // A guess for a rank that was measured with only one number of images: a twentieth of the time is
  // fixed.
  [[nodiscard]] static StepModel guess(double images, double seconds) {
    constexpr double kFixed = 0.05;  // of the time
    return {kFixed * seconds, (1.0 - kFixed) * seconds / images};
  }
};

struct ShareBounds {
  std::size_t least = 1, most = 1;  // images of a rank
};

// Whole numbers of images, one for each rank, whose sum is `images`. The bounds must allow a
// division. The result is deterministic. The numbers of ranks with equal models and bounds differ
// by at most one, and lower ranks get the larger numbers.
[[nodiscard]] std::vector<std::size_t> divide_images(std::size_t images,
                                                     std::span<const StepModel> models,
                                                     std::span<const ShareBounds> bounds);

// The time of the slowest rank.
[[nodiscard]] double slowest_s(std::span<const StepModel> models,
                               std::span<const std::size_t> images);

}  // namespace dp
