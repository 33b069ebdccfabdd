// A network in make_golden.py's initial state, and its training step.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "kernels/device.hpp"
#include "kernels/sgd.hpp"
#include "kernels/softmax_cross_entropy.hpp"
#include "net/models/registry.hpp"
#include "net/network.hpp"
#include "tests/kernels/kernel_testing.hpp"
#include "tests/net/derived_values.hpp"

namespace dp::test {

inline net::ModelInput cifar(std::size_t classes) {
  return {.image = {.height = 32, .width = 32}, .classes = classes};
}

struct GoldenSettings {
  std::string model;
  std::size_t classes = 10;
  float learning_rate = 0.002f;
  // The start: see make_golden.py's class Start, or Centred with is_centred.
  double beta = 0.5, gain = 13.0;
  std::size_t draw = 0;
  bool is_centred = false;
  bool has_nesterov = false;
  float smoothing = 0.0f;
  std::vector<std::size_t> batches = {8, 8, 5, 8, 8};
  std::size_t size = 32;  // height and width of the images
  bool is_large = false;  // takes minutes on cuda_on_cpu

  [[nodiscard]] net::ModelInput input() const {
    return {.image = {.height = size, .width = size}, .classes = classes};
  }
};

// Images of one step and their labels.
struct GoldenBatch {
  GoldenBatch(std::size_t step, std::size_t count, const GoldenSettings& settings)
      : pixels(count * settings.size * settings.size * 3), labels(count) {
    const std::string number = std::to_string(step);
    const std::string draw = settings.is_centred ? "" : "." + std::to_string(settings.draw);
    const Derived image("images" + number + draw);
    const Derived label("labels" + number);
    const auto classes = static_cast<double>(settings.classes);
    for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<float>(2.0 * image(i));
    for (std::size_t i = 0; i < count; ++i) {
      labels[i] = static_cast<std::int32_t>((label(i) + 1.0) * 0.5 * classes);
    }
  }
  std::vector<float> pixels;
  std::vector<std::int32_t> labels;
};

class GoldenNetwork {
 public:
  GoldenNetwork(const GoldenSettings& settings, DataType type, const DeviceOptions& options,
                const std::string& tuning = "")
      : settings_(settings), device_(make_test_device(options)) {
    device_->tuning().import_text(tuning);
    network_ = std::make_unique<net::Network>(
        *device_, net::make_model(settings.model, settings.input()), type, 1);
    for (const std::size_t batch : settings.batches) {
      network_->prepare(batch, net::Mode::training);
      network_->prepare(batch, net::Mode::evaluation);
    }
    net::Parameters& p = parameters();
    std::vector<float> values(p.size()), statistics(p.training_statistics().size());
    for (const net::Parameter& t : p.tensors()) derive(t, values);
    for (const net::Parameter& t : p.statistics()) derive(t, statistics);
    to_device(p.values(), values);
    std::vector<float> frozen(p.frozen_size());
    for (const net::Parameter& t : p.frozen()) derive(t, frozen);
    to_device(p.frozen_values(), frozen);
    to_device(p.training_statistics(), statistics);
    to_device(p.evaluation_statistics(), statistics);

    const std::size_t largest = *std::max_element(settings.batches.begin(), settings.batches.end());
    pixels_ = device_->allocate(network_->images_desc(largest).bytes());
    labels_ = device_->allocate(largest * sizeof(std::int32_t));
    velocity_ = device_->allocate(p.size() * sizeof(float));
    sums_ = device_->allocate_host(sizeof(LossSums));
    step_ = device_->allocate_host(sizeof(SgdStep));
    *new (step_.get()) SgdStep = {.learning_rate = settings_.learning_rate,
                                  .momentum = 0.9f,
                                  .weight_decay = 5e-4f,
                                  .has_nesterov = settings_.has_nesterov};
    logits_.resize(largest * settings.classes);
  }

  [[nodiscard]] const GoldenSettings& settings() const { return settings_; }
  [[nodiscard]] Device& device() { return *device_; }
  [[nodiscard]] net::Network& network() { return *network_; }
  [[nodiscard]] net::Parameters& parameters() { return network_->parameters(); }
  // The results of the last gradient().
  [[nodiscard]] std::span<const float> logits() const { return {logits_.data(), logits_size_}; }
  // Copies a buffer of the device to host memory, and back.
  [[nodiscard]] std::vector<float> on_host(std::span<const float> buffer) {
    return to_host(*device_, buffer);
  }
  void to_device(std::span<float> buffer, std::span<const float> values) {
    device_->upload(buffer.data(), values.data(), buffer.size_bytes());
  }

