// Tests the updates of Adam, LARS and Muon, and the loops of mix.hpp, on a device: against the
// reference in double, the same bits for every number of threads, and, except for matrix products,
// the same bits on a GPU as on a CPU.
#include <cmath>
#include <utility>

#include "kernels/adam.hpp"
#include "kernels/lars.hpp"
#include "kernels/linear.hpp"
#include "kernels/mix.hpp"
#include "kernels/muon.hpp"
#include "tests/kernels/kernel_testing.hpp"
#include "tests/kernels/reference/adam.hpp"
#include "tests/kernels/reference/lars.hpp"
#include "tests/kernels/reference/muon.hpp"

namespace dp::test {
namespace {

constexpr std::size_t kCounts[] = {1, 7, 16384, 20001};

double sum_of(const Doubles& values) {
  double squares = 0;
  for (const double v : values) squares += v * v;
  return squares;
}

TEST(Adam, EqualsReferenceOverSteps) {
  const std::vector<AdamSettings> settings = {
      {},
      {.learning_rate = 0.01, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.1},
      {.learning_rate = 0.01, .weight_decay = 0.1, .is_decoupled = true, .clip_norm = 2.0},
  };
  for (const AdamSettings& setting : settings) {
    for (const std::size_t count : kCounts) {
      Doubles w = random_values(count, 1), m(count, 0.0), v(count, 0.0);
      std::vector<GuardedTensor> weights, means, variances;
      for (int threads = 1; threads <= 3; ++threads) {
        weights.emplace_back(w);
        means.emplace_back(m);
        variances.emplace_back(v);
      }
      for (std::uint64_t k = 0; k < 4; ++k) {
        const Doubles g = random_values(count, 10 + k);
        GuardedTensor gradient(g);
        const Shared<double> squares(64.0);  // four times the norm that is allowed
        const Shared<AdamStep> step(adam_step(setting, k + 1));
        reference::adam_update(count, w.data(), g.data(), m.data(), v.data(), setting, k + 1,
                               squares.value());
        for (std::size_t at = 0; at < 3; ++at) {
          const auto device =
              make_test_device({.threads = static_cast<int>(at) + 1, .tune = false});
          adam_update(*device, weights[at].span(), gradient.span(), means[at].span(),
                      variances[at].span(), step.data(), squares.data());
          synchronize_devices();
        }
        EXPECT_EQ(gradient.values(), g);
      }
      // Four steps of a few fp32 roundings. The quotient of a mean by the root of a small mean
      // square has their relative errors, and a step's size is its limit.
      EXPECT_LE(normalised_error(weights[0].values(), w), 5e-6);
      EXPECT_LE(normalised_error(means[0].values(), m), 2e-6);
      EXPECT_LE(normalised_error(variances[0].values(), v), 2e-6);
      for (const std::size_t other : {1u, 2u}) {
        EXPECT_EQ(weights[0].values(), weights[other].values());
        EXPECT_EQ(means[0].values(), means[other].values());
        EXPECT_EQ(variances[0].values(), variances[other].values());
      }
    }
  }
}

TEST(Lars, EqualsReferenceOverSteps) {
  const std::vector<LarsStep> settings = {
      {.learning_rate = 2.0f, .momentum = 0.9f, .weight_decay = 5e-4f, .trust = 0.01},
      {.learning_rate = 0.5f, .weight_decay = 0.1f, .trust = 0.05, .clip_norm = 2.0},
      {.learning_rate = 0.1f, .weight_decay = 5e-4f, .trust = 0.0},  // SGD
  };
  for (const LarsStep& setting : settings) {
    for (const std::size_t count : kCounts) {
      Doubles w = random_values(count, 1), v(count, 0.0);
      std::vector<GuardedTensor> weights, velocities;
      for (int threads = 1; threads <= 3; ++threads) {
        weights.emplace_back(w);
        velocities.emplace_back(v);
      }
      for (std::uint64_t k = 0; k < 4; ++k) {
        const Doubles g = random_values(count, 10 + k);
        GuardedTensor gradient(g);
        const Shared<double> squares(64.0);
        const Shared<LarsStep> step(setting);
        const Shared<LarsNorms> norms({.parameters = sum_of(w), .gradients = sum_of(g)});
        reference::lars_update(count, w.data(), g.data(), v.data(), setting, squares.value());
        for (std::size_t at = 0; at < 3; ++at) {
          const auto device =
              make_test_device({.threads = static_cast<int>(at) + 1, .tune = false});
          lars_update(*device, weights[at].span(), gradient.span(), velocities[at].span(),
                      step.data(), norms.data(), squares.data());
          synchronize_devices();
        }
      }
      EXPECT_LE(normalised_error(weights[0].values(), w), 5e-6);
      EXPECT_LE(normalised_error(velocities[0].values(), v), 5e-6);
      for (const std::size_t other : {1u, 2u}) {
        EXPECT_EQ(weights[0].values(), weights[other].values());
        EXPECT_EQ(velocities[0].values(), velocities[other].values());
      }
    }
  }
}

// A zero gradient, as in a layer after a dead ReLU, must not cause a division by zero.
TEST(Lars, ZeroNormsAreNotAdaptedTo) {
  const LarsStep step;
  EXPECT_EQ(lars_ratio(step, {.parameters = 0.0, .gradients = 1.0}, 1.0f), 1.0f);
  EXPECT_EQ(lars_ratio(step, {.parameters = 1.0, .gradients = 0.0}, 1.0f), 1.0f);
  EXPECT_EQ(lars_ratio(step, {.parameters = 4.0, .gradients = 16.0}, 0.5f), 0.001f);
}

// Wide, tall, square, a single row; and larger than a panel of the CPU's products.
TEST(Muon, EqualsReferenceOverSteps) {
  const std::vector<std::pair<std::size_t, std::size_t>> shapes = {
      {1, 9}, {9, 1}, {5, 5}, {6, 40}, {40, 6}, {130, 140}, {140, 130}};
  for (const auto& [rows, columns] : shapes) {
    for (const bool normalises : {true, false}) {
      const MuonStep setting = {.learning_rate = 0.05f,
                                .weight_decay = 0.1f,
                                .has_nesterov = normalises,
                                .clip_norm = 2.0};
      const std::size_t count = rows * columns;
      Doubles w = random_values(count, 1), v(count, 0.0);
      std::vector<GuardedTensor> weights, velocities;
      for (int threads = 1; threads <= 3; ++threads) {
        weights.emplace_back(w);
        velocities.emplace_back(v);
      }
      for (std::uint64_t k = 0; k < 2; ++k) {
        const Doubles g = random_values(count, 10 + k);
        GuardedTensor gradient(g);
        const Shared<double> squares(64.0);
        const Shared<MuonStep> step(setting);
        reference::muon_update(rows, columns, w.data(), g.data(), v.data(), setting, normalises,
                               squares.value());
        for (std::size_t at = 0; at < 3; ++at) {
          const auto device =
              make_test_device({.threads = static_cast<int>(at) + 1, .tune = false});
          GuardedTensor x(count), workspace(muon_workspace(rows, columns));
          const Shared<double> norm, weight_norm;
          muon_direction(*device, gradient.span(), velocities[at].span(), x.span(), step.data(),
                         squares.data());
          sum_of_squares(*device, x.span(), norm.data());
          muon_normalise(*device, x.span(), norm.data());
          muon_orthogonalise(*device, x.span(), rows, columns, workspace.span());
          sum_of_squares(*device, weights[at].span(), weight_norm.data());
          muon_apply(*device, weights[at].span(), x.span(), rows, step.data(),
                     normalises ? weight_norm.data() : nullptr);
          synchronize_devices();
        }
      }
      // An iteration multiplies what is small in x, rounding errors among it, by up to 3.4445, so
      // five by up to 490, and 1e-7 by as much; a step is 0.05 of that.
      // On a GPU operands are rounded to 2^-11.
      EXPECT_LE(normalised_error(weights[0].values(), w), on_gpu() ? 2e-3 : 2e-5)
          << rows << " x " << columns;
      EXPECT_LE(normalised_error(velocities[0].values(), v), 2e-6);
      for (const std::size_t other : {1u, 2u}) {
        EXPECT_EQ(weights[0].values(), weights[other].values()) << rows << " x " << columns;
        EXPECT_EQ(velocities[0].values(), velocities[other].values()) << rows << " x " << columns;
      }
    }
  }
}

// The five iterations bring all singular values near 1, whatever they were before.
TEST(Muon, IterationsMakeRowsNearlyOrthonormal) {
  const auto device = make_test_device({.tune = false});
  constexpr std::size_t kRows = 8, kColumns = 50;
  GuardedTensor x(random_values(kRows * kColumns, 1)), workspace(muon_workspace(kRows, kColumns));
  const Shared<double> norm;
  sum_of_squares(*device, x.span(), norm.data());
  muon_normalise(*device, x.span(), norm.data());
  muon_orthogonalise(*device, x.span(), kRows, kColumns, workspace.span());
  const Doubles values = x.values();
  for (std::size_t i = 0; i < kRows; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      double product = 0;
      for (std::size_t k = 0; k < kColumns; ++k) {
        product += values[i * kColumns + k] * values[j * kColumns + k];
      }
      // Singular values are between 0.68 and 1.2 (Jordan et al. 2024).
      EXPECT_NEAR(product, i == j ? 1.0 : 0.0, 0.55) << i << " " << j;
    }
  }
}

// On a GPU Muon's products use TF32; the layers' products do so only if the run asks for it.
TEST(Muon, LeavesTheLayersPrecisionAsItIs) {
  constexpr std::size_t kSize = 40;
  for (const bool allows_tf32 : {false, true}) {
    const auto device = make_test_device({.tune = false, .allow_tf32 = allows_tf32});
    const TensorDesc desc = TensorDesc::nhwc({kSize, 1, 1, kSize});
    GuardedTensor weights(random_values(kSize * kSize, 2));
    GuardedTensor x(desc, random_values(kSize * kSize, 1)), before(desc), after(desc),
        matrix(random_values(kSize * kSize, 3)), workspace(muon_workspace(kSize, kSize));
    linear_forward(*device, x.view(), weights.floats(), nullptr, before.view());
    muon_orthogonalise(*device, matrix.span(), kSize, kSize, workspace.span());
    linear_forward(*device, x.view(), weights.floats(), nullptr, after.view());
    synchronize_devices();
    EXPECT_EQ(before.values(), after.values()) << allows_tf32;
  }
}

TEST(Mix, EqualsItsFormula) {
  const auto device = make_test_device({.threads = 2, .tune = false});
  for (const std::size_t count : {0u, 1u, 7u, 40001u}) {
    for (const std::size_t skipped : {0u, 1u}) {  // of 16 bytes at once and of single floats
      if (skipped > count) continue;
      const Doubles a = random_values(count, 1), b = random_values(count, 2);
      GuardedTensor x(a), sum(b), blend(b), copied(b), less(b), swapped(b), x2(a);
      add_values(*device, x.span().subspan(skipped), sum.span().subspan(skipped));
      blend_values(*device, x.span().subspan(skipped), blend.span().subspan(skipped), 0.25f);
      blend_values(*device, x.span().subspan(skipped), copied.span().subspan(skipped), 1.0f);
      subtract_from_values(*device, x.span().subspan(skipped), less.span().subspan(skipped), 0.25f);
      swap_values(*device, x2.span().subspan(skipped), swapped.span().subspan(skipped));
      const Doubles s = sum.values(), m = blend.values(), c = copied.values(), d = less.values(),
                    w = swapped.values(), w2 = x2.values();
      EXPECT_EQ(x.values(), a);
      for (std::size_t i = 0; i < count; ++i) {
        const auto p = static_cast<float>(a[i]), q = static_cast<float>(b[i]);
        const bool is_in = i >= skipped;
        EXPECT_EQ(s[i], static_cast<double>(is_in ? q + p : q)) << i;
        EXPECT_EQ(m[i], static_cast<double>(is_in ? q + 0.25f * (p - q) : q)) << i;
        EXPECT_EQ(c[i], is_in ? a[i] : b[i]) << i;
        EXPECT_EQ(d[i], static_cast<double>(is_in ? 0.25f * (p - q) : q)) << i;
        EXPECT_EQ(w[i], is_in ? a[i] : b[i]) << i;
        EXPECT_EQ(w2[i], is_in ? b[i] : a[i]) << i;
      }
    }
  }
}

// The loops over values give the same bits on a GPU and on a CPU. Muon's matrix products are left
// out: cuBLAS and Eigen add in different orders.
TEST(Updates, SameBitsAsOnCpu) {
  if (!on_gpu()) GTEST_SKIP() << "compares a GPU with the CPU";
  const auto gpu = make_test_device({.tune = false});
  const auto cpu = make_device({.tune = false});
  const AdamSettings settings = {.weight_decay = 0.01, .is_decoupled = true, .clip_norm = 1.7};
  const LarsStep lars = {.weight_decay = 3e-4f, .trust = 0.03, .clip_norm = 1.7};
  const MuonStep muon = {.clip_norm = 1.7};
  const Shared<LarsStep> lars_step(lars);
  const Shared<MuonStep> muon_step(muon);
  const Shared<LarsNorms> norms({.parameters = 5.0, .gradients = 7.0});
  const Shared<double> squares(123.4);
  for (const std::size_t count : {5u, 30011u}) {
    for (const std::size_t skipped : {0u, 1u}) {  // of 16 bytes at once and of single floats
      GuardedTensor w(random_values(count, 1)), g(random_values(count, 2)), m(Doubles(count, 0.0)),
          v(Doubles(count, 0.0)), x(Doubles(count, 0.0));
      GuardedTensor w2(w.values()), m2(m.values()), v2(v.values()), x2(x.values());
      const auto rest = [&](GuardedTensor& tensor) { return tensor.span().subspan(skipped); };
      for (std::uint64_t k = 1; k <= 3; ++k) {
        const Shared<AdamStep> adam(adam_step(settings, k));
        const auto update = [&](Device& device, GuardedTensor& weights, GuardedTensor& mean,
                                GuardedTensor& square, GuardedTensor& direction) {
          adam_update(device, rest(weights), rest(g), rest(mean), rest(square), adam.data(),
                      squares.data());
          lars_update(device, rest(weights), rest(g), rest(mean), lars_step.data(), norms.data(),
                      squares.data());
          muon_direction(device, rest(g), rest(mean), rest(direction), muon_step.data(),
                         squares.data());
          muon_normalise(device, rest(direction), squares.data());
          muon_apply(device, rest(weights), rest(direction), 1, muon_step.data(), squares.data());
          synchronize_devices();
        };
        update(*gpu, w, m, v, x);
        update(*cpu, w2, m2, v2, x2);
      }
      EXPECT_EQ(w.raw(), w2.raw()) << count;
      EXPECT_EQ(m.raw(), m2.raw()) << count;
      EXPECT_EQ(v.raw(), v2.raw()) << count;
      EXPECT_EQ(x.raw(), x2.raw()) << count;
    }
  }
}

}  // namespace
}  // namespace dp::test
