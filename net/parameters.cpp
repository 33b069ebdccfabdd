#include "net/parameters.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "kernels/base/error.hpp"
#include "kernels/base/random.hpp"

namespace dp::net {

namespace {

// Calls body(position in torch's order, position in memory) for every element.
template <class Body>
void for_each_element(const Parameter& tensor, const Body& body) {
  if (tensor.shape.size() != 4) {
    for (std::size_t i = 0; i < tensor.elements; ++i) body(i, i);
    return;
  }
  const std::size_t K = tensor.shape[0], C = tensor.shape[1], R = tensor.shape[2],
                    S = tensor.shape[3];
  std::size_t torch = 0;
  for (std::size_t k = 0; k < K; ++k) {
    for (std::size_t c = 0; c < C; ++c) {
      for (std::size_t r = 0; r < R; ++r) {
        for (std::size_t s = 0; s < S; ++s) body(torch++, ((k * R + r) * S + s) * C + c);
      }
    }
  }
}

// FNV-1a, because it is the same on every machine. std::hash may differ.
std::uint64_t name_key(const std::string& name) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}

std::size_t place(std::vector<Parameter>& tensors, std::size_t offset) {
  for (Parameter& t : tensors) {
    t.elements =
        std::accumulate(t.shape.begin(), t.shape.end(), std::size_t{1}, std::multiplies<>());
    t.offset = offset;
    offset += t.elements;
  }
  return offset;
}

// Each of the first C output channels copies its input channel: 1 at the kernel's centre, else 0.
void set_identity(const Parameter& tensor, std::span<float> values) {
  const std::size_t K = tensor.shape.at(0), C = tensor.shape.at(1), R = tensor.shape.at(2),
                    S = tensor.shape.at(3);
  const std::size_t centre = R / 2 * S + S / 2;
  for (std::size_t k = 0; k < std::min(K, C); ++k) {
    const std::span<float> kernel = values.subspan(k * R * S * C, R * S * C);
    std::fill(kernel.begin(), kernel.end(), 0.0f);
    kernel[centre * C + k] = 1.0f;
  }
}

void fill(const Parameter& tensor, std::uint64_t seed, std::span<float> buffer) {
  const std::span<float> values = buffer.subspan(tensor.offset, tensor.elements);
  const CounterRng rng(seed, RandomStream::weights, name_key(tensor.name));
  switch (tensor.init) {
    case Init::zeros:
      std::fill(values.begin(), values.end(), 0.0f);
      return;
    case Init::ones:
      std::fill(values.begin(), values.end(), 1.0f);
      return;
    case Init::kaiming_normal_fan_out: {
      const std::size_t fan_out = tensor.elements / tensor.shape.at(1);
      const double deviation = std::sqrt(2.0 / static_cast<double>(fan_out));
      for_each_element(tensor, [&](std::size_t torch, std::size_t memory) {
        values[memory] = static_cast<float>(deviation * normal(rng, torch));
      });
      return;
    }
    case Init::normal_hundredth:
      for_each_element(tensor, [&](std::size_t torch, std::size_t memory) {
        values[memory] = static_cast<float>(0.01 * normal(rng, torch));
      });
      return;
    case Init::uniform_fan_in:
    case Init::identity_first:
    case Init::whitening: {
      const double bound = 1.0 / std::sqrt(static_cast<double>(tensor.fan_in));
      for_each_element(tensor, [&](std::size_t torch, std::size_t memory) {
        values[memory] = static_cast<float>(bound * (2.0 * rng.uniform(torch) - 1.0));
      });
      if (tensor.init == Init::identity_first) set_identity(tensor, values);
      return;
    }
  }
}

}  // namespace

Parameters::Parameters(Device& device, std::vector<Parameter> specs) : device_(device) {
  std::vector<Parameter> vectors;
  for (Parameter& spec : specs) {
    auto& list = spec.kind == ParameterKind::matrix   ? tensors_
                 : spec.kind == ParameterKind::vector ? vectors
                 : spec.kind == ParameterKind::frozen ? frozen_
                                                      : statistics_;
    list.push_back(std::move(spec));
  }
  tensors_.insert(tensors_.end(), vectors.begin(), vectors.end());
  size_ = place(tensors_, 0);
  frozen_size_ = place(frozen_, 0);
  statistics_size_ = place(statistics_, 0);
  values_ = device.allocate(size_ * sizeof(float));
  gradients_ = device.allocate(size_ * sizeof(float));
  frozen_values_ = device.allocate(frozen_size_ * sizeof(float));
  training_statistics_ = device.allocate(statistics_size_ * sizeof(float));
  kept_statistics_ = device.allocate(statistics_size_ * sizeof(float));
  evaluation_statistics_ = device.allocate(statistics_size_ * sizeof(float));
}

void Parameters::keep_statistics() {
  device_.copy(kept_statistics_.get(), training_statistics_.get(),
               statistics_size_ * sizeof(float));
}

void Parameters::bring_back_statistics() {
  device_.copy(training_statistics_.get(), kept_statistics_.get(),
               statistics_size_ * sizeof(float));
}

void Parameters::list_state(StateVisitor& visitor) {
  for (const Parameter& tensor : tensors_) {
    visitor.values(std::string(kParameterState) + tensor.name,
                   values().subspan(tensor.offset, tensor.elements), StateShare::replicated,
                   StatePlace::device);
  }
  for (const Parameter& tensor : frozen_) {
    visitor.values("frozen/" + tensor.name, frozen_values().subspan(tensor.offset, tensor.elements),
                   StateShare::replicated, StatePlace::device);
  }
  for (const Parameter& tensor : statistics_) {
    visitor.values("statistics/" + tensor.name,
                   training_statistics().subspan(tensor.offset, tensor.elements), StateShare::own,
                   StatePlace::device, StateMerge::mean);
  }
}

void Parameters::initialise(std::uint64_t seed) {
  std::vector<float> host(size_);
  for (const Parameter& t : tensors_) fill(t, seed, host);
  device_.upload(values().data(), host.data(), size_ * sizeof(float));
  host.resize(frozen_size_);
  for (const Parameter& t : frozen_) fill(t, seed, host);
  device_.upload(frozen_values().data(), host.data(), frozen_size_ * sizeof(float));
  host.resize(statistics_size_);
  for (const Parameter& t : statistics_) fill(t, seed, host);
  for (const std::span<float> copy : {training_statistics(), evaluation_statistics()}) {
    device_.upload(copy.data(), host.data(), statistics_size_ * sizeof(float));
  }
}

void Parameters::export_torch(const Parameter& tensor, std::span<const float> buffer,
                              std::span<float> torch_order) {
  DP_ASSERT(torch_order.size() == tensor.elements, "{}: {} elements", tensor.name,
            torch_order.size());
  const auto values = buffer.subspan(tensor.offset, tensor.elements);
  for_each_element(
      tensor, [&](std::size_t torch, std::size_t memory) { torch_order[torch] = values[memory]; });
}

void Parameters::import_torch(const Parameter& tensor, std::span<const float> torch_order,
                              std::span<float> buffer) {
  DP_ASSERT(torch_order.size() == tensor.elements, "{}: {} elements", tensor.name,
            torch_order.size());
  const auto values = buffer.subspan(tensor.offset, tensor.elements);
  for_each_element(
      tensor, [&](std::size_t torch, std::size_t memory) { values[memory] = torch_order[torch]; });
}

}  // namespace dp::net
