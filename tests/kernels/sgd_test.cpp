// The optimiser's update and the norm on the CPU: against the reference, and the same bits for
// every number of threads.
#include "kernels/sgd.hpp"

#include "kernels/reference/sgd.hpp"
#include "tests/kernels/kernel_testing.hpp"

namespace dp::test {
namespace {

TEST(Sgd, EqualsReferenceOverSteps) {
  const std::vector<SgdStep> settings = {
      {.learning_rate = 0.1f, .momentum = 0.0f},
      {.learning_rate = 0.1f, .momentum = 0.9f, .weight_decay = 5e-4f},
      {.learning_rate = 0.1f, .momentum = 0.9f, .weight_decay = 5e-4f, .has_nesterov = true},
      {.learning_rate = 0.02f, .momentum = 0.5f, .weight_decay = 0.1f, .clip_norm = 2.0},
  };
  for (const SgdStep& step : settings) {
    for (const std::size_t count : {1u, 7u, 16384u, 40001u}) {
      Doubles w = random_values(count, 1), v(count, 0.0);
      std::vector<GuardedTensor> weights, velocities;
      for (int threads = 1; threads <= 3; ++threads) {
        weights.emplace_back(w);
        velocities.emplace_back(v);
      }
      for (std::uint64_t k = 0; k < 3; ++k) {
        const Doubles g = random_values(count, 10 + k);
        GuardedTensor gradient(g);
        // Four times the norm that is allowed.
        const double squares = 64.0;
        reference::sgd_update(count, w.data(), g.data(), v.data(), step, squares);
        for (int threads = 1; threads <= 3; ++threads) {
          const auto device = make_device({.threads = threads, .tune = false});
          const auto at = static_cast<std::size_t>(threads - 1);
          sgd_update(*device, weights[at].span(), gradient.span(), velocities[at].span(), &step,
                     &squares);
        }
        EXPECT_EQ(gradient.values(), g);
      }
      // Three steps of a few fp32 roundings.
      EXPECT_LE(normalised_error(weights[0].values(), w), 2e-6);
      EXPECT_LE(normalised_error(velocities[0].values(), v), 2e-6);
      for (const std::size_t other : {1u, 2u}) {
        EXPECT_EQ(weights[0].values(), weights[other].values());
        EXPECT_EQ(velocities[0].values(), velocities[other].values());
      }
    }
  }
}

TEST(SumOfSquares, EqualsDoubleSumForAnyThreads) {
  for (const std::size_t count : {0u, 1u, 7u, 255u, 257u, 100003u}) {
    const Doubles values = random_values(count, 1);
    double expected = 0;
    for (const double v : values) expected += v * v;
    std::vector<float> floats(values.begin(), values.end());
    std::vector<double> sums;
    for (const int threads : {1, 2, 3}) {
      const auto device = make_device({.threads = threads, .tune = false});
      sum_of_squares(*device, floats, &sums.emplace_back());
    }
    EXPECT_NEAR(sums[0], expected, 1e-12 * (1 + expected));
    EXPECT_EQ(sums[0], sums[1]);
    EXPECT_EQ(sums[0], sums[2]);
  }
}

}  // namespace
}  // namespace dp::test
