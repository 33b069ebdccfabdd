// A network in the state from which make_golden.py starts, and its training step.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/device.hpp"
#include "kernels/sgd.hpp"
#include "kernels/softmax_cross_entropy.hpp"
#include "net/models/registry.hpp"
#include "net/network.hpp"
#include "tests/net/derived_values.hpp"

namespace dp::test {

struct GoldenSettings {
  std::string model;
  std::size_t classes = 10;
  float learning_rate = 0.05f;
  double beta = 0.0;  // mean of normalisation's bias at the start
  bool has_nesterov = false;
  float smoothing = 0.0f;
  std::vector<std::size_t> batches = {8, 8, 5, 8, 8};
};

// Images of one step and their labels.
struct GoldenBatch {
  GoldenBatch(std::size_t step, std::size_t count, std::size_t classes)
      : pixels(count * 32 * 32 * 3), labels(count) {
    const Derived image("images" + std::to_string(step)), label("labels" + std::to_string(step));
    for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<float>(2.0 * image(i));
    for (std::size_t i = 0; i < count; ++i) {
      labels[i] = static_cast<std::int32_t>((label(i) + 1.0) * 0.5 * static_cast<double>(classes));
    }
  }
  [[nodiscard]] TensorView view() {
    return {TensorDesc::nhwc({labels.size(), 32, 32, 3}), pixels.data()};
  }

  std::vector<float> pixels;
  std::vector<std::int32_t> labels;
};

class GoldenNetwork {
 public:
  GoldenNetwork(const GoldenSettings& settings, DataType type, const DeviceOptions& options,
                const std::string& tuning = "")
      : settings_(settings), device_(make_device(options)) {
    device_->tuning().import_text(tuning);
    network_ = std::make_unique<net::Network>(
        *device_, net::make_model(settings.model, settings.classes), type, 1);
    for (const std::size_t batch : settings.batches) {
      network_->prepare(batch, net::Mode::training);
      network_->prepare(batch, net::Mode::evaluation);
    }
    velocity_.resize(parameters().size());
    net::Parameters& p = parameters();
    for (const net::Parameter& t : p.tensors()) derive(t, p.values());
    for (const net::Parameter& t : p.statistics()) {
      derive(t, p.training_statistics());
      derive(t, p.evaluation_statistics());
    }
  }

  [[nodiscard]] Device& device() { return *device_; }
  [[nodiscard]] net::Network& network() { return *network_; }
  [[nodiscard]] net::Parameters& parameters() { return network_->parameters(); }
  [[nodiscard]] const std::vector<float>& logits() const { return logits_; }

  [[nodiscard]] std::vector<float> evaluate(GoldenBatch& batch) {
    const TensorView y = network_->forward(batch.view(), net::Mode::evaluation);
    return {y.as<float>(), y.as<float>() + y.desc.shape.elements()};
  }

  // Forward, loss and backward; returns the mean loss.
  double gradient(GoldenBatch& batch) {
    const TensorView y = network_->forward(batch.view(), net::Mode::training);
    logits_.assign(y.as<float>(), y.as<float>() + y.desc.shape.elements());
    const auto count = static_cast<double>(batch.labels.size());
    LossSums sums;
    softmax_cross_entropy(*device_, y, batch.labels.data(), settings_.smoothing, count,
                          network_->logit_gradient(), &sums);
    network_->backward(batch.view(), nullptr);
    return sums.loss / count;
  }

  void update() {
    const SgdStep step{.learning_rate = settings_.learning_rate,
                       .momentum = 0.9f,
                       .weight_decay = 5e-4f,
                       .has_nesterov = settings_.has_nesterov};
    sgd_update(*device_, parameters().values(), parameters().gradients(), velocity_, &step,
               nullptr);
  }

 private:
  void derive(const net::Parameter& tensor, std::span<float> buffer) const {
    const Derived value(tensor.name);
    double centre = 0.0, scale = 0.25;
    if (tensor.shape.size() == 4) {
      const auto fan_out = static_cast<double>(tensor.elements / tensor.shape[1]);
      scale = std::sqrt(6.0 / fan_out);
    } else if (tensor.name.starts_with("linear.")) {
      scale = 0.125;
    } else if (tensor.name.ends_with("weight") || tensor.name.ends_with("running_var")) {
      centre = 1.0;
    } else if (tensor.name.ends_with("bias")) {
      centre = settings_.beta;
    }
    std::vector<float> torch_order(tensor.elements);
    for (std::size_t i = 0; i < torch_order.size(); ++i) {
      torch_order[i] = static_cast<float>(centre + scale * value(i));
    }
    net::Parameters::import_torch(tensor, torch_order, buffer);
  }

  GoldenSettings settings_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<net::Network> network_;
  std::vector<float> velocity_, logits_;
};

}  // namespace dp::test
