// Tests every layer against the contract of net/layer.hpp. To add a layer, add one row to kRows:
// its name, how it is made, the shapes of its inputs (small and odd), and where it does less or
// more than the contract. The tester checks that
//
//   - plan() returns the shape of output_shape();
//   - forward and backward assign their whole outputs and write nothing outside them (outputs are
//     filled with NaN before and have guard bytes around them);
//   - backward reads no input or output that the layer says it does not read (these are NaN), and
//     omits gradients that are not needed; the plan() of a layer that always computes them refuses
//     the images as input;
//   - the gradient of every input and parameter predicts the change of a randomly weighted sum of
//     the output along random directions;
//   - with accepts_two_gradients(), two gradients give the same result as their sum; other layers
//     do not read the second one.
//
// The arithmetic is tested precisely, in double, in tests/kernels; this test finds wrong wiring.
#include "net/layer.hpp"

#include "kernels/base/error.hpp"
#include "net/layers/batch_norm.hpp"
#include "net/layers/concatenate.hpp"
#include "net/layers/conv2d.hpp"
#include "net/layers/dropout.hpp"
#include "net/layers/elementwise.hpp"
#include "net/layers/linear.hpp"
#include "net/layers/pad_shortcut.hpp"
#include "net/layers/pool.hpp"
#include "tests/kernels/kernel_testing.hpp"

