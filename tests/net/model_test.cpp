// Tests models and their parameters: exact counts, the order of the flat buffers and in which
// backward reports tensors, initial values, torch's order.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <numeric>
#include <set>

#include "kernels/base/error.hpp"
#include "kernels/base/random.hpp"
#include "net/models/registry.hpp"
#include "net/network.hpp"

namespace dp::test {
namespace {

using net::Mode;
using net::Network;
using net::Parameter;
using net::ParameterKind;
using net::Parameters;

net::ModelInput cifar(std::size_t classes) {
  return {.image = {.height = 32, .width = 32}, .classes = classes};
}

struct Count {
  const char* model;
  std::size_t with_10, with_100;  // classes; 0: no figure is known
  std::size_t with_1000 = 0;
};

constexpr Count kCounts[] = {
    {"resnet18", 11'173'962, 11'220'132},
    {"resnet34", 21'282'122, 21'328'292},
    {"resnet50", 23'520'842, 23'705'252},
    {"resnet101", 42'512'970, 42'697'380},
    {"resnet152", 58'156'618, 58'341'028},
    {"resnet20", 269'722, 275'572},
    {"resnet32", 464'154, 470'004},
    {"resnet44", 658'586, 664'436},
    {"resnet56", 853'018, 858'868},
    {"resnet110", 1'727'962, 1'733'812},
    {"resnet20b", 272'474, 0},
    {"resnet32b", 466'906, 0},
    {"resnet44b", 661'338, 0},
    {"resnet56b", 855'770, 0},
    {"resnet110b", 1'730'714, 0},
    {"resnet18-imagenet", 0, 0, 11'689'512},
    {"resnet34-imagenet", 0, 0, 21'797'672},
    {"resnet50-imagenet", 0, 0, 25'557'032},
    {"resnet101-imagenet", 0, 0, 44'549'160},
    {"resnet152-imagenet", 0, 0, 60'192'808},
    {"preact-resnet18", 11'171'146, 0},
    {"preact-resnet34", 21'279'306, 0},
    {"preact-resnet50", 23'509'066, 0},
    {"preact-resnet101", 42'501'194, 0},
    {"preact-resnet152", 58'144'842, 0},
    {"inception-v4", 41'158'186, 41'296'516, 42'679'816},
    {"inception-v4-imagenet", 41'158'186, 41'296'516, 42'679'816},
    {"vgg16", 14'719'818, 14'765'988},
    {"vgg16-bn", 14'728'266, 14'774'436},
    {"vgg16-imagenet", 0, 0, 138'357'544},
    {"vgg16-bn-imagenet", 0, 0, 138'365'992},
    {"resnet9", 6'573'120, 6'619'200},
    {"airbench94", 1'971'352, 1'994'392},
};

// Calls it for each tensor of the graph's layers, without allocating any.
template <class Function>
void for_each_parameter(const net::Graph& graph, Function function) {
  std::vector<Shape> shapes = {graph.images_shape(1)};
  for (std::size_t i = 1; i < graph.nodes().size(); ++i) {
    std::vector<Shape> inputs;
    for (const std::size_t input : graph.nodes()[i].inputs) inputs.push_back(shapes[input]);
    const auto layer = graph.nodes()[i].make();
    shapes.push_back(layer->output_shape(inputs));
    for (const net::ParameterSpec& spec : layer->parameters(inputs)) function(spec);
  }
}

std::size_t values_of(const net::ParameterSpec& spec) {
  return std::accumulate(spec.shape.begin(), spec.shape.end(), std::size_t{1}, std::multiplies<>());
}

std::size_t count_parameters(const net::Graph& graph) {
  std::size_t total = 0;
  for_each_parameter(graph, [&](const net::ParameterSpec& spec) {
    if (spec.kind == ParameterKind::statistic || spec.kind == ParameterKind::frozen) return;
    total += values_of(spec);
  });
  return total;
}

TEST(Models, ParameterCountsAreExact) {
  std::vector<std::string> names;
  for (const Count& row : kCounts) {
    names.emplace_back(row.model);
    const bool is_large = names.back().ends_with("-imagenet");
    const std::pair<std::size_t, std::size_t> counts[] = {
        {10, row.with_10}, {100, row.with_100}, {1000, row.with_1000}};
    for (const auto& [classes, count] : counts) {
      if (count == 0) continue;
      net::ModelInput input = cifar(classes);
      const std::size_t size = names.back().starts_with("vgg16") ? 224 : 299;
      if (is_large) input.image = {.height = size, .width = size};
      EXPECT_EQ(count_parameters(net::make_model(row.model, input)), count)
          << row.model << " with " << classes << " classes";
    }
  }
  EXPECT_EQ(net::model_names(), names) << "every model has a row here";
}

// "NAME SHAPE" for each tensor, sorted.
std::vector<std::string> tensors_of(const net::Graph& graph) {
  std::vector<std::string> lines;
  std::vector<Shape> shapes = {graph.images_shape(1)};
  for (std::size_t i = 1; i < graph.nodes().size(); ++i) {
    const net::Graph::Node& node = graph.nodes()[i];
    std::vector<Shape> inputs;
    for (const std::size_t input : node.inputs) inputs.push_back(shapes[input]);
    const auto layer = node.make();
    shapes.push_back(layer->output_shape(inputs));
    for (const net::ParameterSpec& spec : layer->parameters(inputs)) {
      const Parameter tensor = {.name = spec.name,
                                .shape = spec.shape,
                                .kind = spec.kind,
                                .init = spec.init,
                                .is_linear = spec.is_linear,
                                .elements = values_of(spec)};
      lines.push_back(
          fmt::format("{}.{} {}", node.name, spec.name, fmt::join(tensor.torch_shape(), "x")));
    }
  }
  std::ranges::sort(lines);
  return lines;
}

// The output of model_tensors.py, by model and sorted.
std::map<std::string, std::vector<std::string>> printed_tensors(const std::string& words) {
  const std::string command = std::string(DP_PYTHON " -I " DP_MODEL_TENSORS_PY " ") + words;
  std::FILE* out = ::popen(command.c_str(), "r");
  EXPECT_NE(out, nullptr);
  std::map<std::string, std::vector<std::string>> models;
  char model[100], name[200], shape[100];
  while (std::fscanf(out, "%99s %199s %99s", model, name, shape) == 3) {
    models[model].push_back(std::string(name) + ' ' + shape);
  }
  EXPECT_EQ(::pclose(out), 0) << command;
  for (auto& [_, lines] : models) std::ranges::sort(lines);
  return models;
}

// experiments/weights.py compares a state dict's names and shapes with a table of its own.
TEST(Models, WeightsPyKnowsTheirTensors) {
  for (const auto& [words, input] :
       {std::pair{"10 3x299x299", net::ModelInput{{.height = 299, .width = 299}, 10}},
        std::pair{"7 4x100x75", net::ModelInput{{.channels = 4, .height = 100, .width = 75}, 7}}}) {
    const auto printed = printed_tensors(words);
    EXPECT_EQ(printed.size(), net::model_names().size());
    for (const std::string& name : net::model_names()) {
      const auto found = printed.find(name);
      ASSERT_NE(found, printed.end()) << name;
      EXPECT_EQ(found->second, tensors_of(net::make_model(name, input))) << name << ' ' << words;
    }
  }
}

// The head's first layer has as many inputs as the last pooling leaves values.
TEST(Models, VggsHeadFitsTheImages) {
  EXPECT_EQ(count_parameters(net::make_model("vgg16-bn-imagenet", cifar(100))), 34'015'396u);
}

TEST(Models, UnknownNameNamesTheKnown) {
  try {
    static_cast<void>(net::make_model("resnet19", cifar(10)));
    FAIL() << "was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_NE(std::string(error.what()).find("resnet19"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("resnet110b"), std::string::npos);
  }
}

// The least image that a network names is the least that it can take.
TEST(Models, TooSmallImagesAreRefused) {
  for (const std::string& name : net::model_names()) {
    std::size_t least = 1;
    for (;; ++least) {
      net::ModelInput input = cifar(10);
      input.image.height = input.image.width = least;
      try {
        EXPECT_GT(count_parameters(net::make_model(name, input)), 0u);
        break;
      } catch (const Error& error) {
        ASSERT_EQ(error.kind(), ErrorKind::usage) << name << ": " << error.what();
        const std::string text = fmt::format("these have {}x", least);
        EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
        ASSERT_LT(least, 100u) << error.what();
      }
    }
    EXPECT_EQ(least, name == "inception-v4"            ? 5u
                     : name == "inception-v4-imagenet" ? 75u
                     : name == "airbench94"            ? 25u
                     : name == "resnet9"               ? 32u
                     : name.starts_with("vgg16")       ? 32u
                                                       : 1u)
        << name;
  }
}

class Resnet20 : public testing::Test {
 protected:
  std::unique_ptr<Device> device_ = make_device({.tune = false});
  Network network_{*device_, net::make_model("resnet20b", cifar(10)), DataType::f32, 1};
  Parameters& parameters_ = network_.parameters();
};

TEST_F(Resnet20, FlatBufferIsTwoRegionsInBackwardOrder) {
  EXPECT_EQ(parameters_.size(), 272'474u);
  std::size_t offset = 0;
  bool is_in_vectors = false;
  std::set<std::string> names;
  for (const Parameter& t : parameters_.tensors()) {
    EXPECT_EQ(t.offset, offset) << t.name << ": no gaps";
    offset += t.elements;
    EXPECT_TRUE(names.insert(t.name).second) << t.name;
    EXPECT_EQ(t.kind == ParameterKind::vector, t.shape.size() == 1) << t.name;
    if (t.kind == ParameterKind::vector) is_in_vectors = true;
    EXPECT_EQ(t.kind == ParameterKind::vector, is_in_vectors) << t.name;
  }
  EXPECT_EQ(offset, parameters_.size());
  EXPECT_EQ(parameters_.tensors().front().name, "linear.weight");
  EXPECT_EQ(parameters_.tensors().back().name, "bn1.bias");
  const auto conv1 = std::find_if(parameters_.tensors().begin(), parameters_.tensors().end(),
                                  [](const Parameter& t) { return t.name == "conv1.weight"; });
  ASSERT_NE(conv1, parameters_.tensors().end());
  EXPECT_EQ((conv1 + 1)->name, "linear.bias") << "the last matrix, then the first vector";
  EXPECT_EQ(conv1->shape, (std::vector<std::size_t>{16, 3, 3, 3}));
  for (const char* name : {"layer1.0.conv1.weight", "layer2.0.shortcut.0.weight",
                           "layer2.0.shortcut.1.bias", "layer3.2.bn2.weight"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
  EXPECT_FALSE(names.contains("layer1.0.shortcut.0.weight"));
}

TEST_F(Resnet20, BackwardReportsEveryTensorOnceInBufferOrder) {
  network_.prepare(2, Mode::training);
  std::vector<float> pixels(2 * 32 * 32 * 3, 0.5f);
  const TensorView images{TensorDesc::nhwc({2, 32, 32, 3}), pixels.data()};
  static_cast<void>(network_.forward(images, Mode::training));
  const TensorView dy = network_.logit_gradient();
  for (std::size_t i = 0; i < dy.desc.shape.elements(); ++i) dy.as<float>()[i] = 0.1f;
  const auto gradients = parameters_.gradients();
  std::fill(gradients.begin(), gradients.end(), std::numeric_limits<float>::quiet_NaN());
  std::vector<std::size_t> matrices, vectors;
  network_.backward(images, [&](std::size_t tensor) {
    const Parameter& t = parameters_.tensors()[tensor];
    (t.kind == ParameterKind::matrix ? matrices : vectors).push_back(tensor);
    for (const float g : gradients.subspan(t.offset, t.elements)) {
      ASSERT_FALSE(std::isnan(g)) << t.name << " was reported before it was final";
    }
  });
  EXPECT_TRUE(std::is_sorted(matrices.begin(), matrices.end()));
  EXPECT_TRUE(std::is_sorted(vectors.begin(), vectors.end()));
  std::vector<std::size_t> all = matrices;
  all.insert(all.end(), vectors.begin(), vectors.end());
  std::vector<std::size_t> expected(parameters_.tensors().size());
  std::iota(expected.begin(), expected.end(), std::size_t{0});
  EXPECT_EQ(all, expected) << "each once";
}

TEST_F(Resnet20, InitialValuesAreAFunctionOfSeedAndName) {
  Network same(*device_, net::make_model("resnet20b", cifar(10)), DataType::f32, 1);
  Network other(*device_, net::make_model("resnet20b", cifar(10)), DataType::f32, 2);
  // In another model, tensors of the same name and shape have the same initial values.
  Network longer(*device_, net::make_model("resnet32b", cifar(10)), DataType::f32, 1);
  const auto values = [](Network& n, const std::string& name) {
    for (const Parameter& t : n.parameters().tensors()) {
      if (t.name != name) continue;
      const auto span = n.parameters().values().subspan(t.offset, t.elements);
      return std::vector<float>(span.begin(), span.end());
    }
    ADD_FAILURE() << name;
    return std::vector<float>();
  };
  for (const char* name : {"layer1.0.conv1.weight", "linear.weight", "linear.bias"}) {
    EXPECT_EQ(values(network_, name), values(same, name));
    EXPECT_NE(values(network_, name), values(other, name));
    EXPECT_EQ(values(network_, name), values(longer, name));
  }
  EXPECT_NE(values(network_, "layer1.0.conv1.weight"), values(network_, "layer1.0.conv2.weight"));
  // N(0, 2 / (K R S)). The variance of 36,864 values has a standard error of 0.7 %, so 5 % is 7 of
  // them.
  double sum = 0, squares = 0;
  const std::vector<float> kernel = values(network_, "layer3.1.conv1.weight");
  for (const float v : kernel) {
    sum += static_cast<double>(v);
    squares += static_cast<double>(v) * static_cast<double>(v);
  }
  const auto count = static_cast<double>(kernel.size());
  EXPECT_NEAR(squares / count * (64 * 9) / 2.0, 1.0, 0.05);
  EXPECT_NEAR(sum / count, 0.0, 5 * std::sqrt(2.0 / (64 * 9) / count));
  for (const float v : values(network_, "linear.weight")) EXPECT_LE(std::abs(v), 0.125f);
  for (const float v : values(network_, "bn1.weight")) EXPECT_EQ(v, 1.0f);
  for (const float v : values(network_, "bn1.bias")) EXPECT_EQ(v, 0.0f);
  for (const Parameter& t : parameters_.statistics()) {
    const float start = t.name.ends_with("running_var") ? 1.0f : 0.0f;
    for (std::size_t i = 0; i < t.elements; ++i) {
      EXPECT_EQ(parameters_.training_statistics()[t.offset + i], start);
      EXPECT_EQ(parameters_.evaluation_statistics()[t.offset + i], start);
    }
  }
}

TEST_F(Resnet20, TorchOrderRoundTrip) {
  const CounterRng rng(3, RandomStream::test);
  for (const Parameter& t : parameters_.tensors()) {
    std::vector<float> torch(t.elements), back(t.elements);
    for (std::size_t i = 0; i < torch.size(); ++i) torch[i] = static_cast<float>(rng.uniform(i));
    Parameters::import_torch(t, torch, parameters_.values());
    Parameters::export_torch(t, parameters_.values(), back);
    EXPECT_EQ(back, torch) << t.name;
    if (t.shape.size() != 4) continue;
    // OIHW outside, KRSC inside: element (k, c, r, s) = (1, 2, 0, 0).
    const std::size_t C = t.shape[1], R = t.shape[2], S = t.shape[3];
    EXPECT_EQ(parameters_.values()[t.offset + R * S * C + 2], torch[(C + 2) * R * S]) << t.name;
  }
}

}  // namespace
}  // namespace dp::test
