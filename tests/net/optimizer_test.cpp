// Compares SGD with parameter groups with the plain reference in double, all optimisers with
// PyTorch's values over 20 updates (fixtures/optimizers.txt, written by make_optimizer_golden.py),
// and checks factors by name and the state that optimisers list.
#include "net/optimizer.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "kernels/base/error.hpp"
#include "kernels/base/setting_error.hpp"
#include "net/parameter_groups.hpp"
#include "net/weight_average.hpp"
#include "tests/kernels/reference/sgd.hpp"
#include "tests/net/derived_values.hpp"
#include "tests/support/state_list.hpp"
#include "tests/support/test_device.hpp"

namespace dp::test {
namespace {

using net::GroupFactors;
using net::OptimizerOptions;
using net::Parameter;
using net::ParameterGroup;
using net::Parameters;

// Three matrices and a vector, 10 + 20 + 30 + 5 values.
std::vector<Parameter> four_tensors() {
  std::vector<Parameter> tensors;
  for (const std::size_t rows : {1u, 2u, 3u}) {
    tensors.push_back({.name = "m" + std::to_string(rows),
                       .shape = {rows, 10},
                       .kind = net::ParameterKind::matrix,
                       .init = net::Init::uniform_fan_in,
                       .fan_in = 10});
  }
  tensors.push_back(
      {.name = "v", .shape = {5}, .kind = net::ParameterKind::vector, .init = net::Init::ones});
  return tensors;
}

TEST(MakeGroups, NeighboursWithEqualFactorsAreOne) {
  const TestDevice device = make_test_device({.tune = false});
  Parameters parameters(*device, four_tensors());
  const auto one =
      net::make_groups(parameters.tensors(), [](std::size_t) { return GroupFactors{}; });
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].elements, parameters.size());
  const auto groups = net::make_groups(parameters.tensors(), [](std::size_t t) {
    return t == 1 || t == 2 ? GroupFactors{.momentum = 0.0} : GroupFactors{};
  });
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_EQ(groups[1].offset, 10u);
  EXPECT_EQ(groups[1].elements, 50u);
  EXPECT_EQ(groups[1].factors.momentum, 0.0);
  EXPECT_EQ(groups[2].elements, 5u);
}

TEST(Sgd, GroupsHaveFactorsOfTheirOwn) {
  for (const bool clips : {false, true}) {
    for (const bool has_nesterov : {false, true}) {
      const TestDevice device = make_test_device({.tune = false});
      Parameters parameters(*device, four_tensors());
      parameters.initialise(1);
      const std::size_t n = parameters.size();
      ASSERT_EQ(n, 65u);
      const OptimizerOptions options = {.momentum = 0.9f,
                                        .weight_decay = 0.01f,
                                        .has_nesterov = has_nesterov,
                                        .clip_norm = clips ? 0.5 : 0.0};
      const auto sgd = net::make_optimizer(*device, parameters, options);
      const std::vector<GroupFactors> factors = {
          {}, {.learning_rate = 64.0}, {.weight_decay = 0.0, .momentum = 0.0}, {}};
      const std::vector<ParameterGroup> groups =
          net::make_groups(parameters.tensors(), [&](std::size_t t) { return factors[t]; });
      ASSERT_EQ(groups.size(), 4u);
      sgd->set_groups(groups);

      const std::vector<float> start = to_host(*device, parameters.values());
      std::vector<double> w(start.begin(), start.end()), v(n, 0.0);
      for (int k = 0; k < 3; ++k) {
        const double rate = 0.1 / (k + 1);
        std::vector<float> gradient(n);
        double squares = 0.0;
        for (std::size_t i = 0; i < n; ++i) {
          gradient[i] = std::sin(static_cast<float>(i) * 1.7f + static_cast<float>(k));
          squares += static_cast<double>(gradient[i]) * gradient[i];
        }
        device->upload(parameters.gradients().data(), gradient.data(), n * sizeof(float));
        sgd->step(rate);
        const std::vector<double> g(gradient.begin(), gradient.end());
        for (const auto& [offset, count, factor] : groups) {
          const SgdStep step = {
              .learning_rate = static_cast<float>(rate * factor.learning_rate),
              .momentum = static_cast<float>(options.momentum * factor.momentum),
              .weight_decay = static_cast<float>(options.weight_decay * factor.weight_decay),
              .has_nesterov = has_nesterov,
              .clip_norm = options.clip_norm};
          reference::sgd_update(count, w.data() + offset, g.data() + offset, v.data() + offset,
                                step, squares);
        }
      }
      const std::vector<float> values = to_host(*device, parameters.values());
      // The tolerance covers three steps, each with a few fp32 roundings of values up to 10.
      for (std::size_t i = 0; i < n; ++i) EXPECT_NEAR(values[i], w[i], 1e-5) << i;

      StateList list;
      sgd->list_state(list);
      ASSERT_EQ(list.blocks.size(), 1u);
      const StateBlock& velocity = list.blocks[0];
      EXPECT_EQ(velocity.name, "optimizer/velocity");
      EXPECT_EQ(velocity.place, StatePlace::device);
      EXPECT_EQ(velocity.share, StateShare::replicated);
      ASSERT_EQ(velocity.bytes.size(), n * sizeof(float));
      std::vector<float> kept(n);
      device->download(kept.data(), velocity.bytes.data(), velocity.bytes.size());
      for (std::size_t i = 0; i < n; ++i) EXPECT_NEAR(kept[i], v[i], 1e-5) << i;
    }
  }
}