namespace dp::test {
namespace {

using net::Layer;

// Whether a layer can omit the gradient of its inputs. A layer that cannot must not read the
// images.
enum class InputGradients { as_wanted, always };

struct Row {
  const char* name;
  std::unique_ptr<Layer> (*make)();
  std::vector<Shape> inputs;
  InputGradients input_gradients = InputGradients::as_wanted;
  std::size_t accepted_gradients = 1;  // of its output: with 2 the layer adds them
};

template <class L, typename L::Options options = typename L::Options{}>
std::unique_ptr<Layer> make() {
  return std::make_unique<L>(options);
}

const std::vector<Row> kRows = {
    {"conv3x3", make<net::Conv2dLayer, {.channels = 32}>, {{2, 7, 5, 16}}},
    {"conv3x3_stride2", make<net::Conv2dLayer, {.channels = 16, .stride = 2}>, {{2, 7, 5, 16}}},
    {"conv1x1",
     make<net::Conv2dLayer, {.channels = 32, .kernel = 1, .stride = 2, .padding = 0}>,
     {{2, 6, 5, 16}}},
    {"conv1x7",
     make<net::Conv2dLayer, {.channels = 32, .kernel = {1, 7}, .padding = {0, 3}}>,
     {{2, 6, 9, 16}}},
    {"conv7x1",
     make<net::Conv2dLayer, {.channels = 16, .kernel = {7, 1}, .padding = {3, 0}}>,
     {{2, 9, 6, 16}}},
    {"conv_bias", make<net::Conv2dLayer, {.channels = 32, .has_bias = true}>, {{2, 7, 5, 16}}},
    {"conv_frozen",
     make<net::Conv2dLayer,
          {.channels = 24, .kernel = 2, .padding = 0, .has_bias = true, .is_frozen = true}>,
     {{2, 7, 5, 3}}},
    {"batch_norm_without_scale",
     make<net::BatchNormLayer, {.has_scale = false, .epsilon = 1e-12f, .momentum = 0.4f}>,
     {{2, 7, 5, 16}},
     InputGradients::always,
     2},
    {"batch_norm", make<net::BatchNormLayer>, {{2, 7, 5, 16}}, InputGradients::always, 2},
    {"batch_norm_relu",
     make<net::BatchNormLayer, {.has_relu = true}>,
     {{3, 4, 5, 16}},
     InputGradients::always,
     2},
    {"batch_norm_add",
     make<net::BatchNormLayer, {.has_addend = true}>,
     {{2, 7, 5, 5}, {2, 7, 5, 5}},
     InputGradients::always,
     2},
    {"batch_norm_add_relu",
     make<net::BatchNormLayer, {.has_relu = true, .has_addend = true}>,
     {{2, 7, 5, 16}, {2, 7, 5, 16}},
     InputGradients::always,
     2},
    {"relu", make<net::ReluLayer>, {{2, 7, 5, 16}}},
    {"gelu", make<net::GeluLayer>, {{2, 7, 5, 16}}},
    {"dropout", make<net::DropoutLayer>, {{2, 7, 5, 16}}},
    {"scale", make<net::ScaleLayer, {.factor = 0.125f}>, {{2, 7, 5, 16}}},
    {"flatten", make<net::FlattenLayer>, {{2, 3, 5, 32}}},
    {"add", make<net::AddLayer>, {{2, 7, 5, 16}, {2, 7, 5, 16}}},
    {"max_pool", make<net::MaxPoolLayer>, {{2, 7, 5, 16}}},
    {"max_pool_padded",
     make<net::MaxPoolLayer, {.window = 3, .stride = 2, .padding = 1}>,
     {{2, 7, 6, 16}}},
    {"average_pool", make<net::AveragePoolLayer>, {{2, 7, 5, 16}}},
    {"average_pool_padded",
     make<net::AveragePoolLayer, {.window = 3, .stride = 1, .padding = 1, .counts_padding = false}>,
     {{2, 7, 5, 16}}},
    {"concatenate", make<net::ConcatenateLayer>, {{2, 7, 5, 16}, {2, 7, 5, 32}, {2, 7, 5, 5}}},
    {"global_average_pool", make<net::GlobalAveragePoolLayer>, {{2, 7, 5, 16}}},
    {"pad_shortcut", make<net::PadShortcutLayer, {.channels = 32}>, {{2, 7, 5, 16}}},
    {"linear", make<net::LinearLayer, {.outputs = 10}>, {{3, 1, 1, 16}}},
    {"linear_without_bias",
     make<net::LinearLayer, {.outputs = 10, .has_bias = false}>,
     {{3, 1, 1, 16}}},
};

enum class Use { training, training_on_images, evaluation };

// How the layer gets the gradient of its output, probe(): in one piece, in two unequal pieces, or
// only the first of the two.
enum class Given { whole, two_pieces, first_piece };

// A layer with everything that an executor would give it.
class Bench {
 public:
  Bench(const Row& row, Use use) : device_(make_test_device({.tune = false})), layer_(row.make()) {
    const bool is_training = use != Use::evaluation;
    const net::PlanContext context{.device = *device_,
                                   .activation_type = DataType::f32,
                                   .is_training = is_training,
                                   .needs_input_gradient = use != Use::training_on_images,
                                   .position = position_.data()};
    std::vector<TensorDesc> descs;
    for (const Shape& s : row.inputs) {
      descs.push_back(s.pixels() == 1 ? TensorDesc::nhwc(s) : context.activation(s));
      x_.push_back(random_values(s.elements(), x_.size() + 1));
    }
    x_descs_ = descs;
    y_desc_ = layer_->plan(context, descs);
    EXPECT_EQ(y_desc_.shape, layer_->output_shape(row.inputs));
    std::vector<net::BoundParameter> bound;
    for (const net::ParameterSpec& spec : layer_->parameters(row.inputs)) {
      std::size_t count = 1;
      for (const std::size_t length : spec.shape) count *= length;
      Doubles values = random_values(count, 50 + parameters_.size());
      if (spec.name.starts_with("running")) values.assign(count, 1.0);
      parameters_.push_back(std::make_unique<GuardedTensor>(values));
      gradients_.push_back(std::make_unique<GuardedTensor>(count));
      is_trained_.push_back(spec.kind == net::ParameterKind::matrix ||
                            spec.kind == net::ParameterKind::vector);
      bound.push_back({parameters_.back()->floats(),
                       is_trained_.back() && is_training ? gradients_.back()->floats() : nullptr});
    }
    layer_->bind(bound);
    probe_ = random_values(y_desc_.shape.elements(), 40);
  }

  Layer& layer() { return *layer_; }
  std::vector<Doubles>& x() { return x_; }

