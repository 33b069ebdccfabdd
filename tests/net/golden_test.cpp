// Compares whole networks with PyTorch in double (tests/net/fixtures, written by make_golden.py):
// logits in training and evaluation, the loss, every tensor's gradient, running statistics, and the
// losses of five training steps, one of them on a smaller batch. Runs with every convolution
// method, and with bf16.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>

#include "tests/net/golden_network.hpp"

namespace dp::test {
namespace {

// "kind name index value" per line.
class Fixture {
 public:
  struct Value {
    std::size_t index;
    double value;
  };

  explicit Fixture(const std::string& model) {
    // The bundle has its own copy of the fixtures.
    const char* folder = std::getenv("DP_FIXTURES");
    std::ifstream file(std::string(folder != nullptr ? folder : DP_FIXTURES) + "/" + model +
                       ".txt");
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::string kind, name;
      Value value{};
      words >> kind >> name >> value.index >> value.value;
      EXPECT_TRUE(words) << line;
      values_[kind + " " + name].push_back(value);
    }
    EXPECT_FALSE(values_.empty()) << "no fixture of " << model;
  }
  [[nodiscard]] const std::vector<Value>& of(const std::string& kind,
                                             const std::string& name = "-") const {
    return values_.at(kind + " " + name);
  }
  [[nodiscard]] std::size_t count(const std::string& kind) const {
    std::size_t tensors = 0;
    for (const auto& [key, list] : values_) tensors += key.starts_with(kind + " ") ? 1u : 0u;
    return tensors;
  }