// The tensors of make_optimizer_golden.py.
std::vector<Parameter> golden_tensors() {
  const auto tensor = [](const char* name, std::vector<std::size_t> shape) {
    const auto kind = shape.size() > 1 ? net::ParameterKind::matrix : net::ParameterKind::vector;
    return Parameter{
        .name = name, .shape = std::move(shape), .kind = kind, .init = net::Init::zeros};
  };
  return {tensor("wide.weight", {4, 3, 3, 3}),
          tensor("tall.weight", {12, 3, 1, 1}),
          tensor("linear.weight", {3, 8}),
          tensor("bn.weight", {7}),
          tensor("bn.bias", {7}),
          {.name = "bn.running_mean",
           .shape = {7},
           .kind = net::ParameterKind::statistic,
           .init = net::Init::zeros}};
}

// All tensors from a hash of their names, `suffix` behind them.
std::vector<float> derived_buffer(const Parameters& parameters, const std::string& suffix,
                                  double centre, double scale) {
  std::vector<float> buffer(parameters.size());
  for (const Parameter& tensor : parameters.tensors()) {
    const Derived derived(tensor.name + suffix);
    std::vector<float> values(tensor.elements);
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(centre + scale * derived(i));
    }
    Parameters::import_torch(tensor, values, buffer);
  }
  return buffer;
}

using Values = std::map<std::pair<std::string, std::size_t>, double>;  // by tensor and index

struct GoldenCase {
  OptimizerOptions options;
  net::GroupOptions groups = {};
  double tolerance = 2e-6;
};

// The cases of make_optimizer_golden.py. Weights are of order 1, and 20 updates have some roundings
// each. Muon's iterations multiply rounding errors in small singular values by up to 490. On a GPU
// their operands are in TF32, which changes X by up to 0.4 % of its norm (kernels/muon.hpp): with
// the rates of 20 updates and a norm of 2, by 7e-3 for all values of a tensor together. Seen for
// single values: 4e-4.
std::map<std::string, GoldenCase> golden_cases() {
  using enum net::OptimizerKind;
  const OptimizerOptions kernels = {.kind = muon,
                                    .momentum = 0.85f,
                                    .weight_decay = 0.01f,
                                    .has_nesterov = true,
                                    .muon_rate_factor = 2.4};
  OptimizerOptions matrices = kernels;
  matrices.muon_has_linear = true;
  const double products = on_gpu() ? 1e-3 : 1e-4;
  return {
      {"sgd", {.options = {.weight_decay = 0.01f}}},
      {"sgd-nesterov-clip",
       {.options = {.weight_decay = 0.01f, .has_nesterov = true, .clip_norm = 2.0}}},
      {"adam", {.options = {.kind = adam, .weight_decay = 0.01f}, .tolerance = 1e-5}},
      {"adam-clip",
       {.options = {.kind = adam, .clip_norm = 2.0, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-3},
        .tolerance = 1e-5}},
      {"adamw", {.options = {.kind = adamw, .weight_decay = 0.1f}, .tolerance = 1e-5}},
      {"adamw-groups",
       {.options = {.kind = adamw, .weight_decay = 0.1f},
        .groups = {.no_decay = {"bn"}, .lr_factors = {{"bn.*", 4.0}}},
        .tolerance = 1e-5}},
      {"lars", {.options = {.kind = lars, .weight_decay = 0.01f, .trust = 0.02}}},
      {"muon", {.options = kernels, .tolerance = products}},
      {"muon-linear", {.options = matrices, .tolerance = products}},
  };
}