  Doubles forward() {
    std::vector<GuardedTensor> inputs;
    for (std::size_t i = 0; i < x_.size(); ++i) inputs.emplace_back(x_descs_[i], x_[i]);
    std::vector<TensorView> views;
    for (GuardedTensor& t : inputs) views.push_back(t.view());
    GuardedTensor y(y_desc_), kept = make_kept();
    layer_->forward({.x = views, .y = y.view(), .kept = start_of(kept)});
    static_cast<void>(kept.values());  // looks at the guards
    kept_ = kept.raw();
    for (std::size_t i = 0; i < x_.size(); ++i) EXPECT_EQ(inputs[i].values(), x_[i]);
    return y.values();
  }
  double loss() { return dot(forward(), probe_); }

  // Gradients of loss() with respect to the inputs; bit i of `wanted` asks for input i's.
  std::vector<Doubles> backward(unsigned wanted, Given given = Given::whole) {
    const Doubles y_values = forward();
    std::vector<GuardedTensor> x, dx;
    for (std::size_t i = 0; i < x_.size(); ++i) {
      if (layer_->backward_reads_input(i)) {
        x.emplace_back(x_descs_[i], x_[i]);
      } else {
        x.emplace_back(x_descs_[i]);
      }
      dx.emplace_back(x_descs_[i]);
    }
    std::vector<TensorView> x_views, dx_views;
    for (std::size_t i = 0; i < x_.size(); ++i) {
      x_views.push_back(x[i].view());
      dx_views.push_back(dx[i].view());
      if ((wanted >> i & 1u) == 0) dx_views.back().data = nullptr;
    }
    GuardedTensor y =
        layer_->backward_reads_output() ? GuardedTensor(y_desc_, y_values) : GuardedTensor(y_desc_);
    Doubles first = probe_, second(probe_.size(), 0.0);
    for (std::size_t i = 0; i < probe_.size() && given != Given::whole; ++i) {
      second[i] = static_cast<double>(static_cast<float>(i % 3 == 0 ? 0.75 : -0.25));
      first[i] -= second[i];
    }
    GuardedTensor dy(y_desc_, first), dy2(y_desc_, second);
    for (auto& g : gradients_) {
      std::fill(g->span().begin(), g->span().end(), std::numeric_limits<float>::quiet_NaN());
    }
    GuardedTensor kept = make_kept();
    std::copy(kept_.begin(), kept_.end(), kept.view().as<std::byte>());
    layer_->backward({.x = x_views,
                      .y = y.view(),
                      .dy = dy.view(),
                      .dy2 = given == Given::two_pieces ? dy2.view() : TensorView{},
                      .dx = dx_views,
                      .kept = start_of(kept)});
    std::vector<Doubles> result;
    for (GuardedTensor& t : dx) result.push_back(t.values());
    return result;
  }

  // (values, gradient) of all trained parameters.
  std::vector<std::pair<GuardedTensor*, Doubles>> trained() {
    std::vector<std::pair<GuardedTensor*, Doubles>> list;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (is_trained_[i]) list.emplace_back(parameters_[i].get(), gradients_[i]->values());
    }
    return list;
  }

 private:
  // Two bytes to an element.
  [[nodiscard]] GuardedTensor make_kept() const {
    const std::size_t count = (layer_->kept_bytes() + 1) / 2;
    return GuardedTensor(TensorDesc::nhwc({count, 1, 1, 1}, DataType::bf16));
  }
  // An executor calls it in this way.
  [[nodiscard]] std::byte* start_of(GuardedTensor& kept) const {
    return layer_->kept_bytes() > 0 ? kept.view().as<std::byte>() : nullptr;
  }

