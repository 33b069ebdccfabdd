// Loops over the device's threads, and bf16 loads and stores, for kernels/cpu.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/device.hpp"
#include "kernels/tensor.hpp"

namespace dp::cpu {

// Calls body(i) for i in [0, count) on the device's threads. The assignment of i to threads is
// fixed by `count` and the number of threads; calls with different i must not touch the same
// memory.
template <class Body>
void parallel_for(const CpuDevice& device, std::size_t count, const Body& body) {
  const int threads = device.threads();
  if (threads == 1 || count <= 1) {
    for (std::size_t i = 0; i < count; ++i) body(i);
    return;
  }
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::size_t i = 0; i < count; ++i) body(i);
}

// Splits [0, size) into pieces of a fixed length, so that results do not depend on the number of
// threads, and calls body(piece, begin, end).
inline constexpr std::size_t kPiece = 16384;
template <class Body>
void parallel_pieces(const CpuDevice& device, std::size_t size, const Body& body) {
  const std::size_t pieces = (size + kPiece - 1) / kPiece;
  parallel_for(device, pieces, [&](std::size_t piece) {
    const std::size_t begin = piece * kPiece;
    body(piece, begin, begin + kPiece < size ? begin + kPiece : size);
  });
}

[[nodiscard]] inline float load(float value) { return value; }
[[nodiscard]] inline float load(bf16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

template <class T>
[[nodiscard]] T store(float value);
template <>
[[nodiscard]] inline float store<float>(float value) {
  return value;
}
// Rounds to nearest, ties to even. A NaN stays a NaN: the top bits of its payload are kept and the
// quiet bit is set.
template <>
[[nodiscard]] inline bf16 store<bf16>(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t nan = (bits >> 16) | 0x40u;
  return {static_cast<std::uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? nan : rounded)};
}

// Calls body with a null pointer of the element type: with_type(type, [&](auto* tag) {...}).
template <class Body>
void with_type(DataType type, const Body& body) {
  if (type == DataType::f32) {
    body(static_cast<float*>(nullptr));
  } else {
    body(static_cast<bf16*>(nullptr));
  }
}

}  // namespace dp::cpu