TEST(Optimizers, EqualPyTorchOver20Updates) {
  std::map<std::string, std::map<std::size_t, Values>> expected;  // by case and number of updates
  std::ifstream file(std::string(DP_FIXTURES) + "/optimizers.txt");
  std::string name, tensor;
  std::size_t updates = 0, index = 0;
  double value = 0;
  while (file >> name >> updates >> tensor >> index >> value) {
    expected[name][updates][{tensor, index}] = value;
  }
  const std::map<std::string, GoldenCase> cases = golden_cases();
  ASSERT_EQ(expected.size(), cases.size());
  for (const auto& [case_name, golden] : cases) {
    SCOPED_TRACE(case_name);
    ASSERT_EQ(expected[case_name].size(), 4u);
    const TestDevice device = make_test_device({.tune = false});
    Parameters parameters(*device, golden_tensors());
    const std::size_t bytes = parameters.size() * sizeof(float);
    device->upload(parameters.values().data(), derived_buffer(parameters, "", 0.0, 0.5).data(),
                   bytes);
    const auto optimizer = net::make_optimizer(*device, parameters, golden.options);
    const auto factors = net::named_factors(parameters, golden.groups);
    optimizer->set_groups(
        net::make_groups(parameters.tensors(), [&](std::size_t t) { return factors[t]; }));
    for (std::size_t step = 0; step < 20; ++step) {
      const std::vector<float> gradients =
          derived_buffer(parameters, "/" + std::to_string(step), 0.1, 1.0);
      device->upload(parameters.gradients().data(), gradients.data(), bytes);
      optimizer->step(0.1 / static_cast<double>(1 + step));
      const std::vector<float> values = to_host(*device, parameters.values());
      for (const auto& [place, number] : expected[case_name][step + 1]) {
        const auto& [tensor_name, at] = place;
        const auto it = std::ranges::find(parameters.tensors(), tensor_name, &Parameter::name);
        std::vector<float> torch_order(it->elements);
        Parameters::export_torch(*it, values, torch_order);
        EXPECT_NEAR(torch_order[at], number, golden.tolerance)
            << "update " << step + 1 << ", " << tensor_name << " " << at;
      }
    }
  }
}

TEST(Optimizers, ListTheirState) {
  const std::map<net::OptimizerKind, std::vector<std::string>> names = {
      {net::OptimizerKind::sgd, {"optimizer/velocity"}},
      {net::OptimizerKind::adam, {"optimizer/mean", "optimizer/square", "optimizer/updates"}},
      {net::OptimizerKind::adamw, {"optimizer/mean", "optimizer/square", "optimizer/updates"}},
      {net::OptimizerKind::lars, {"optimizer/velocity"}},
      {net::OptimizerKind::muon, {"optimizer/velocity"}},
  };
  for (const auto& [kind, expected] : names) {
    const TestDevice device = make_test_device({.tune = false});
    Parameters parameters(*device, golden_tensors());
    const auto optimizer = net::make_optimizer(*device, parameters, {.kind = kind});
    StateList list;
    optimizer->list_state(list);
    std::vector<std::string> listed;
    for (const StateBlock& block : list.blocks) listed.push_back(block.name);
    EXPECT_EQ(listed, expected) << net::optimizer_name(kind);
  }
}

TEST(NamedFactors, PatternsAndKinds) {
  const TestDevice device = make_test_device({.tune = false});
  const Parameters parameters(*device, golden_tensors());
  const auto none = net::named_factors(parameters, {});
  EXPECT_EQ(none, std::vector<GroupFactors>(5));
  const auto factors = net::named_factors(
      parameters, {.no_decay = {"bn", "linear*"},
                   .lr_factors = {{"*.bias", 64.0}, {"bn.*", 2.0}, {"bias", 3.0}},
                   .decay_factors = {{"tall.weight", 0.5}, {"bn", 7.0}}});
  const std::vector<GroupFactors> expected = {
      {},
      {.weight_decay = 0.5},
      {.weight_decay = 0.0},
      {.learning_rate = 2.0, .weight_decay = 0.0},
      {.learning_rate = 64.0, .weight_decay = 0.0},  // the first pattern that matches
  };
  EXPECT_EQ(factors, expected);
  EXPECT_EQ(net::named_factors(parameters, {.no_decay = {"bias"}})[4].weight_decay, 0.0);
  EXPECT_EQ(net::named_factors(parameters, {.no_decay = {"bias"}})[3].weight_decay, 1.0);
  for (const net::GroupOptions& bad : {net::GroupOptions{.no_decay = {"conv9.*"}},
                                       net::GroupOptions{.lr_factors = {{"conv9.*", 2.0}}},
                                       net::GroupOptions{.decay_factors = {{"conv9.*", 2.0}}}}) {
    EXPECT_THROW(static_cast<void>(net::named_factors(parameters, bad)), SettingError);
  }
}