  TestDevice device_;
  Shared<StepPosition> position_{StepPosition{.seed = 3, .step = 4}};
  std::unique_ptr<Layer> layer_;
  std::vector<TensorDesc> x_descs_;
  TensorDesc y_desc_;
  std::vector<Doubles> x_;
  Doubles probe_;
  std::vector<std::byte> kept_;  // by the last forward
  std::vector<std::unique_ptr<GuardedTensor>> parameters_, gradients_;
  std::vector<bool> is_trained_;
};

// Compares the gradient with the change of the loss along random directions of steps of +-1.
//
// Tolerance: fp32 outputs of order one have rounding errors of 1e-7, and a sum of some thousand
// with random signs has 3e-6. Divided by 2 h = 4e-4 that is 1e-2, for derivatives whose norm is 10
// to 30. A share of h / 2 of the values is within h of a ReLU's kink and wrong by up to half:
// sqrt(h / 2) / 3 = 3e-3 of the norm. One wrong value in 1,000 changes the derivative by 3e-2 of
// the norm.
void expect_directional(const Doubles& gradient,
                        const std::function<double(const Doubles& direction, double step)>& loss,
                        const std::string& what) {
  constexpr double kStep = 2e-4;
  const double norm = std::sqrt(dot(gradient, gradient));
  ASSERT_GT(norm, 0.0) << what;
  for (std::uint64_t k = 0; k < 4; ++k) {
    Doubles direction = random_values(gradient.size(), 90 + k);
    for (double& d : direction) d = d < 0 ? -1.0 : 1.0;
    const double numeric = (loss(direction, kStep) - loss(direction, -kStep)) / (2 * kStep);
    EXPECT_NEAR(dot(gradient, direction) / norm, numeric / norm, 1e-2) << what;
  }
}

class LayerContract : public testing::TestWithParam<Row> {};

TEST_P(LayerContract, GradientsMatchChanges) {
  Bench bench(GetParam(), Use::training);
  const unsigned all = (1u << bench.x().size()) - 1u;
  const std::vector<Doubles> dx = bench.backward(all);
  const auto trained = bench.trained();
  for (std::size_t i = 0; i < dx.size(); ++i) {
    expect_directional(
        dx[i],
        [&](const Doubles& direction, double step) {
          const Doubles saved = bench.x()[i];
          for (std::size_t j = 0; j < saved.size(); ++j) {
            bench.x()[i][j] =
                static_cast<double>(static_cast<float>(saved[j] + step * direction[j]));
          }
          const double loss = bench.loss();
          bench.x()[i] = saved;
          return loss;
        },
        "input " + std::to_string(i));
  }
  for (const auto& [parameter, gradient] : trained) {
    expect_directional(
        gradient,
        [&, p = parameter](const Doubles& direction, double step) {
          const std::vector<float> saved(p->span().begin(), p->span().end());
          for (std::size_t j = 0; j < saved.size(); ++j) {
            p->span()[j] += static_cast<float>(step * direction[j]);
          }
          const double loss = bench.loss();
          std::copy(saved.begin(), saved.end(), p->span().begin());
          return loss;
        },
        "parameter");
  }
}

// The layer that reads the images has no input gradient to compute.
TEST_P(LayerContract, UnwantedGradientIsLeftOut) {
  if (GetParam().input_gradients == InputGradients::always) {
    try {
      const Bench bench(GetParam(), Use::training_on_images);
      ADD_FAILURE() << "was planned for the images";
    } catch (const dp::Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::internal);
      EXPECT_NE(std::string(error.what()).find("cannot be the first layer"), std::string::npos)
          << error.what();
    }
  } else {
    Bench bench(GetParam(), Use::training), on_images(GetParam(), Use::training_on_images);
    const unsigned all = (1u << bench.x().size()) - 1u;
    const std::vector<Doubles> expected = bench.backward(all);
    for (unsigned wanted = 0; wanted < all; ++wanted) {
      const std::vector<Doubles> dx = on_images.backward(wanted);
      for (std::size_t i = 0; i < dx.size(); ++i) {
        if ((wanted >> i & 1u) != 0) {
          EXPECT_EQ(dx[i], expected[i]);
        } else {
          for (const double v : dx[i]) ASSERT_TRUE(std::isnan(v)) << "was written";
        }
      }
      const auto trained = bench.trained(), without = on_images.trained();
      for (std::size_t i = 0; i < trained.size(); ++i) {
        EXPECT_EQ(without[i].second, trained[i].second);
      }
    }
  }
}

