// Tests the readable twins in tests/kernels/reference, in double, against central differences:
// every gradient of every operation with respect to every input and parameter.
#include "kernels/base/error.hpp"
#include "kernels/conv2d.hpp"
#include "tests/kernels/kernel_testing.hpp"
#include "tests/kernels/reference/batch_norm.hpp"
#include "tests/kernels/reference/channel_bias.hpp"
#include "tests/kernels/reference/conv2d.hpp"
#include "tests/kernels/reference/elementwise.hpp"
#include "tests/kernels/reference/linear.hpp"
#include "tests/kernels/reference/pad_shortcut.hpp"
#include "tests/kernels/reference/pool.hpp"
#include "tests/kernels/reference/sgd.hpp"
#include "tests/kernels/reference/softmax_cross_entropy.hpp"

namespace dp::test {
namespace {

void expect_gradient(const char* what, const Doubles& gradient, Doubles& x,
                     const std::function<double()>& loss) {
  EXPECT_LE(normalised_error(gradient, central_differences(x, loss)), kGradientTolerance) << what;
}

TEST(Reference, Conv2dGradients) {
  struct Case {
    Extent kernel, padding;
  };
  const Case cases[] = {{1, 0},           {3, 1},           {{1, 3}, {0, 1}}, {{3, 1}, {1, 0}},
                        {{1, 7}, {0, 3}}, {{7, 1}, {3, 0}}, {{3, 2}, {0, 1}}};
  for (const auto& [kernel, padding] : cases) {
    for (const std::size_t stride : {1u, 2u}) {
      const Shape x_shape{2, 5, 4, 3};
      const Shape y_shape = conv2d_output(x_shape, 2, kernel, stride, padding);
      const reference::ConvShape shape{x_shape, y_shape, kernel, stride, padding};
      Doubles x = random_values(x_shape.elements(), 1);
      Doubles w = random_values(2 * kernel.area() * 3, 2);
      const Doubles dy = random_values(y_shape.elements(), 3);
      const auto loss = [&] {
        Doubles y(y_shape.elements());
        reference::conv2d_forward(shape, x.data(), w.data(), y.data());
        return dot(y, dy);
      };
      Doubles dx(x.size()), dw(w.size());
      reference::conv2d_backward_data(shape, dy.data(), w.data(), dx.data());
      reference::conv2d_backward_weights(shape, x.data(), dy.data(), dw.data());
      expect_gradient("dx", dx, x, loss);
      expect_gradient("dw", dw, w, loss);
    }
  }
}

// One value by hand: a 3x3 kernel of ones over a 3x3 image of ones counts the pixels it covers.
TEST(Reference, Conv2dCountsPixels) {
  const reference::ConvShape shape{{1, 3, 3, 1}, {1, 3, 3, 1}, 3, 1, 1};
  const Doubles ones(9, 1.0);
  Doubles y(9);
  reference::conv2d_forward(shape, ones.data(), ones.data(), y.data());
  EXPECT_EQ(y, (Doubles{4, 6, 4, 6, 9, 6, 4, 6, 4}));
}

// A 1x3 kernel (1, 2, 4) over a one-pixel-high row: the kernel's width runs along the image's
// width.
TEST(Reference, Conv2dKernelsLieAsTheyAreNamed) {
  const reference::ConvShape shape{{1, 2, 3, 1}, {1, 2, 3, 1}, {1, 3}, 1, {0, 1}};
  const Doubles x{0, 1, 0, 1, 0, 0}, w{1, 2, 4};
  Doubles y(6);
  reference::conv2d_forward(shape, x.data(), w.data(), y.data());
  EXPECT_EQ(y, (Doubles{4, 2, 1, 2, 1, 0}));
  EXPECT_EQ(conv2d_output({1, 9, 9, 1}, 5, {1, 7}, 2, {0, 3}), (Shape{1, 5, 5, 5}));
  EXPECT_EQ(conv2d_output({1, 9, 9, 1}, 5, {1, 7}, 1, 0), (Shape{1, 9, 3, 5}));
  EXPECT_THROW(static_cast<void>(conv2d_output({1, 9, 5, 1}, 5, {1, 7}, 1, 0)), Error);
}

TEST(Reference, BatchNormGradients) {
  for (const bool has_relu : {false, true}) {
    for (const bool has_addend : {false, true}) {
      constexpr std::size_t kRows = 12, kChannels = 3;
      constexpr std::size_t kCount = kRows * kChannels;
      reference::BatchNorm<double> norm{
          .rows = kRows, .channels = kChannels, .has_relu = has_relu, .has_addend = has_addend};
      Doubles x = random_values(kCount, 1), addend = random_values(kCount, 2);
      Doubles gamma = random_values(kChannels, 3), beta = random_values(kChannels, 4);
      const Doubles dy = random_values(kCount, 5);
      Doubles mean(kChannels), variance(kChannels), y(kCount);
      const auto loss = [&] {
        norm.forward_training(x.data(), addend.data(), gamma.data(), beta.data(), mean.data(),
                              variance.data(), y.data());
        return dot(y, dy);
      };
      loss();
      Doubles dx(kCount), d_addend(kCount), d_gamma(kChannels), d_beta(kChannels);
      norm.backward(x.data(), y.data(), dy.data(), gamma.data(), dx.data(), d_addend.data(),
                    d_gamma.data(), d_beta.data());
      expect_gradient("dx", dx, x, loss);
      expect_gradient("d_gamma", d_gamma, gamma, loss);
      expect_gradient("d_beta", d_beta, beta, loss);
      if (has_addend) expect_gradient("d_addend", d_addend, addend, loss);
    }
  }
}

// x = 1, 2, 3, 4: mean 2.5, biased variance 1.25, unbiased 5/3.
TEST(Reference, BatchNormStatistics) {
  reference::BatchNorm<double> norm{.rows = 4, .channels = 1, .momentum = 0.5};
  const Doubles x = {1, 2, 3, 4};
  const double gamma = 2, beta = 1;
  double mean = 0, variance = 1;
  Doubles y(4);
  norm.forward_training(x.data(), nullptr, &gamma, &beta, &mean, &variance, y.data());
  EXPECT_DOUBLE_EQ(mean, 1.25);
  EXPECT_DOUBLE_EQ(variance, 0.5 + 0.5 * 5.0 / 3.0);
  EXPECT_NEAR(y[3], 1 + 2 * 1.5 / std::sqrt(1.25 + 1e-5), 1e-9);
  mean = 1, variance = 4;
  norm.forward_inference(x.data(), nullptr, &gamma, &beta, &mean, &variance, y.data());
  EXPECT_NEAR(y[3], 1 + 2 * 3.0 / std::sqrt(4 + 1e-5), 1e-9);
}

TEST(Reference, ElementwiseGradients) {
  Doubles x = random_values(20, 1), b = random_values(20, 2);
  const Doubles dy = random_values(20, 3);
  Doubles y(20), dx(20);
  reference::relu_forward(20, x.data(), y.data());
  reference::relu_backward(20, y.data(), dy.data(), dx.data());
  expect_gradient("relu", dx, x, [&] {
    reference::relu_forward(20, x.data(), y.data());
    return dot(y, dy);
  });
  reference::gelu_backward(20, x.data(), dy.data(), dx.data());
  expect_gradient("gelu", dx, x, [&] {
    reference::gelu_forward(20, x.data(), y.data());
    return dot(y, dy);
  });
  const double one = 1;
  double gelu_of_one = 0;
  reference::gelu_forward(1, &one, &gelu_of_one);
  EXPECT_NEAR(gelu_of_one, 0.841344746068543, 1e-15) << "Phi(1)";
  reference::channel_bias_backward(5, 4, dy.data(), dx.data());
  Doubles bias = random_values(4, 4), d_bias(dx.begin(), dx.begin() + 4);
  expect_gradient("bias", d_bias, bias, [&] {
    y = x;
    reference::add_channel_bias(5, 4, bias.data(), y.data());
    return dot(y, dy);
  });
  expect_gradient("add", dy, b, [&] {
    reference::add(20, x.data(), b.data(), y.data());
    return dot(y, dy);
  });
}

TEST(Reference, PoolGradients) {
  const Shape x_shape{2, 5, 4, 3};
  Doubles x = random_values(x_shape.elements(), 1);
  const Pooling poolings[] = {{},
                              {.window = 3, .stride = 1},
                              {.window = {2, 3}, .stride = {1, 2}, .padding = {1, 0}},
                              {.window = 3, .stride = 2, .padding = 1, .counts_padding = false}};
  for (const Pooling& pooling : poolings) {
    const Shape y_shape = pooled_shape(x_shape, pooling);
    const Doubles dy = random_values(y_shape.elements(), 2);
    Doubles y(y_shape.elements()), divisors(y.size()), dx(x.size());
    reference::average_pool_divisors(x_shape, y_shape, pooling, divisors.data());
    reference::average_pool_backward(x_shape, y_shape, pooling, dy.data(), divisors.data(),
                                     dx.data());
    expect_gradient("average", dx, x, [&] {
      reference::average_pool_forward(x_shape, y_shape, pooling, x.data(), divisors.data(),
                                      y.data());
      return dot(y, dy);
    });
    std::vector<std::uint8_t> places(y.size());
    reference::max_pool_forward(x_shape, y_shape, pooling, x.data(), y.data(), places.data());
    reference::max_pool_backward(x_shape, y_shape, pooling, dy.data(), places.data(), dx.data());
    expect_gradient("max", dx, x, [&] {
      reference::max_pool_forward(x_shape, y_shape, pooling, x.data(), y.data(), places.data());
      return dot(y, dy);
    });
  }
  const Doubles dy = random_values(6, 2);
  Doubles y(6), dx(x.size());
  reference::global_average_pool_backward(x_shape, dy.data(), dx.data());
  expect_gradient("global", dx, x, [&] {
    reference::global_average_pool_forward(x_shape, x.data(), y.data());
    return dot(y, dy);
  });
}

// A 3x3 window with padding 1 in the corner of an image of ones has 4 pixels.
TEST(Reference, PoolCountsPadding) {
  const Shape shape{1, 3, 3, 1};
  Pooling pooling = {.window = 3, .stride = 1, .padding = 1};
  const Doubles ones(9, 1.0);
  for (const bool counts_padding : {true, false}) {
    pooling.counts_padding = counts_padding;
    Doubles y(9), divisors(9);
    reference::average_pool_divisors(shape, shape, pooling, divisors.data());
    reference::average_pool_forward(shape, shape, pooling, ones.data(), divisors.data(), y.data());
    EXPECT_NEAR(y[0], counts_padding ? 4.0 / 9.0 : 1.0, 1e-12);
    EXPECT_NEAR(y[4], 1.0, 1e-12);
  }
}

// The first of equal values counts, and a NaN is larger than any number.
TEST(Reference, MaxPoolTakesTheFirstOfEqualValues) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Shape x_shape{1, 2, 2, 4}, y_shape{1, 1, 1, 4};
  const Doubles x = {1, 2, 3, 3, 1, 2, nan, -1, 0, 2, 5, nan, 1, 1, 4, nan};
  Doubles y(4);
  std::vector<std::uint8_t> places(4);
  reference::max_pool_forward(x_shape, y_shape, {}, x.data(), y.data(), places.data());
  EXPECT_EQ(places, (std::vector<std::uint8_t>{0, 0, 1, 3}));
  EXPECT_EQ(y[0], 1.0);
  EXPECT_TRUE(std::isnan(y[2]) && std::isnan(y[3]));
}

TEST(Reference, PadShortcutGradients) {
  const Shape x_shape{2, 5, 4, 3}, y_shape{2, 3, 2, 8};
  Doubles x = random_values(x_shape.elements(), 1);
  const Doubles dy = random_values(y_shape.elements(), 2);
  Doubles y(y_shape.elements()), dx(x.size());
  const auto loss = [&] {
    reference::pad_shortcut_forward(x_shape, y_shape, 2, x.data(), y.data());
    return dot(y, dy);
  };
  reference::pad_shortcut_backward(x_shape, y_shape, 2, dy.data(), dx.data());
  expect_gradient("dx", dx, x, loss);
  // 8 - 3 new channels: two before, three after.
  EXPECT_EQ(y[1], 0.0);
  EXPECT_EQ(y[2], x[0]);
  EXPECT_EQ(y[5], 0.0);
}

TEST(Reference, LinearGradients) {
  const reference::LinearShape shape{3, 4, 5};
  Doubles x = random_values(12, 1), w = random_values(20, 2), bias = random_values(5, 3);
  const Doubles dy = random_values(15, 4);
  const auto loss = [&] {
    Doubles y(15);
    reference::linear_forward(shape, x.data(), w.data(), bias.data(), y.data());
    return dot(y, dy);
  };
  Doubles dx(12), dw(20), d_bias(5);
  reference::linear_backward_data(shape, dy.data(), w.data(), dx.data());
  reference::linear_backward_weights(shape, x.data(), dy.data(), dw.data(), d_bias.data());
  expect_gradient("dx", dx, x, loss);
  expect_gradient("dw", dw, w, loss);
  expect_gradient("d_bias", d_bias, bias, loss);
}

TEST(Reference, SoftmaxCrossEntropyGradients) {
  Doubles logits = random_values(15, 1);
  const std::vector<std::int32_t> labels = {0, 4, 2};
  for (const double smoothing : {0.0, 0.1}) {
    const auto loss = [&] {
      return reference::softmax_cross_entropy<double>(3, 5, logits.data(), labels.data(), smoothing,
                                                      7.0, nullptr) /
             7.0;
    };
    Doubles gradient(15);
    reference::softmax_cross_entropy(3, 5, logits.data(), labels.data(), smoothing, 7.0,
                                     gradient.data());
    expect_gradient("logits", gradient, logits, loss);
  }
  // Equal logits: log K whatever the smoothing.
  const Doubles flat(5, 3.0);
  EXPECT_NEAR(
      reference::softmax_cross_entropy<double>(1, 5, flat.data(), labels.data(), 0.3, 1.0, nullptr),
      std::log(5.0), 1e-12);
}

// Two steps by hand: w = 1, gradient 2, rate 0.5, momentum 0.5, decay 1.
TEST(Reference, SgdByHand) {
  const double gradient = 2;
  double w = 1, v = 0;
  SgdStep step{.learning_rate = 0.5f, .momentum = 0.5f, .weight_decay = 1.0f};
  reference::sgd_update(1, &w, &gradient, &v, step);  // g = 3, v = 3
  EXPECT_DOUBLE_EQ(w, -0.5);
  reference::sgd_update(1, &w, &gradient, &v, step);  // g = 1.5, v = 3
  EXPECT_DOUBLE_EQ(w, -2.0);
  w = 1, v = 0;
  step.has_nesterov = true;
  step.clip_norm = 1.0;
  reference::sgd_update(1, &w, &gradient, &v, step, 4.0);  // g = 2, v = 2, step 0.5 * 3
  EXPECT_DOUBLE_EQ(w, -0.5);
}

}  // namespace
}  // namespace dp::test