TEST(Sgd, GroupsCoverAllParameters) {
  const TestDevice device = make_test_device({.tune = false});
  Parameters parameters(*device, four_tensors());
  const auto sgd = net::make_optimizer(*device, parameters, {});
  EXPECT_THROW(sgd->set_groups({{.offset = 0, .elements = 64}}), Error);
  EXPECT_THROW(sgd->set_groups({{.offset = 1, .elements = 64}}), Error);
}

// One parameter and one statistic, set by hand.
struct Tiny {
  Tiny()
      : device(make_test_device({.tune = false})),
        parameters(*device, {{.name = "w",
                              .shape = {1, 1},
                              .kind = net::ParameterKind::matrix,
                              .init = net::Init::ones},
                             {.name = "running_mean",
                              .shape = {1},
                              .kind = net::ParameterKind::statistic,
                              .init = net::Init::zeros}}) {
    parameters.initialise(1);
  }
  void set(float value) {
    device->upload(parameters.values().data(), &value, sizeof value);
    const float statistic = 10 * value;
    device->upload(parameters.training_statistics().data(), &statistic, sizeof statistic);
  }
  [[nodiscard]] float value() { return to_host(*device, parameters.values())[0]; }
  [[nodiscard]] float statistic() { return to_host(*device, parameters.training_statistics())[0]; }

  TestDevice device;
  Parameters parameters;
};

// As torch.optim.swa_utils.AveragedModel with a decay: the first update copies.
TEST(WeightAverage, ExponentialAverageIsEvaluated) {
  Tiny tiny;
  const auto average = net::make_exponential_average(*tiny.device, tiny.parameters, 0.75);
  for (const float value : {8.0f, 4.0f, 2.0f}) {
    tiny.set(value);
    average->update(0.0);
    EXPECT_EQ(tiny.value(), value);
  }
  average->swap();
  EXPECT_EQ(tiny.value(), 5.75f);  // 8, then 7, then 5.75
  EXPECT_EQ(tiny.statistic(), 57.5f);
  average->swap();
  EXPECT_EQ(tiny.value(), 2.0f);
  EXPECT_EQ(tiny.statistic(), 20.0f);
}

TEST(WeightAverage, LookaheadGivesTheSlowWeightsBack) {
  Tiny tiny;  // the slow weight begins at 1, its statistic at 0
  const auto lookahead = net::make_lookahead(*tiny.device, tiny.parameters, 2, 0.5);
  tiny.set(4.0f);
  lookahead->update(0.0);
  EXPECT_EQ(tiny.value(), 4.0f);
  tiny.set(5.0f);
  lookahead->update(0.0);
  EXPECT_EQ(tiny.value(), 3.0f);  // 1 + (5 - 1) / 2
  EXPECT_EQ(tiny.statistic(), 25.0f);
  tiny.set(9.0f);
  lookahead->update(0.0);
  lookahead->swap();
  EXPECT_EQ(tiny.value(), 3.0f);
  lookahead->swap();
  EXPECT_EQ(tiny.value(), 9.0f);
}

// airbench94's: lerp by 1 - 0.95^5 * (step / steps)^3 after every fifth step.
TEST(WeightAverage, LookaheadsRampIsAirbenchs) {
  Tiny tiny;
  const auto lookahead = net::make_lookahead(*tiny.device, tiny.parameters, 5, 0.0);
  for (int step = 1; step <= 5; ++step) {
    tiny.set(3.0f);
    lookahead->update(step / 10.0);
  }
  EXPECT_NEAR(tiny.value(), 1 + 2 * (1 - std::pow(0.95, 5) / 8), 1e-6);
}

}  // namespace
}  // namespace dp::test