  [[nodiscard]] std::vector<float> evaluate(const GoldenBatch& batch) {
    const TensorView y = network_->forward(bring(batch), net::Mode::evaluation);
    return on_host({y.as<float>(), y.desc.shape.elements()});
  }

  // Forward, loss and backward; returns the mean loss.
  double gradient(const GoldenBatch& batch) {
    const TensorView images = bring(batch);
    const TensorView y = network_->forward(images, net::Mode::training);
    logits_size_ = y.desc.shape.elements();
    device_->download(logits_.data(), y.data, logits_size_ * sizeof(float));
    const auto count = static_cast<double>(batch.labels.size());
    auto* sums = reinterpret_cast<LossSums*>(sums_.get());
    softmax_cross_entropy(*device_, y, reinterpret_cast<const std::int32_t*>(labels_.get()),
                          settings_.smoothing, count, network_->logit_gradient(), sums);
    network_->backward(images, nullptr);
    device_->synchronize();
    return sums->loss / count;
  }

  void update() {
    sgd_update(*device_, parameters().values(), parameters().gradients(),
               {reinterpret_cast<float*>(velocity_.get()), parameters().size()},
               reinterpret_cast<const SgdStep*>(step_.get()), nullptr);
  }

 private:
  [[nodiscard]] TensorView bring(const GoldenBatch& batch) {
    device_->upload(pixels_.get(), batch.pixels.data(), batch.pixels.size() * sizeof(float));
    device_->upload(labels_.get(), batch.labels.data(), batch.labels.size() * sizeof(std::int32_t));
    return {network_->images_desc(batch.labels.size()), pixels_.get()};
  }

  // make_golden.py's `initial`.
  void derive(const net::Parameter& tensor, std::span<float> buffer) const {
    if (settings_.is_centred) {
      derive_centred(tensor, buffer);
    } else {
      derive_calm(tensor, buffer);
    }
  }

  void derive_centred(const net::Parameter& tensor, std::span<float> buffer) const {
    const Derived value(tensor.name);
    double centre = 0.0, scale = 0.25;
    if (tensor.shape.size() == 4) {
      const auto fan_out = static_cast<double>(tensor.elements / tensor.shape[1]);
      scale = std::sqrt(6.0 / fan_out);
    } else if (tensor.name.starts_with("linear.") || tensor.name.starts_with("fc.") ||
               tensor.name.starts_with("last_linear.")) {
      scale = 0.125;
    } else if (tensor.name.starts_with("classifier.") && tensor.shape.size() == 2) {
      scale = std::sqrt(6.0 / static_cast<double>(tensor.shape[1]));
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

  void derive_calm(const net::Parameter& tensor, std::span<float> buffer) const {
    const Derived value(tensor.name);
    const std::vector<std::size_t> shape = tensor.torch_shape();
    const bool is_last = shape[0] == settings_.classes;
    double centre = 0.0, scale = 0.25;
    if (shape.size() >= 2) {
      const double gain = shape.size() == 4 ? settings_.gain : 0.2;
      scale = gain * std::sqrt(6.0 / static_cast<double>(tensor.elements / shape[0]));
    } else if (tensor.name.ends_with("running_var")) {
      centre = 1.0;
    } else if (tensor.name.ends_with("weight")) {
      centre = 0.15 * settings_.beta;
      scale = 0.04 * settings_.beta;
    }
    std::vector<float> torch_order(tensor.elements);
    for (std::size_t i = 0; i < torch_order.size(); ++i) {
      torch_order[i] = static_cast<float>(centre + scale * value(i));
    }
    if (shape.size() >= 2 && !is_last) {
      const std::size_t taps = tensor.elements / shape[0] / shape[1];
      for (std::size_t i = 0; i < torch_order.size(); ++i) {
        if (i / taps % shape[1] % 2 == 1) torch_order[i] = -torch_order[i - taps];
      }
    } else if (tensor.name.ends_with("bias") && !is_last) {
      for (std::size_t i = 0; i < torch_order.size(); ++i) {
        const double sign = i / 2 % 2 == 0 ? 1.0 : -1.0;
        torch_order[i] = static_cast<float>(settings_.beta * (sign + 0.1 * value(i)));
      }
    }
    net::Parameters::import_torch(tensor, torch_order, buffer);
  }

  GoldenSettings settings_;
  TestDevice device_;
  std::unique_ptr<net::Network> network_;
  Device::Memory pixels_, labels_, velocity_, sums_, step_;
  std::vector<float> logits_;
  std::size_t logits_size_ = 0;
};

}  // namespace dp::test
