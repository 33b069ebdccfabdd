// Tests a whole training step: our code allocates nothing in it, the same input gives the same
// bits, and executors for different batch sizes work on the same parameters.
#include <gtest/gtest.h>

#include <limits>

#include "tests/net/count_allocations.hpp"
#include "tests/net/golden_network.hpp"

namespace dp::test {
namespace {

struct StepCase {
  const char* model;
  DataType type;
  int threads;
};
std::string name_of_step(const testing::TestParamInfo<StepCase>& row) {
  return std::string(row.param.model) + "_" + name_of(row.param.type) + "_" +
         std::to_string(row.param.threads) + "threads";
}

class Step : public testing::TestWithParam<StepCase> {
 protected:
  [[nodiscard]] GoldenNetwork make() const {
    return {{.model = GetParam().model, .learning_rate = 0.02f, .batches = {8, 5}},
            GetParam().type,
            {.threads = GetParam().threads, .tune = false}};
  }
  [[nodiscard]] bool is_supported() const {
    return make_test_device({})->supports(GetParam().type) &&
           !(on_fake_gpu() && GetParam().model == std::string("resnet18"));
  }
};

// Two steps on 8 and 5 images; all values afterwards.
std::vector<float> train(GoldenNetwork& golden) {
  GoldenBatch first(0, 8, 10), second(1, 5, 10);
  for (GoldenBatch* batch : {&first, &second, &first}) {
    golden.gradient(*batch);
    golden.update();
  }
  net::Parameters& p = golden.parameters();
  std::vector<float> all = golden.on_host(p.values());
  for (const std::span<const float> buffer : {p.gradients(), p.training_statistics()}) {
    const std::vector<float> values = golden.on_host(buffer);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

TEST_P(Step, RepeatsBitForBit) {
  if (!is_supported()) GTEST_SKIP() << "no bf16 on this processor, or too slow on cuda_on_cpu";
  GoldenNetwork first = make(), second = make();
  const std::vector<float> values = train(first);
  EXPECT_EQ(values, train(second));
  for (const float v : values) ASSERT_TRUE(std::isfinite(v));
}

TEST_P(Step, AllocatesNothing) {
  if (!is_supported()) GTEST_SKIP() << "no bf16 on this processor, or too slow on cuda_on_cpu";
  if (on_gpu()) GTEST_SKIP() << "a GPU's step is a recording, which allocates nothing";
  if (!can_count_allocations()) GTEST_SKIP() << "another allocator is in place";
  GoldenNetwork golden = make();
  train(golden);  // makes the scratch memory and the libraries' own caches
  GoldenBatch first(0, 8, 10), second(1, 5, 10);
  for (GoldenBatch* batch : {&first, &second}) {
    golden.gradient(*batch);
    const AllocationCount count([&] {
      golden.gradient(*batch);
      golden.update();
    });
    EXPECT_EQ(count.ours, 0u) << count.first_callers;
  }
  // The counter works.
  const AllocationCount control([] {
    const std::vector<int> some(100);
    EXPECT_EQ(some.size(), 100u);
  });
  EXPECT_GT(control.ours, 0u);
}

INSTANTIATE_TEST_SUITE_P(Models, Step,
                         testing::Values(StepCase{"resnet20", DataType::f32, 1},
                                         StepCase{"resnet20", DataType::f32, 2},
                                         StepCase{"resnet20b", DataType::bf16, 2},
                                         StepCase{"resnet18", DataType::f32, 1}),
                         name_of_step);

// What one executor learns, the others use: training on 8 images, then evaluation on 5.
TEST(Network, ExecutorsShareParameters) {
  GoldenNetwork golden({.model = "resnet20", .batches = {8, 5}}, DataType::f32, {.tune = false});
  GoldenBatch eight(0, 8, 10), five(1, 5, 10);
  const std::vector<float> before = golden.evaluate(five);
  golden.gradient(eight);
  golden.update();
  const std::vector<float> after = golden.evaluate(five);
  EXPECT_NE(before, after);
  // In evaluation, the first five of eight images give the same as the five alone, up to the order
  // of sums.
  GoldenBatch part(0, 5, 10);
  std::copy(eight.pixels.begin(),
            eight.pixels.begin() + static_cast<std::ptrdiff_t>(part.pixels.size()),
            part.pixels.begin());
  const std::vector<float> of_eight = golden.evaluate(eight), of_five = golden.evaluate(part);
  for (std::size_t i = 0; i < of_five.size(); ++i) EXPECT_NEAR(of_five[i], of_eight[i], 1e-4);
}

// Evaluation between training steps does not change training: it uses a copy of the statistics, and
// a later training step gives the same bits as without it.
TEST(Network, EvaluationLeavesTrainingAlone) {
  GoldenNetwork plain({.model = "resnet20", .batches = {8, 5}}, DataType::f32, {.tune = false});
  GoldenNetwork disturbed({.model = "resnet20", .batches = {8, 5}}, DataType::f32, {.tune = false});
  GoldenBatch batch(2, 5, 10);
  const std::vector<float> values = train(plain);
  const std::vector<float> statistics =
      disturbed.on_host(disturbed.parameters().evaluation_statistics());
  static_cast<void>(disturbed.evaluate(batch));
  EXPECT_EQ(train(disturbed), values);
  EXPECT_EQ(disturbed.on_host(disturbed.parameters().evaluation_statistics()), statistics);

  // Evaluation reads only its own copy.
  const std::vector<float> logits = plain.evaluate(batch);
  const std::span<float> training = plain.parameters().training_statistics();
  plain.to_device(training,
                  std::vector<float>(training.size(), std::numeric_limits<float>::quiet_NaN()));
  EXPECT_EQ(plain.evaluate(batch), logits);
}

}  // namespace
}  // namespace dp::test
