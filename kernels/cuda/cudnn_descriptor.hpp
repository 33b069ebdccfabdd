// Owning wrapper of cuDNN's backend descriptors. A descriptor is a set of attributes: they are set,
// the descriptor is finalised, and from then on it is read-only.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kernels/cuda/library_check.hpp"

namespace dp::cuda {

class Descriptor {
 public:
  Descriptor() = default;  // no descriptor
  explicit Descriptor(cudnnBackendDescriptorType_t type) {
    DP_CHECK_CUDNN(cudnn_api().create_descriptor(type, &descriptor_));
  }
  ~Descriptor() {
    if (descriptor_ != nullptr) static_cast<void>(cudnn_api().destroy_descriptor(descriptor_));
  }
  Descriptor(Descriptor&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, nullptr)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  [[nodiscard]] cudnnBackendDescriptor_t get() const { return descriptor_; }
  [[nodiscard]] explicit operator bool() const { return descriptor_ != nullptr; }

  template <class T>
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
           std::span<const T> values) {
    DP_CHECK_CUDNN(cudnn_api().set_attribute(
        descriptor_, name, type, static_cast<std::int64_t>(values.size()), values.data()));
  }
  template <class T>
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, T value) {
    set(name, type, std::span<const T>(&value, 1));
  }
  void set(cudnnBackendAttributeName_t name, const Descriptor& part) {
    set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, part.get());
  }

  void finalize() { DP_CHECK_CUDNN(try_finalize()); }
  // Returns the status instead of throwing, for descriptors that cuDNN may legitimately refuse.
  [[nodiscard]] cudnnStatus_t try_finalize() { return cudnn_api().finalize(descriptor_); }

  template <class T>
  [[nodiscard]] T get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type) const {
    T value{};
    std::int64_t count = 0;
    DP_CHECK_CUDNN(cudnn_api().get_attribute(descriptor_, name, type, 1, &count, &value));
    return value;
  }
  // Returns at most `most` values.
  template <class T>
  [[nodiscard]] std::vector<T> get_list(cudnnBackendAttributeName_t name,
                                        cudnnBackendAttributeType_t type, std::size_t most) const {
    std::vector<T> values(most);
    std::int64_t count = 0;
    DP_CHECK_CUDNN(cudnn_api().get_attribute(
        descriptor_, name, type, static_cast<std::int64_t>(most), &count, values.data()));
    if (static_cast<std::size_t>(count) < most) values.resize(static_cast<std::size_t>(count));
    return values;
  }
  // Like get_list(), for an attribute that is a list of descriptors. cuDNN fills in existing
  // descriptors, so they are created first.
  [[nodiscard]] std::vector<Descriptor> get_descriptors(cudnnBackendAttributeName_t name,
                                                        cudnnBackendDescriptorType_t type,
                                                        std::size_t most) const {
    std::vector<Descriptor> owners;
    std::vector<cudnnBackendDescriptor_t> raw;
    for (std::size_t i = 0; i < most; ++i) raw.push_back(owners.emplace_back(type).get());
    std::int64_t count = 0;
    DP_CHECK_CUDNN(cudnn_api().get_attribute(descriptor_, name, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                             static_cast<std::int64_t>(most), &count, raw.data()));
    if (static_cast<std::size_t>(count) < most) owners.resize(static_cast<std::size_t>(count));
    return owners;
  }

 private:
  cudnnBackendDescriptor_t descriptor_ = nullptr;
};

}  // namespace dp::cuda
