// The computation of the fake cuDNN: one convolution in one direction, read from an operation
// graph's descriptors.
#pragma once

#include <array>

#include "tests/cuda_on_cpu/fake_cudnn_descriptor.hpp"
#include "tests/kernels/reference/conv2d.hpp"

namespace dp::cuda_on_cpu {

struct FakeTensor {
  std::int64_t id = 0;
  std::array<std::int64_t, 4> dims{};  // N C H W
  DataType type = DataType::f32;

  [[nodiscard]] std::size_t elements() const {
    return static_cast<std::size_t>(dims[0] * dims[1] * dims[2] * dims[3]);
  }
};

enum class FakeDirection { forward, backward_data, backward_weights };

struct FakeConvolution {
  FakeDirection direction = FakeDirection::forward;
  FakeTensor x, w, y;
  reference::ConvShape shape{};

  // Reads an operation's descriptor; refuses inconsistent attributes.
  explicit FakeConvolution(const FakeDescriptor& operation);

  // Computes in double, rounds once. `is_tf32`: inputs are rounded to TF32 first. `noise`: adds an
  // error of this relative size.
  void run(const void* x_data, const void* w_data, const void* y_data, bool is_tf32,
           double noise) const;
};

}  // namespace dp::cuda_on_cpu
