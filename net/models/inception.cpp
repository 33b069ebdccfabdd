#include "net/models/inception.hpp"

#include <string>
#include <vector>

#include "net/layers/batch_norm.hpp"
#include "net/layers/concatenate.hpp"
#include "net/layers/conv2d.hpp"
#include "net/layers/linear.hpp"
#include "net/layers/pool.hpp"

namespace dp::net {

namespace {

using Conv = Conv2dLayer::Options;

// Convolutions that keep the number of pixels.
Conv plain(std::size_t channels) { return {.channels = channels, .kernel = 1, .padding = 0}; }
Conv square(std::size_t channels) { return {.channels = channels}; }
Conv row(std::size_t channels, std::size_t width) {
  return {.channels = channels, .kernel = {1, width}, .padding = {0, width / 2}};
}
Conv column(std::size_t channels, std::size_t height) {
  return {.channels = channels, .kernel = {height, 1}, .padding = {height / 2, 0}};
}

class InceptionBuilder {
 public:
  explicit InceptionBuilder(const InceptionOptions& options)
      : graph_(options.image),
        is_small_(options.form == InceptionForm::small),
        classes_(options.classes) {}

  Graph build() {
    Value x = stem(graph_.images());
    for (int i = 6; i < 10; ++i) x = inception_a(features(i), x);
    x = reduction_a(features(10), x);
    for (int i = 11; i < 18; ++i) x = inception_b(features(i), x);
    x = reduction_b(features(18), x);
    for (int i = 19; i < 22; ++i) x = inception_c(features(i), x);
    x = graph_.add<GlobalAveragePoolLayer>("pool", {}, {x});
    graph_.add<LinearLayer>("last_linear", {.outputs = classes_}, {x});
    return std::move(graph_);
  }

 private:
  static std::string features(int i) { return "features." + std::to_string(i); }

  // A convolution with normalisation and ReLU.
  Value unit(const std::string& name, Value x, const Conv& options) {
    x = graph_.add<Conv2dLayer>(name + ".conv", options, {x});
    const float epsilon = is_small_ ? 1e-5f : 1e-3f;
    return graph_.add<BatchNormLayer>(name + ".bn", {.has_relu = true, .epsilon = epsilon}, {x});
  }
  // Applies the units one after the other. Their names are NAME.0, NAME.1, ...
  Value chain(const std::string& name, Value x, const std::vector<Conv>& units) {
    for (std::size_t i = 0; i < units.size(); ++i) {
      x = unit(name + "." + std::to_string(i), x, units[i]);
    }
    return x;
  }
  Value join(const std::string& name, const std::vector<Value>& parts) {
    return graph_.add<ConcatenateLayer>(name, {}, parts);
  }
  // Average pooling, which is NAME.0, and a 1x1 convolution.
  Value pooled(const std::string& name, Value x, std::size_t channels) {
    const Pooling pooling = {.window = 3, .stride = 1, .padding = 1, .counts_padding = is_small_};
    x = graph_.add<AveragePoolLayer>(name + ".0", pooling, {x});
    return unit(name + ".1", x, plain(channels));
  }
  // In the ImageNet form, these windows and kernels reduce the number of pixels. In the stem of the
  // small form they keep it.
  [[nodiscard]] Conv stem_conv(std::size_t channels, std::size_t stride) const {
    return is_small_ ? square(channels)
                     : Conv{.channels = channels, .stride = stride, .padding = 0};
  }
  [[nodiscard]] Pooling stem_pooling() const {
    return is_small_ ? Pooling{.window = 3, .stride = 1, .padding = 1}
                     : Pooling{.window = 3, .stride = 2};
  }

  Value stem(Value x) {
    const std::size_t stride = is_small_ ? 1 : 2;
    x = unit(features(0), x, {.channels = 32, .stride = stride, .padding = 0});
    x = unit(features(1), x, stem_conv(32, 1));
    x = unit(features(2), x, square(64));
    const Value largest = graph_.add<MaxPoolLayer>("features.3.maxpool", stem_pooling(), {x});
    x = join(features(3), {largest, unit("features.3.conv", x, stem_conv(96, 2))});
    const Value narrow = chain("features.4.branch0", x, {plain(64), stem_conv(96, 1)});
    const Value wide =
        chain("features.4.branch1", x, {plain(64), row(64, 7), column(64, 7), stem_conv(96, 1)});
    x = join(features(4), {narrow, wide});
    const Value reduced = unit("features.5.conv", x, stem_conv(192, 2));
    return join(features(5),
                {reduced, graph_.add<MaxPoolLayer>("features.5.maxpool", stem_pooling(), {x})});
  }

  Value inception_a(const std::string& name, Value x) {
    return join(name, {pooled(name + ".branch0", x, 96), unit(name + ".branch1", x, plain(96)),
                       chain(name + ".branch2", x, {plain(64), square(96)}),
                       chain(name + ".branch3", x, {plain(64), square(96), square(96)})});
  }

  Value reduction_a(const std::string& name, Value x) {
    const auto reduce = [](std::size_t channels) {
      return Conv{.channels = channels, .stride = 2, .padding = 0};
    };
    const Pooling pooling = {.window = 3, .stride = 2};
    return join(name, {graph_.add<MaxPoolLayer>(name + ".branch0", pooling, {x}),
                       unit(name + ".branch1", x, reduce(384)),
                       chain(name + ".branch2", x, {plain(192), square(224), reduce(256)})});
  }

  Value inception_b(const std::string& name, Value x) {
    return join(name,
                {pooled(name + ".branch0", x, 128), unit(name + ".branch1", x, plain(384)),
                 chain(name + ".branch2", x, {plain(192), row(224, 7), column(256, 7)}),
                 chain(name + ".branch3", x,
                       {plain(192), column(192, 7), row(224, 7), column(224, 7), row(256, 7)})});
  }

  Value reduction_b(const std::string& name, Value x) {
    const std::size_t padding = is_small_ ? 1 : 0;
    const auto reduce = [&](std::size_t channels) {
      return Conv{.channels = channels, .stride = 2, .padding = padding};
    };
    const Pooling pooling = {.window = 3, .stride = 2, .padding = padding};
    return join(name, {graph_.add<MaxPoolLayer>(name + ".branch0", pooling, {x}),
                       chain(name + ".branch1", x, {plain(192), reduce(192)}),
                       chain(name + ".branch2", x,
                             {plain(256), row(256, 7), column(320, 7), reduce(320)})});
  }

  Value inception_c(const std::string& name, Value x) {
    // Two convolutions side by side on the same input.
    const auto fork = [&](const std::string& branch, Value value) {
      return join(branch, {unit(branch + "a", value, row(256, 3)),
                           unit(branch + "b", value, column(256, 3))});
    };
    const Value shallow = pooled(name + ".branch0", x, 256);
    const Value narrow = unit(name + ".branch1", x, plain(256));
    const Value two = unit(name + ".branch2_0", x, plain(384));
    Value three = unit(name + ".branch3_0", x, plain(384));
    three = unit(name + ".branch3_1", three, row(448, 3));
    three = unit(name + ".branch3_2", three, column(512, 3));
    return join(
        name, {shallow, narrow, fork(name + ".branch2_1", two), fork(name + ".branch3_3", three)});
  }

  Graph graph_;
  bool is_small_;
  std::size_t classes_;
};

}  // namespace

Graph inception_v4(const InceptionOptions& options) { return InceptionBuilder(options).build(); }

}  // namespace dp::net
