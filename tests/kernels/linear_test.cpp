// Tests the network's head on a device against the reference: linear layer, softmax with
// cross-entropy.
#include "kernels/linear.hpp"

#include "kernels/softmax_cross_entropy.hpp"
#include "tests/kernels/kernel_testing.hpp"
#include "tests/kernels/reference/linear.hpp"
#include "tests/kernels/reference/softmax_cross_entropy.hpp"

namespace dp::test {
namespace {

TensorDesc matrix(std::size_t n, std::size_t c) { return TensorDesc::nhwc({n, 1, 1, c}); }

struct LinearResults {
  Doubles y, dx, dw, d_bias;
  bool operator==(const LinearResults&) const = default;
};

// Runs all directions twice, which must give the same bits.
LinearResults run_linear(Device& device, const reference::LinearShape& s, const Doubles& x,
                         const Doubles& w, const Doubles* bias, const Doubles& dy) {
  LinearResults results[2];
  for (LinearResults& r : results) {
    GuardedTensor t_x(matrix(s.n, s.c), x), t_y(matrix(s.n, s.k)), t_dy(matrix(s.n, s.k), dy),
        t_dx(matrix(s.n, s.c)), t_w(w), t_bias(bias != nullptr ? *bias : Doubles{}), t_dw(w.size()),
        t_d_bias(bias != nullptr ? s.k : 0);
    linear_forward(device, t_x.view(), t_w.floats(), bias != nullptr ? t_bias.floats() : nullptr,
                   t_y.view());
    linear_backward_data(device, t_dy.view(), t_w.floats(), t_dx.view());
    linear_backward_weights(device, t_x.view(), t_dy.view(), t_dw.floats(),
                            bias != nullptr ? t_d_bias.floats() : nullptr);
    r = {t_y.values(), t_dx.values(), t_dw.values(), t_d_bias.values()};
    EXPECT_EQ(t_x.values(), x);
    EXPECT_EQ(t_w.values(), w);
    EXPECT_EQ(t_dy.values(), dy);
  }
  EXPECT_TRUE(results[0] == results[1]);
  return results[0];
}

TEST(Linear, EqualsReference) {
  for (const bool allows_tf32 : {false, true}) {
    const auto device = make_test_device({.tune = false, .allow_tf32 = allows_tf32});
    // Sums of up to 600 products: 2e-7 sqrt(600), as derived for convolution, and TF32 likewise.
    const double allowed = allows_tf32 && on_gpu() ? 6e-3 : 5e-6;
    for (const reference::LinearShape s : {reference::LinearShape{1, 64, 10},
                                           {3, 5, 7},
                                           {8, 512, 100},
                                           {2, 1, 1},
                                           {33, 64, 10},
                                           {600, 3, 33},
                                           {0, 5, 7}}) {
      for (const bool has_bias : {true, false}) {
        const Doubles x = random_values(s.n * s.c, 1), w = random_values(s.k * s.c, 2);
        const Doubles bias = random_values(s.k, 3), dy = random_values(s.n * s.k, 4);
        Doubles y(s.n * s.k), dx(x.size()), dw(w.size()), d_bias(s.k);
        reference::linear_forward(s, x.data(), w.data(), has_bias ? bias.data() : nullptr,
                                  y.data());
        reference::linear_backward_data(s, dy.data(), w.data(), dx.data());
        reference::linear_backward_weights(s, x.data(), dy.data(), dw.data(), d_bias.data());
        const LinearResults r = run_linear(*device, s, x, w, has_bias ? &bias : nullptr, dy);
        EXPECT_LE(normalised_error(r.y, y), allowed);
        EXPECT_LE(normalised_error(r.dx, dx), allowed);
        EXPECT_LE(normalised_error(r.dw, dw), allowed);
        // Sums, not products: fp32 in any case.
        if (has_bias) {
          EXPECT_LE(normalised_error(r.d_bias, d_bias), 5e-6);
        }
      }
    }
  }
}

TEST(SoftmaxCrossEntropy, EqualsReference) {
  const auto device = make_test_device({.tune = false});
  for (const std::size_t classes : {2u, 10u, 100u}) {
    for (const float smoothing : {0.0f, 0.1f}) {
      for (const double scale : {1.0, 50.0, 1e4}) {
        constexpr std::size_t kSamples = 5;
        Doubles logits = random_values(kSamples * classes, 1);
        for (double& v : logits) v = static_cast<double>(static_cast<float>(v * scale));
        std::vector<std::int32_t> classes_of;
        for (std::size_t n = 0; n < kSamples; ++n) {
          classes_of.push_back(static_cast<std::int32_t>(3 * n % classes));
        }
        const Shared labels(classes_of);
        Doubles gradient(logits.size());
        const double loss =
            reference::softmax_cross_entropy(kSamples, classes, logits.data(), classes_of.data(),
                                             static_cast<double>(smoothing), 20.0, gradient.data());
        GuardedTensor t_logits(matrix(kSamples, classes), logits);
        GuardedTensor t_gradient(matrix(kSamples, classes));
        const Shared<LossSums> sums, alone, in_place;
        softmax_cross_entropy(*device, t_logits.view(), labels.data(), smoothing, 20.0,
                              t_gradient.view(), sums.data());
        EXPECT_NEAR(sums.value().loss, loss, 1e-9 * (1 + std::abs(loss)));
        EXPECT_EQ(sums.value().samples, 5);
        // Computed in double, rounded once.
        EXPECT_LE(normalised_error(t_gradient.values(), gradient), 1e-6);
        softmax_cross_entropy(*device, t_logits.view(), labels.data(), smoothing, 1.0, {},
                              alone.data());
        EXPECT_EQ(alone.value().loss, sums.value().loss) << "evaluation";
        EXPECT_EQ(alone.value().correct, sums.value().correct);
        softmax_cross_entropy(*device, t_logits.view(), labels.data(), smoothing, 20.0,
                              t_logits.view(), in_place.data());
        EXPECT_EQ(t_logits.values(), t_gradient.values()) << "in place";
      }
    }
  }
}

TEST(SoftmaxCrossEntropy, LowerClassWinsTies) {
  const auto device = make_test_device({.tune = false});
  GuardedTensor logits(matrix(3, 3), {1, 1, 0, 0, 2, 2, 5, 4, 3});
  const Shared labels(std::vector<std::int32_t>{1, 1, 0});
  const Shared<LossSums> sums;
  softmax_cross_entropy(*device, logits.view(), labels.data(), 0.0f, 1.0, {}, sums.data());
  EXPECT_EQ(sums.value().correct, 2);
}

TEST(SoftmaxCrossEntropy, NonFiniteLogitsGiveNonFiniteLoss) {
  const auto device = make_test_device({.tune = false});
  GuardedTensor logits(matrix(1, 3));  // NaN
  const Shared labels(std::vector<std::int32_t>{1});
  const Shared<LossSums> sums;
  softmax_cross_entropy(*device, logits.view(), labels.data(), 0.0f, 1.0, {}, sums.data());
  EXPECT_FALSE(std::isfinite(sums.value().loss));
}

}  // namespace
}  // namespace dp::test
