// Tests the optimiser's update and the norm on a device: against the reference, and the same bits
// for every number of threads.
#include "kernels/sgd.hpp"

#include "tests/kernels/kernel_testing.hpp"
#include "tests/kernels/reference/sgd.hpp"

namespace dp::test {
namespace {

TEST(Sgd, EqualsReferenceOverSteps) {
  const std::vector<SgdStep> settings = {
      {.learning_rate = 0.1f, .momentum = 0.0f},
      {.learning_rate = 0.1f, .momentum = 0.9f, .weight_decay = 5e-4f},
      {.learning_rate = 0.1f, .momentum = 0.9f, .weight_decay = 5e-4f, .has_nesterov = true},
      {.learning_rate = 0.02f, .momentum = 0.5f, .weight_decay = 0.1f, .clip_norm = 2.0},
      {.learning_rate = 0.1f, .momentum = 0.0f, .weight_decay = 5e-4f},
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
        const Shared<double> squares(64.0);
        const Shared<SgdStep> shared_step(step);
        reference::sgd_update(count, w.data(), g.data(), v.data(), step, squares.value());
        for (int threads = 1; threads <= 3; ++threads) {
          const auto device = make_test_device({.threads = threads, .tune = false});
          const auto at = static_cast<std::size_t>(threads - 1);
          sgd_update(*device, weights[at].span(), gradient.span(), velocities[at].span(),
                     shared_step.data(), squares.data());
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

// Ranks with different devices hold the same parameters.
TEST(Sgd, SameBitsAsOnCpu) {
  if (!on_gpu()) GTEST_SKIP() << "compares a GPU with the CPU";
  const auto gpu = make_test_device({.tune = false});
  const auto cpu = make_device({.tune = false});
  struct Kind {
    float momentum;
    bool has_nesterov;
  };
  for (const Kind& kind : {Kind{0.91f, false}, Kind{0.91f, true}, Kind{0.0f, false}}) {
    for (const std::size_t count : {5u, 30011u}) {
      for (const std::size_t skipped : {0u, 1u}) {  // of 16 bytes at once and of single floats
        const SgdStep step = {.learning_rate = 0.37f,
                              .momentum = kind.momentum,
                              .weight_decay = 3e-4f,
                              .has_nesterov = kind.has_nesterov,
                              .clip_norm = 1.7};
        const Shared<SgdStep> shared_step(step);
        const Shared<double> squares(123.4);
        GuardedTensor w(random_values(count, 1)), g(random_values(count, 2)),
            v(random_values(count, 3)), w2(w.values()), v2(v.values());
        for (int k = 0; k < 3; ++k) {
          sgd_update(*gpu, w.span().subspan(skipped), g.span().subspan(skipped),
                     v.span().subspan(skipped), shared_step.data(), squares.data());
          sgd_update(*cpu, w2.span().subspan(skipped), g.span().subspan(skipped),
                     v2.span().subspan(skipped), &step, squares.data());
        }
        EXPECT_EQ(w.raw(), w2.raw()) << count;
        EXPECT_EQ(v.raw(), v2.raw()) << count;
      }
    }
  }
}

// The values that a recording reads may differ in every replay; the norm comes from the queue.
TEST(Sgd, RecordingReadsStepAndNormAnew) {
  const auto device = make_test_device({.tune = false});
  constexpr std::size_t kCount = 4099;
  Doubles w = random_values(kCount, 1), v(kCount, 0.0);
  GuardedTensor t_w(w), t_v(v), t_g(kCount);
  const Shared<SgdStep> step;
  const Shared<double> squares;
  const auto update = device->record([&] {
    sum_of_squares(*device, t_g.span(), squares.data());
    sgd_update(*device, t_w.span(), t_g.span(), t_v.span(), step.data(), squares.data());
  });
  for (std::uint64_t k = 0; k < 5; ++k) {
    const Doubles g = random_values(kCount, 10 + k);
    double expected = 0;
    for (const double value : g) expected += value * value;
    const SgdStep now = {.learning_rate = 0.1f / static_cast<float>(k + 1),
                         .momentum = 0.9f,
                         .clip_norm = k % 2 == 0 ? 3.0 : 1e6};
    synchronize_devices();
    *step.data() = now;
    for (std::size_t i = 0; i < kCount; ++i) t_g.floats()[i] = static_cast<float>(g[i]);
    update->replay();
    reference::sgd_update(kCount, w.data(), g.data(), v.data(), now, expected);
    EXPECT_NEAR(squares.value(), expected, 1e-12 * expected);
    EXPECT_LE(normalised_error(t_w.values(), w), 2e-6) << "step " << k;
    EXPECT_LE(normalised_error(t_v.values(), v), 2e-6) << "step " << k;
  }
}

TEST(SumOfSquares, EqualsDoubleSumForAnyThreads) {
  for (const std::size_t count : {0u, 1u, 7u, 255u, 257u, 100003u}) {
    const Doubles values = random_values(count, 1);
    double expected = 0;
    for (const double v : values) expected += v * v;
    GuardedTensor floats(values);
    std::vector<double> sums;
    for (const int threads : {1, 2, 3}) {
      const auto device = make_test_device({.threads = threads, .tune = false});
      const Shared<double> sum;
      sum_of_squares(*device, floats.span(), sum.data());
      sums.push_back(sum.value());
    }
    EXPECT_NEAR(sums[0], expected, 1e-12 * (1 + expected));
    EXPECT_EQ(sums[0], sums[1]);
    EXPECT_EQ(sums[0], sums[2]);
  }
}

}  // namespace
}  // namespace dp::test