TEST_P(LayerContract, TwoGradientsAddUp) {
  Bench bench(GetParam(), Use::training);
  const std::size_t accepted = GetParam().accepted_gradients;
  ASSERT_EQ(bench.layer().accepts_two_gradients(), accepted == 2);
  const unsigned all = (1u << bench.x().size()) - 1u;
  // If the layer does not add the two pieces, the executor does; the layer then gets only the first
  // piece.
  const std::vector<Doubles> expected =
      bench.backward(all, accepted == 2 ? Given::whole : Given::first_piece);
  const std::vector<Doubles> two = bench.backward(all, Given::two_pieces);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_LE(normalised_error(two[i], expected[i]), accepted == 2 ? 1e-5 : 0.0) << "input " << i;
  }
}

TEST_P(LayerContract, EvaluationAssigns) {
  Bench bench(GetParam(), Use::evaluation);
  for (const double v : bench.forward()) ASSERT_TRUE(std::isfinite(v));
}

// A linear layer on images of several pixels does what torch does with flattened images: its
// weights in torch's order belong to channels that lie one behind the other.
TEST(LinearLayer, ReadsImagesAsTorchDoes) {
  const auto device = make_test_device({.tune = false});
  net::LinearLayer layer({.outputs = 2});
  const Shape shape{1, 2, 3, 4};
  const auto specs = layer.parameters({&shape, 1});
  EXPECT_EQ(specs[0].shape, (std::vector<std::size_t>{2, 4, 2, 3}));
  const net::Parameter weight{.name = "weight",
                              .shape = specs[0].shape,
                              .kind = specs[0].kind,
                              .init = specs[0].init,
                              .elements = 48};
  const TensorDesc desc = TensorDesc::nhwc(shape);
  const TensorDesc y_desc = layer.plan({.device = *device,
                                        .activation_type = DataType::f32,
                                        .is_training = true,
                                        .needs_input_gradient = true},
                                       {&desc, 1});
  const Doubles values = random_values(24, 1), torch = random_values(48, 2);
  std::vector<float> torch_order(torch.begin(), torch.end());
  GuardedTensor weights(48), d_weights(48), bias(Doubles{0.5, -0.5}), d_bias(2);
  net::Parameters::import_torch(weight, torch_order, weights.span());
  layer.bind({{weights.floats(), d_weights.floats()}, {bias.floats(), d_bias.floats()}});
  GuardedTensor x(desc, values), y(y_desc);
  const TensorView view = x.view();
  layer.forward({.x = {&view, 1}, .y = y.view()});
  for (std::size_t k = 0; k < 2; ++k) {
    double expected = k == 0 ? 0.5 : -0.5;
    for (std::size_t c = 0; c < 4; ++c) {
      for (std::size_t p = 0; p < 6; ++p) {
        expected += torch[k * 24 + c * 6 + p] * values[p * 4 + c];
      }
    }
    EXPECT_NEAR(y.values()[k], expected, 1e-6);
  }
}

TEST(DropoutLayer, PassesValuesInEvaluation) {
  const auto device = make_test_device({.tune = false});
  net::DropoutLayer layer({.probability = 0.9});
  const TensorDesc desc = TensorDesc::nhwc({2, 1, 1, 16});
  static_cast<void>(layer.plan({.device = *device,
                                .activation_type = DataType::f32,
                                .is_training = false,
                                .needs_input_gradient = false},
                               {&desc, 1}));
  GuardedTensor x(desc, random_values(32, 1)), y(desc);
  const TensorView view = x.view();
  layer.forward({.x = {&view, 1}, .y = y.view()});
  EXPECT_EQ(y.values(), x.values());
}

std::string name_of_row(const testing::TestParamInfo<Row>& row) { return row.param.name; }

INSTANTIATE_TEST_SUITE_P(Layers, LayerContract, testing::ValuesIn(kRows), name_of_row);

}  // namespace
}  // namespace dp::test
