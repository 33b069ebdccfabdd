// Tests a whole training step: dptrain's code allocates nothing in it, the same input gives the
// same bits, and executors for different batch sizes use the same parameters.
#include <gtest/gtest.h>

#include <limits>

#include "net/layers/batch_norm.hpp"
#include "net/layers/concatenate.hpp"
#include "net/layers/conv2d.hpp"
#include "net/layers/elementwise.hpp"
#include "net/layers/linear.hpp"
#include "net/layers/pool.hpp"
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
    return {{.model = GetParam().model, .gain = 7.0, .batches = {8, 5}},
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
  GoldenBatch first(0, 8, golden.settings()), second(1, 5, golden.settings());
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
  GoldenBatch first(0, 8, golden.settings()), second(1, 5, golden.settings());
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

// Training with one executor changes the results of another: training on 8 images, evaluation on 5.
TEST(Network, ExecutorsShareParameters) {
  GoldenNetwork golden({.model = "resnet20", .gain = 7.0, .batches = {8, 5}}, DataType::f32,
                       {.tune = false});
  GoldenBatch eight(0, 8, golden.settings()), five(1, 5, golden.settings());
  const std::vector<float> before = golden.evaluate(five);
  golden.gradient(eight);
  golden.update();
  const std::vector<float> after = golden.evaluate(five);
  EXPECT_NE(before, after);
  // In evaluation, the first five of eight images give the same as the five alone, up to the order
  // of sums.
  GoldenBatch part(0, 5, golden.settings());
  std::copy(eight.pixels.begin(),
            eight.pixels.begin() + static_cast<std::ptrdiff_t>(part.pixels.size()),
            part.pixels.begin());
  const std::vector<float> of_eight = golden.evaluate(eight), of_five = golden.evaluate(part);
  for (std::size_t i = 0; i < of_five.size(); ++i) EXPECT_NEAR(of_five[i], of_eight[i], 1e-4);
}

// Evaluation between training steps does not change training: it uses a copy of the statistics, and
// a later training step gives the same bits as without it.
TEST(Network, EvaluationLeavesTrainingAlone) {
  GoldenNetwork plain({.model = "resnet20", .gain = 7.0, .batches = {8, 5}}, DataType::f32,
                      {.tune = false});
  GoldenNetwork disturbed({.model = "resnet20", .gain = 7.0, .batches = {8, 5}}, DataType::f32,
                          {.tune = false});
  GoldenBatch batch(2, 5, plain.settings());
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

// A value with six readers, two of which are one layer: its gradient is the sum of all of theirs.
// The loss changes along each parameter's gradient by as much as the gradient's norm says.
TEST(Network, ValuesWithSeveralReaders) {
  const auto device = make_test_device({.tune = false});
  net::Graph graph({.height = 6, .width = 5});
  const Pooling same = {.window = 3, .stride = 1, .padding = 1};
  net::Value x = graph.add<net::Conv2dLayer>("stem", {.channels = 16}, {graph.images()});
  x = graph.add<net::BatchNormLayer>("norm", {.has_relu = true}, {x});
  const net::Value largest = graph.add<net::MaxPoolLayer>("largest", same, {x});
  const net::Value mean = graph.add<net::AveragePoolLayer>("mean", same, {x});
  const net::Value conv = graph.add<net::Conv2dLayer>("conv", {.channels = 32}, {x});
  const net::Value sum = graph.add<net::AddLayer>("sum", {}, {x, mean});
  x = graph.add<net::ConcatenateLayer>("all", {}, {largest, x, sum, conv, x});
  x = graph.add<net::GlobalAveragePoolLayer>("pool", {}, {x});
  graph.add<net::LinearLayer>("linear", {.outputs = 3}, {x});
  net::Network network(*device, std::move(graph), DataType::f32, 1);
  constexpr std::size_t kBatch = 4;
  network.prepare(kBatch, net::Mode::training);

  std::vector<float> pixels(network.images_desc(kBatch).bytes() / sizeof(float));
  const Derived value("several readers");
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<float>(value(i));
  const std::vector<std::int32_t> label_values = {0, 1, 2, 1};
  const Shared images(pixels);
  const Shared labels(label_values);
  const Shared<LossSums> sums;
  const TensorView view{network.images_desc(kBatch), images.data()};
  const auto loss = [&] {
    const TensorView logits = network.forward(view, net::Mode::training);
    softmax_cross_entropy(*device, logits, labels.data(), 0.0f, kBatch, network.logit_gradient(),
                          sums.data());
    return sums.value().loss / kBatch;
  };
  loss();
  network.backward(view, nullptr);
  net::Parameters& p = network.parameters();
  const std::vector<float> gradients = to_host(*device, p.gradients());
  const std::vector<float> start = to_host(*device, p.values());
  for (const net::Parameter& t : p.tensors()) {
    double squares = 0;
    for (std::size_t i = t.offset; i < t.offset + t.elements; ++i) {
      squares += static_cast<double>(gradients[i]) * static_cast<double>(gradients[i]);
    }
    const double norm = std::sqrt(squares);
    ASSERT_GT(norm, 1e-3) << t.name;
    const auto loss_at = [&](double distance) {
      std::vector<float> values = start;
      for (std::size_t i = t.offset; i < t.offset + t.elements; ++i) {
        values[i] += static_cast<float>(distance * static_cast<double>(gradients[i]) / norm);
      }
      device->upload(p.values().data(), values.data(), p.values().size_bytes());
      return loss();
    };
    constexpr double kStep = 5e-3;
    const double numeric = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
    EXPECT_NEAR(numeric / norm, 1.0, 2e-2) << t.name;
  }
}

}  // namespace
}  // namespace dp::test
