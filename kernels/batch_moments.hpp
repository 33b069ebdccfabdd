// The message that ranks exchange for batch normalisation over the images of all ranks, and how the
// messages are merged. Inline for host and device. Messages are merged in double precision, in rank
// order, so all ranks get the same bits.
//
// A rank's message has 1 + 2C floats:
//     forward    the number of values per channel, C means, C sums of squared deviations from
//                the means
//     backward   that number again, C sums of g, C sums of g * (x - mean), where g is the gradient
//                after the ReLU's mask has been applied
#pragma once

#include <cstddef>

#include "kernels/base/hd.hpp"

namespace dp {

struct BatchMoments {
  double count = 0, mean = 0, squares = 0;  // squares: sum of squared deviations
};

struct GradientSums {
  double count = 0, sum = 0, product = 0;
};

[[nodiscard]] DP_HD constexpr std::size_t moments_floats(std::size_t channels) {
  return 1 + 2 * channels;
}

// Generalises eq. 2.1 of Chan, Golub, LeVeque 1983 from two parts to any number. Deviations are
// summed about the common mean, so no digits are lost by cancellation. A rank without images has
// count 0.
[[nodiscard]] DP_HD inline BatchMoments merge_moments(const float* all, std::size_t ranks,
                                                      std::size_t channels, std::size_t c) {
  const std::size_t stride = moments_floats(channels);
  BatchMoments merged;
  for (std::size_t r = 0; r < ranks; ++r) {
    const auto count = static_cast<double>(all[r * stride]);
    merged.count += count;
    merged.mean += count * static_cast<double>(all[r * stride + 1 + c]);
  }
  merged.mean /= merged.count;
  for (std::size_t r = 0; r < ranks; ++r) {
    const float* message = all + r * stride;
    const double distance = static_cast<double>(message[1 + c]) - merged.mean;
    merged.squares += static_cast<double>(message[1 + channels + c]) +
                      static_cast<double>(message[0]) * distance * distance;
  }
  return merged;
}

[[nodiscard]] DP_HD inline GradientSums merge_sums(const float* all, std::size_t ranks,
                                                   std::size_t channels, std::size_t c) {
  const std::size_t stride = moments_floats(channels);
  GradientSums merged;
  for (std::size_t r = 0; r < ranks; ++r) {
    merged.count += static_cast<double>(all[r * stride]);
    merged.sum += static_cast<double>(all[r * stride + 1 + c]);
    merged.product += static_cast<double>(all[r * stride + 1 + channels + c]);
  }
  return merged;
}

}  // namespace dp
