// A backend descriptor of the fake cuDNN: attributes by name, with the type under which they were
// set. Properties without an attribute of their own (an engine's notes) are computed by
// fake_cudnn.cpp.
#pragma once

#include <cudnn.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace dp::cuda_on_cpu {

// Thrown inside the fake; at its boundary it becomes a status and the last error's text.
struct FakeError {
  cudnnStatus_t status;
  std::string text;
};
[[noreturn]] inline void refuse(std::string text, cudnnStatus_t status = CUDNN_STATUS_BAD_PARAM) {
  throw FakeError{status, std::move(text)};
}
inline void demand(bool holds, const char* text) {
  if (!holds) refuse(text);
}

struct FakeDescriptor;
using DescriptorPointer = std::shared_ptr<FakeDescriptor>;

struct FakeAttribute {
  cudnnBackendAttributeType_t type;
  std::vector<std::byte> bytes;
  std::vector<DescriptorPointer> parts;  // of CUDNN_TYPE_BACKEND_DESCRIPTOR
};

struct FakeDescriptor {
  cudnnBackendDescriptorType_t type;
  bool is_final = false;
  std::map<cudnnBackendAttributeName_t, FakeAttribute> attributes;

  [[nodiscard]] const FakeAttribute& attribute(cudnnBackendAttributeName_t name) const {
    const auto it = attributes.find(name);
    if (it == attributes.end()) {
      refuse("attribute " + std::to_string(name) + " of a descriptor of type " +
             std::to_string(type) + " was not set");
    }
    return it->second;
  }
  template <class T>
  [[nodiscard]] std::vector<T> list(cudnnBackendAttributeName_t name) const {
    const FakeAttribute& found = attribute(name);
    std::vector<T> values(found.bytes.size() / sizeof(T));
    std::memcpy(values.data(), found.bytes.data(), values.size() * sizeof(T));
    return values;
  }
  template <class T>
  [[nodiscard]] T one(cudnnBackendAttributeName_t name) const {
    const std::vector<T> values = list<T>(name);
    if (values.size() != 1) {
      refuse("attribute " + std::to_string(name) + " has " + std::to_string(values.size()) +
             " values");
    }
    return values.front();
  }
  [[nodiscard]] DescriptorPointer part(cudnnBackendAttributeName_t name,
                                       cudnnBackendDescriptorType_t wanted) const {
    const FakeAttribute& found = attribute(name);
    if (found.parts.size() != 1 || found.parts.front()->type != wanted) {
      refuse("attribute " + std::to_string(name) + " is another descriptor than it must be");
    }
    return found.parts.front();
  }
};

}  // namespace dp::cuda_on_cpu
