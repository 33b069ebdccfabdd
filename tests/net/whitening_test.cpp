// Tests the whitening convolution: the weights computed from images, and that a network with frozen
// weights trains everything else.
#include "net/whitening.hpp"

#include <gtest/gtest.h>

#include "net/layers/conv2d.hpp"
#include "net/layers/elementwise.hpp"
#include "net/layers/linear.hpp"
#include "net/layers/pool.hpp"
#include "net/network.hpp"
#include "tests/kernels/kernel_testing.hpp"

namespace dp::test {
namespace {

constexpr ImageShape kImage{.channels = 3, .height = 9, .width = 7};
constexpr std::size_t kImages = 40, kPatch = 12, kPatches = 8 * 6;

// Neighbouring pixels and colours are alike, as in photographs.
void draw(std::size_t image, std::span<float> nhwc) {
  const CounterRng rng(1, RandomStream::test, image);
  for (std::size_t p = 0; p < kImage.pixels(); ++p) {
    const double common = normal(rng, p / 3);
    for (std::size_t c = 0; c < 3; ++c) {
      nhwc[p * 3 + c] = static_cast<float>(common + 0.3 * normal(rng, 1000 + p * 3 + c));
    }
  }
}

net::WhiteningImages drawn_images(double epsilon) {
  return {.shape = kImage, .count = kImages, .read = draw, .epsilon = epsilon};
}

const net::Parameter kWeights{.name = "whiten.weight",
                              .shape = {2 * kPatch, 3, 2, 2},
                              .kind = net::ParameterKind::frozen,
                              .init = net::Init::whitening,
                              .elements = 2 * kPatch * kPatch};

TEST(Whitening, OutputsAreUncorrelated) {
  const std::vector<float> weights = net::whitening_weights(kWeights, drawn_images(0.0));
  std::vector<Doubles> outputs(kPatch);  // of the first half of the channels
  std::vector<float> image(kImage.values());
  for (std::size_t i = 0; i < kImages; ++i) {
    draw(i, image);
    for (std::size_t y = 0; y < 8; ++y) {
      for (std::size_t x = 0; x < 6; ++x) {
        for (std::size_t k = 0; k < kPatch; ++k) {
          double sum = 0;
          for (std::size_t j = 0; j < kPatch; ++j) {
            const std::size_t c = j / 4, r = j / 2 % 2, s = j % 2;
            sum += static_cast<double>(weights[k * kPatch + j]) *
                   static_cast<double>(image[((y + r) * 7 + x + s) * 3 + c]);
          }
          outputs[k].push_back(sum);
        }
      }
    }
  }
  for (std::size_t a = 0; a < kPatch; ++a) {
    for (std::size_t b = 0; b < kPatch; ++b) {
      EXPECT_NEAR(dot(outputs[a], outputs[b]) / (kImages * kPatches), a == b ? 1.0 : 0.0, 1e-5);
    }
  }
}

TEST(Whitening, HalvesOrderAndSigns) {
  const std::vector<float> weights = net::whitening_weights(kWeights, drawn_images(5e-4));
  EXPECT_EQ(weights, net::whitening_weights(kWeights, drawn_images(5e-4)));
  double before = 0;
  for (std::size_t k = 0; k < kPatch; ++k) {
    double norm = 0, largest = 0;
    for (std::size_t j = 0; j < kPatch; ++j) {
      const float value = weights[k * kPatch + j];
      EXPECT_EQ(weights[(kPatch + k) * kPatch + j], -value);
      norm += static_cast<double>(value) * static_cast<double>(value);
      if (std::abs(static_cast<double>(value)) > std::abs(largest)) {
        largest = static_cast<double>(value);
      }
    }
    EXPECT_GT(norm, before) << "the largest eigenvalue, and so the smallest vector, is first";
    EXPECT_GT(largest, 0.0);
    before = norm;
  }
  // 1 / (eigenvalue + epsilon) is the vectors' squared length, so a large epsilon decides it.
  for (const float value : net::whitening_weights(kWeights, drawn_images(1e6))) {
    EXPECT_LE(std::abs(value), 1.001e-3f);
  }
}

// ---- frozen parameters --------------------------------------------------------------------------

net::Graph small_graph() {
  net::Graph graph(kImage);
  net::Value x = graph.add<net::Conv2dLayer>("whiten",
                                             {.channels = 2 * kPatch,
                                              .kernel = 2,
                                              .padding = 0,
                                              .has_bias = true,
                                              .is_frozen = true,
                                              .init = net::Init::whitening,
                                              .bias_epochs = 3},
                                             {graph.images()});
  x = graph.add<net::Conv2dLayer>("conv", {.channels = 32, .init = net::Init::identity_first}, {x});
  x = graph.add<net::ReluLayer>("relu", {}, {x});
  x = graph.add<net::GlobalAveragePoolLayer>("pool", {}, {x});
  graph.add<net::LinearLayer>("linear", {.outputs = 4, .has_bias = false}, {x});
  return graph;
}

TEST(FrozenParameters, LieApartAndAreState) {
  const auto device = make_test_device({.tune = false});
  net::Network network(*device, small_graph(), DataType::f32, 1);
  net::Parameters& p = network.parameters();
  ASSERT_EQ(p.frozen().size(), 1u);
  EXPECT_EQ(p.frozen()[0].name, "whiten.weight");
  EXPECT_EQ(p.frozen_size(), 24u * 12u);
  EXPECT_EQ(p.size(), 4u * 32u + 32u * 24u * 9u + 24u);
  std::vector<std::string> names;
  for (const net::Parameter& t : p.tensors()) {
    names.push_back(t.name);
    EXPECT_EQ(t.trained_epochs, t.name == "whiten.bias" ? 3u : 0u) << t.name;
  }
  EXPECT_EQ(names, (std::vector<std::string>{"linear.weight", "conv.weight", "whiten.bias"}));

  StateList state;
  p.list_state(state);
  EXPECT_EQ(std::ranges::count(state.blocks, "frozen/whiten.weight", &StateBlock::name), 1);
}

TEST(FrozenParameters, HaveNoGradientAndChangeTheOutput) {
  const auto device = make_test_device({.tune = false});
  net::Network network(*device, small_graph(), DataType::f32, 1);
  net::Parameters& p = network.parameters();
  network.prepare(2, net::Mode::training);
  GuardedTensor images(network.images_desc(2), random_values(2 * kImage.values(), 1));
  const auto logits = [&] {
    const TensorView y = network.forward(images.view(), net::Mode::training);
    return to_host(*device, {y.as<float>(), 8});
  };
  const std::vector<float> first = logits();
  const std::vector<float> nan(p.size(), std::numeric_limits<float>::quiet_NaN());
  device->upload(p.gradients().data(), nan.data(), p.gradients().size_bytes());
  const std::vector<float> ones(8, 1.0f);
  device->upload(network.logit_gradient().data, ones.data(), 8 * sizeof(float));
  const std::vector<float> before = to_host(*device, p.frozen_values());
  std::size_t reported = 0;
  network.backward(images.view(), [&](std::size_t) { ++reported; });
  EXPECT_EQ(reported, 3u);
  for (const float g : to_host(*device, p.gradients())) ASSERT_FALSE(std::isnan(g));
  EXPECT_EQ(to_host(*device, p.frozen_values()), before);

  std::vector<float> host(p.frozen_size());
  net::Parameters::import_torch(p.frozen()[0],
                                net::whitening_weights(p.frozen()[0], drawn_images(5e-4)), host);
  device->upload(p.frozen_values().data(), host.data(), p.frozen_values().size_bytes());
  EXPECT_NE(logits(), first);
}

// Output channel k of the first 24 has a one in the middle of input channel k's kernel.
TEST(InitialValues, IdentityOfTheFirstChannels) {
  const auto device = make_test_device({.tune = false});
  net::Network network(*device, small_graph(), DataType::f32, 1);
  const net::Parameter& conv = network.parameters().tensors()[1];
  const std::vector<float> values = to_host(*device, network.parameters().values());
  std::vector<float> torch(conv.elements);
  net::Parameters::export_torch(conv, values, torch);
  double sum = 0;
  for (std::size_t k = 0; k < 32; ++k) {
    for (std::size_t j = 0; j < 24 * 9; ++j) {
      const float value = torch[k * 24 * 9 + j];
      if (k < 24) {
        ASSERT_EQ(value, j == k * 9 + 4 ? 1.0f : 0.0f) << k << ' ' << j;
      } else {
        ASSERT_LE(std::abs(value), 1.0f / std::sqrt(24.0f * 9.0f));
        sum += std::abs(static_cast<double>(value));
      }
    }
  }
  // The mean of |U(-b, b)| is b / 2; 1,728 values scatter by 1.4 % of it.
  EXPECT_NEAR(sum / (8 * 24 * 9) * std::sqrt(24.0 * 9.0), 0.5, 0.04);
}

}  // namespace
}  // namespace dp::test
