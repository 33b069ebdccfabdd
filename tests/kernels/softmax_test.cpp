// Tests softmax and cross-entropy in cases that a GPU divides among warps and blocks: many samples,
// many classes and one class, ties between lanes, invalid labels. (linear_test.cpp tests a few
// samples on every device.)
#include "kernels/softmax_cross_entropy.hpp"

#include "tests/kernels/kernel_testing.hpp"
#include "tests/kernels/reference/softmax_cross_entropy.hpp"

namespace dp::test {
namespace {

TensorDesc matrix(std::size_t rows, std::size_t columns) {
  return TensorDesc::nhwc({rows, 1, 1, columns});
}

struct Size {
  std::size_t samples, classes;
};

TEST(SoftmaxCrossEntropy, AnySize) {
  const auto device = make_test_device({.tune = false});
  for (const auto& [samples, classes] :
       {Size{0, 10}, Size{1, 1}, Size{7, 33}, Size{3, 1025}, Size{20011, 3}}) {
    const Doubles logits = random_values(samples * classes, 1);
    std::vector<std::int32_t> labels;
    std::int64_t correct = 0;
    for (std::size_t n = 0; n < samples; ++n) {
      labels.push_back(static_cast<std::int32_t>(5 * n % classes));
      const auto row = logits.begin() + static_cast<std::ptrdiff_t>(n * classes);
      const auto largest = std::max_element(row, row + static_cast<std::ptrdiff_t>(classes)) - row;
      correct += largest == labels[n] ? 1 : 0;
    }
    const Shared t_labels(labels);
    Doubles gradient(logits.size());
    const double loss = reference::softmax_cross_entropy(
        samples, classes, logits.data(), labels.data(), static_cast<double>(0.1f),
        static_cast<double>(samples), gradient.data());
    GuardedTensor t_logits(matrix(samples, classes), logits), t_gradient(matrix(samples, classes));
    const Shared<LossSums> sums, again;
    for (const auto* result : {&sums, &again}) {
      softmax_cross_entropy(*device, t_logits.view(), t_labels.data(), 0.1f,
                            static_cast<double>(samples), t_gradient.view(), result->data());
    }
    EXPECT_NEAR(sums.value().loss, loss, 1e-9 * (1 + loss)) << samples << " x " << classes;
    EXPECT_EQ(sums.value().loss, again.value().loss) << "the same bits every time";
    EXPECT_EQ(sums.value().correct, correct) << samples << " x " << classes;
    EXPECT_EQ(sums.value().samples, static_cast<std::int64_t>(samples));
    if (samples > 0) {
      EXPECT_LE(normalised_error(t_gradient.values(), gradient), classes > 1 ? 1e-6 : 0.0);
    }
  }
}

// Classes 5, 37 and 69 of one lane and class 6 of its neighbour hold the largest value.
TEST(SoftmaxCrossEntropy, LowestOfManyTiesWins) {
  const auto device = make_test_device({.tune = false});
  const std::vector<std::int32_t> labels = {0, 1, 5, 6, 37, 69, 99};
  Doubles logits(labels.size() * 100, -1.0);
  for (std::size_t n = 2; n < labels.size(); ++n) {
    for (const std::size_t k : {5u, 37u, 69u, 6u}) logits[n * 100 + k] = 2.0;
  }
  GuardedTensor t_logits(matrix(labels.size(), 100), logits);
  const Shared t_labels(labels);
  const Shared<LossSums> sums;
  softmax_cross_entropy(*device, t_logits.view(), t_labels.data(), 0.0f, 1.0, {}, sums.data());
  EXPECT_EQ(sums.value().correct, 2) << "class 0 of the first row, 5 of the third";
}

// On a CPU an invalid label is reported as a bug of ours. A GPU cannot report it, but must not read
// outside of the row.
TEST(SoftmaxCrossEntropy, LabelOutsideOfClassesGivesNan) {
  if (!on_gpu()) GTEST_SKIP() << "a CPU throws";
  const auto device = make_test_device({.tune = false});
  for (const std::int32_t wrong : {3, -1, 1 << 30}) {
    GuardedTensor logits(matrix(3, 3), random_values(9, 1)), gradient(matrix(3, 3));
    const Shared labels(std::vector<std::int32_t>{0, wrong, 2});
    const Shared<LossSums> sums;
    softmax_cross_entropy(*device, logits.view(), labels.data(), 0.1f, 1.0, gradient.view(),
                          sums.data());
    EXPECT_TRUE(std::isnan(sums.value().loss)) << wrong;
    EXPECT_LE(sums.value().correct, 2);
    const Doubles values = gradient.values();
    for (std::size_t i = 0; i < 9; ++i) EXPECT_EQ(std::isnan(values[i]), i / 3 == 1) << i;
  }
}

}  // namespace
}  // namespace dp::test
