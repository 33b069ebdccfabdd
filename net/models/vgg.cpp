#include "net/models/vgg.hpp"

#include <string>

#include "net/layers/batch_norm.hpp"
#include "net/layers/conv2d.hpp"
#include "net/layers/dropout.hpp"
#include "net/layers/elementwise.hpp"
#include "net/layers/linear.hpp"
#include "net/layers/pool.hpp"

namespace dp::net {

namespace {

class VggBuilder {
 public:
  explicit VggBuilder(const VggOptions& options)
      : options_(options), graph_(options.image), x_(graph_.images()) {}

  Graph build() {
    constexpr struct {
      std::size_t channels, convolutions;
    } kGroups[] = {{64, 2}, {128, 2}, {256, 3}, {512, 3}, {512, 3}};
    for (const auto& group : kGroups) {
      for (std::size_t i = 0; i < group.convolutions; ++i) convolution(group.channels);
      x_ = graph_.add<MaxPoolLayer>(feature(), {.window = 2, .stride = 2}, {x_});
    }
    x_ = graph_.add<FlattenLayer>("flatten", {}, {x_});
    if (options_.form == VggForm::cifar) {
      graph_.add<LinearLayer>("classifier", {.outputs = options_.classes}, {x_});
      return std::move(graph_);
    }
    hidden("classifier.0", "classifier.1", "classifier.2", 1);
    hidden("classifier.3", "classifier.4", "classifier.5", 2);
    linear("classifier.6", options_.classes);
    return std::move(graph_);
  }

 private:
  // torch numbers every module in a group, including ReLU and pooling.
  [[nodiscard]] std::string feature() { return "features." + std::to_string(features_++); }

  void convolution(std::size_t channels) {
    // kuangliu keeps torch's default initialisation. Networks without normalisation, and
    // torchvision, use He et al. 2015, because the deep layers' outputs would otherwise be nearly
    // zero.
    const bool has_defaults = options_.has_norm && options_.form == VggForm::cifar;
    x_ = graph_.add<Conv2dLayer>(
        feature(),
        {.channels = channels,
         .has_bias = true,
         .init = has_defaults ? Init::uniform_fan_in : Init::kaiming_normal_fan_out,
         .bias_init = has_defaults ? Init::uniform_fan_in : Init::zeros},
        {x_});
    if (options_.has_norm) {
      x_ = graph_.add<BatchNormLayer>(feature(), {.has_relu = true}, {x_});
      ++features_;  // the ReLU
    } else {
      x_ = graph_.add<ReluLayer>(feature(), {}, {x_});
    }
  }

  void linear(const std::string& name, std::size_t outputs) {
    x_ = graph_.add<LinearLayer>(
        name, {.outputs = outputs, .init = Init::normal_hundredth, .bias_init = Init::zeros}, {x_});
  }
  void hidden(const std::string& name, const std::string& relu, const std::string& dropout,
              std::size_t stream) {
    linear(name, 4096);
    x_ = graph_.add<ReluLayer>(relu, {}, {x_});
    x_ = graph_.add<DropoutLayer>(dropout, {.probability = 0.5, .stream = stream}, {x_});
  }

  const VggOptions& options_;
  Graph graph_;
  Value x_;
  std::size_t features_ = 0;
};

}  // namespace

Graph vgg16(const VggOptions& options) { return VggBuilder(options).build(); }

}  // namespace dp::net