 private:
  std::map<std::string, std::vector<Value>> values_;
};

double root_mean_square(const std::vector<Fixture::Value>& values) {
  double sum = 0;
  for (const auto& v : values) sum += v.value * v.value;
  return std::sqrt(sum / static_cast<double>(values.size()));
}

// The largest errors allowed, relative to the root mean square of the compared values.
struct Tolerance {
  double logits, loss, gradient_norm, gradient, statistics;
  double later_losses;  // relative, steps 1 to 4
};

// fp32. Forward: rounding by about 1e-6 per layer, over 20 to 150 layers. No value is near a point
// where ReLU or max pooling switches (make_golden.py's class Start), so processors differ by
// rounding alone. Single gradients scatter more than norms, since normalisation subtracts most of
// them.
constexpr Tolerance kFp32 = {.logits = 2e-5,
                             .loss = 1e-5,
                             .gradient_norm = 2e-3,
                             .gradient = 2e-2,
                             .statistics = 1e-5,
                             .later_losses = 5e-3};

// bf16, whose cases start with values around zero: the mean that keeps fp32 away from switching
// points would cost bf16 digits. It keeps 8 bits, so one rounding is 2^-9. About 3 roundings per
// layer add up as a random walk to about 3e-2 over 20 layers. About 0.3 % of the values of each
// ReLU are nearer to zero than that. Their flips change a gradient by sqrt(0.003) = 5 % per layer,
// about 25 % after 20 layers.
constexpr Tolerance kBf16 = {.logits = 0.1,
                             .loss = 0.02,
                             .gradient_norm = 0.3,
                             .gradient = 2.0,
                             .statistics = 0.02,
                             .later_losses = 0.05};

struct Case {
  GoldenSettings settings;
  std::string method;  // "fixed", "measured" or the method forced on all convolutions
  DataType type = DataType::f32;
  int threads = 1;
};

std::string name_of_case(const testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  std::string model = c.settings.model;
  std::replace(model.begin(), model.end(), '-', '_');
  return model + "_" + c.method + "_" + (c.type == DataType::f32 ? "fp32" : "bf16") + "_" +
         std::to_string(c.threads) + "threads";
}

// A tuning table that names one method for all convolutions of a network. The fixed rule decides
// where the method is not available.
std::string forced_table(const Case& c) {
  if (c.method == "fixed" || c.method == "measured") return "";
  GoldenNetwork any(c.settings, c.type, {.threads = 1, .tune = false});
  return with_method(any.device().tuning().export_text(), c.method);
}

class Golden : public testing::TestWithParam<Case> {};

TEST_P(Golden, EqualsPyTorch) {
  const Case& c = GetParam();
  if (on_gpu() && (c.method == "direct" || c.method == "winograd" || c.threads > 1)) {
    GTEST_SKIP() << "the CPU's own methods and threads";
  }
  // The fake GPU computes convolutions one by one in double. That takes a few seconds for ResNet-20
  // and minutes for wide networks.
  if (on_fake_gpu() && c.settings.is_large) {
    GTEST_SKIP() << c.settings.model << " takes minutes on cuda_on_cpu";
  }
  const bool is_resnet20 = c.settings.model.starts_with("resnet20");
  if (on_fake_gpu() && c.type == DataType::bf16 && !is_resnet20) {
    GTEST_SKIP() << "bf16 on cuda_on_cpu is tested with ResNet-20";
  }
  const DeviceOptions options{.threads = c.threads, .tune = c.method == "measured"};
  if (!make_test_device(options)->supports(c.type)) GTEST_SKIP() << "no bf16 on this processor";
  const Fixture fixture(c.settings.model + (c.settings.is_centred ? "-bf16" : ""));
  const Tolerance& tolerance = c.type == DataType::f32 ? kFp32 : kBf16;
  GoldenNetwork golden(c.settings, c.type, options, forced_table(c));
  net::Parameters& p = golden.parameters();

  const auto expect_near = [](const std::vector<Fixture::Value>& expected,
                              std::span<const float> values, double scale, double allowed,
                              const std::string& what) {
    double worst = 0;
    for (const auto& [index, value] : expected) {
      const double error = std::abs(static_cast<double>(values[index]) - value) / scale;
      worst = error <= worst ? worst : error;  // keeps a NaN
    }
    EXPECT_LE(worst, allowed) << what;
  };

  GoldenBatch first(0, c.settings.batches[0], c.settings);
  const std::vector<float> evaluated = golden.evaluate(first);
  const auto& eval_logits = fixture.of("eval_logit");
  ASSERT_EQ(eval_logits.size(), evaluated.size());
  expect_near(eval_logits, evaluated, root_mean_square(eval_logits), tolerance.logits,
              "evaluation logits");

  // A value that backward does not write stays NaN and fails below.
  golden.to_device(p.gradients(),
                   std::vector<float>(p.size(), std::numeric_limits<float>::quiet_NaN()));
  const auto& losses = fixture.of("loss");
  for (std::size_t step = 0; step < c.settings.batches.size(); ++step) {
    GoldenBatch batch(step, c.settings.batches[step], c.settings);
    const double loss = golden.gradient(batch);
    const double expected = losses.at(step).value;
    EXPECT_LE(std::abs(loss - expected) / expected,
              step == 0 ? tolerance.loss : tolerance.later_losses)
        << "loss of step " << step << ": " << loss << " instead of " << expected;
    if (step == 0) {
      const auto& logits = fixture.of("logit");
      expect_near(logits, golden.logits(), root_mean_square(logits), tolerance.logits, "logits");
      const std::vector<float> gradients = golden.on_host(p.gradients());
      EXPECT_EQ(p.tensors().size(), fixture.count("gradient"));
      for (const net::Parameter& t : p.tensors()) {
        std::vector<float> values(t.elements);
        net::Parameters::export_torch(t, gradients, values);
        const double norm = fixture.of("gradient_norm", t.name)[0].value;
        double squares = 0;
        for (const float v : values) squares += static_cast<double>(v) * static_cast<double>(v);
        // A bias in front of batch normalisation has no gradient but rounding.
        if (norm < 1e-10) {
          const std::string weight = t.name.substr(0, t.name.rfind('.')) + ".weight";
          const double layer = fixture.of("gradient_norm", weight)[0].value;
          EXPECT_LE(std::sqrt(squares) / layer, tolerance.gradient_norm) << t.name;
          continue;
        }
        EXPECT_NEAR(std::sqrt(squares) / norm, 1.0, tolerance.gradient_norm) << t.name;
        expect_near(fixture.of("gradient", t.name), values,
                    norm / std::sqrt(static_cast<double>(t.elements)), tolerance.gradient,
                    "gradient of " + t.name);
      }
      const std::vector<float> statistics = golden.on_host(p.training_statistics());
      EXPECT_EQ(p.statistics().size(), fixture.count("statistic"));
      for (const net::Parameter& t : p.statistics()) {
        const auto& expected_statistics = fixture.of("statistic", t.name);
        double scale = root_mean_square(expected_statistics);
        // Values are rounded relative to their own size. A mean may be much smaller, and the batch
        // is at least a tenth of the running one.
        const std::size_t dot = t.name.rfind(".running_mean");
        if (dot != std::string::npos) {
          const auto& variances = fixture.of("statistic", t.name.substr(0, dot) + ".running_var");
          scale += 0.1 * std::sqrt(root_mean_square(variances));
        }
        expect_near(expected_statistics, std::span(statistics).subspan(t.offset, t.elements), scale,
                    tolerance.statistics, t.name);
      }
    }
    golden.update();
  }
}

// The settings of make_golden.py.
const GoldenSettings kResNet20 = {.model = "resnet20", .gain = 7.0, .has_nesterov = true};
const GoldenSettings kResNet20b = {
    .model = "resnet20b", .classes = 100, .gain = 7.0, .smoothing = 0.1f};
const GoldenSettings kResNet18 = {.model = "resnet18", .gain = 7.0, .is_large = true};
const GoldenSettings kResNet50 = {
    .model = "resnet50", .gain = 7.0, .draw = 1, .batches = {8}, .is_large = true};
const GoldenSettings kImagenet18 = {
    .model = "resnet18-imagenet", .gain = 7.0, .draw = 8, .batches = {8, 8}, .size = 48};
const GoldenSettings kImagenet50 = {.model = "resnet50-imagenet",
                                    .gain = 7.0,
                                    .draw = 8,
                                    .batches = {8},
                                    .size = 48,
                                    .is_large = true};
const GoldenSettings kPreAct18 = {
    .model = "preact-resnet18", .gain = 7.0, .batches = {8, 8}, .size = 16};
const GoldenSettings kPreAct50 = {
    .model = "preact-resnet50", .gain = 7.0, .batches = {8}, .size = 16, .is_large = true};
const GoldenSettings kInception = {.model = "inception-v4", .draw = 3, .batches = {8}, .size = 12};
const GoldenSettings kInceptionImagenet = {
    .model = "inception-v4-imagenet", .draw = 11, .batches = {8}, .size = 80, .is_large = true};
const GoldenSettings kResNet9 = {.model = "resnet9", .draw = 7, .batches = {4}, .is_large = true};
const GoldenSettings kAirbench = {.model = "airbench94", .gain = 1.0, .draw = 2, .batches = {8, 5}};
const GoldenSettings kVggNorm = {.model = "vgg16-bn", .draw = 10, .batches = {6}, .is_large = true};
// With dropout, whose mask the fixture's network draws in the same way.
const GoldenSettings kVggImagenet = {
    .model = "vgg16-imagenet", .beta = 8.0, .gain = 1.0, .batches = {4}, .is_large = true};

// For bf16: the same networks from other initial values.
GoldenSettings centred(GoldenSettings settings, double beta, float learning_rate = 0.02f) {
  settings.is_centred = true;
  settings.beta = beta;
  settings.learning_rate = learning_rate;
  return settings;
}

INSTANTIATE_TEST_SUITE_P(
    Networks, Golden,
    testing::Values(
        Case{kResNet20, "fixed"}, Case{kResNet20, "measured"}, Case{kResNet20, "direct"},
        Case{kResNet20, "winograd"}, Case{kResNet20, "fixed", DataType::f32, 2},
        Case{kResNet20b, "fixed"}, Case{kResNet18, "fixed"}, Case{kResNet18, "measured"},
        Case{kResNet18, "direct"}, Case{kResNet50, "fixed"},
        Case{centred(kResNet20, 0.0, 0.05f), "fixed", DataType::bf16},
        Case{centred(kResNet20b, 0.0, 0.05f), "winograd", DataType::bf16},
        Case{centred(kResNet18, 2.0), "fixed", DataType::bf16},
        Case{centred(kResNet18, 2.0), "winograd", DataType::bf16}, Case{kImagenet18, "fixed"},
        Case{kImagenet18, "fixed", DataType::f32, 2},
        Case{centred(kImagenet18, 0.5), "fixed", DataType::bf16}, Case{kImagenet50, "fixed"},
        Case{kPreAct18, "fixed"}, Case{kPreAct50, "fixed"},
        Case{kPreAct18, "fixed", DataType::f32, 2},
        Case{centred(kPreAct18, 2.0), "fixed", DataType::bf16}, Case{kInception, "fixed"},
        Case{kInceptionImagenet, "fixed"}, Case{centred(kInception, 2.0), "fixed", DataType::bf16},
        Case{kResNet9, "fixed"}, Case{kAirbench, "fixed"},
        Case{kAirbench, "direct", DataType::f32, 2}, Case{kVggNorm, "fixed"},
        Case{kVggImagenet, "fixed"}, Case{centred(kResNet9, 2.0), "fixed", DataType::bf16},
        Case{centred(kAirbench, 0.0), "fixed", DataType::bf16},
        Case{centred(kVggNorm, 2.0), "fixed", DataType::bf16}),
    name_of_case);

}  // namespace
}  // namespace dp::test
