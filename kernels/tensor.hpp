// Tensors as the operations see them: a pointer, a logical shape N, H, W, C, a data type and the
// order in memory. Views own nothing.
//
// Memory order: [N][C / b][H][W][b] with the channel block b. b == C is plain NHWC; b == 16 (or 8)
// is the blocked layout nChw16c that suits vector units. The number b describes both layouts, so an
// operation written for blocks also handles NHWC.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace dp {

enum class DeviceKind : std::uint8_t { cpu, cuda };
enum class DataType : std::uint8_t { f32, bf16 };

[[nodiscard]] constexpr std::size_t size_of(DataType type) { return type == DataType::f32 ? 4 : 2; }
[[nodiscard]] constexpr const char* name_of(DataType type) {
  return type == DataType::f32 ? "fp32" : "bf16";
}

// bfloat16 storage: the upper half of an IEEE float.
struct bf16 {
  std::uint16_t bits;
};

struct Shape {
  std::size_t n = 0, h = 1, w = 1, c = 1;

  [[nodiscard]] constexpr std::size_t pixels() const { return h * w; }
  [[nodiscard]] constexpr std::size_t elements() const { return n * h * w * c; }
  friend bool operator==(const Shape&, const Shape&) = default;
};

struct TensorDesc {
  Shape shape;
  DataType type = DataType::f32;
  std::size_t channel_block = 0;  // divides shape.c; == shape.c is NHWC

  [[nodiscard]] static constexpr TensorDesc nhwc(Shape shape, DataType type = DataType::f32) {
    return {shape, type, shape.c};
  }
  [[nodiscard]] constexpr bool is_nhwc() const { return channel_block == shape.c; }
  [[nodiscard]] constexpr std::size_t bytes() const { return shape.elements() * size_of(type); }
  friend bool operator==(const TensorDesc&, const TensorDesc&) = default;
};

struct TensorView {
  TensorDesc desc;
  void* data = nullptr;

  template <class T>
  [[nodiscard]] T* as() const {
    return static_cast<T*>(data);
  }
  [[nodiscard]] explicit operator bool() const { return data != nullptr; }
};

// "128x32x32x64 fp32 nChw16c", for messages and logs.
[[nodiscard]] std::string to_string(const TensorDesc& desc);

}  // namespace dp
