// Compares the optimiser with parameter groups with the plain reference in double, and checks the
// state that it lists.
#include "net/optimizer.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/base/error.hpp"
#include "kernels/reference/sgd.hpp"
#include "tests/support/state_list.hpp"
#include "tests/support/test_device.hpp"

namespace dp::test {
namespace {

using net::GroupFactors;
using net::Parameter;
using net::ParameterGroup;
using net::Parameters;
using net::Sgd;
using net::SgdOptions;

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
      const SgdOptions options = {.momentum = 0.9f,
                                  .weight_decay = 0.01f,
                                  .has_nesterov = has_nesterov,
                                  .clip_norm = clips ? 0.5 : 0.0};
      Sgd sgd(*device, parameters, options);
      const std::vector<GroupFactors> factors = {
          {}, {.learning_rate = 64.0}, {.weight_decay = 0.0, .momentum = 0.0}, {}};
      const std::vector<ParameterGroup> groups =
          net::make_groups(parameters.tensors(), [&](std::size_t t) { return factors[t]; });
      ASSERT_EQ(groups.size(), 4u);
      sgd.set_groups(groups);

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
        sgd.step(rate);
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
      sgd.list_state(list);
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

TEST(Sgd, GroupsCoverAllParameters) {
  const TestDevice device = make_test_device({.tune = false});
  Parameters parameters(*device, four_tensors());
  Sgd sgd(*device, parameters, {});
  EXPECT_THROW(sgd.set_groups({{.offset = 0, .elements = 64}}), Error);
  EXPECT_THROW(sgd.set_groups({{.offset = 1, .elements = 64}}), Error);
}

}  // namespace
}  // namespace dp::test
