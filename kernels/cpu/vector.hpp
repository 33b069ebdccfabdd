// Short vectors of floats, with bf16 loads and stores, on g++'s vector extensions. Loops over
// channel slices are thus vector code by construction and do not depend on the optimiser.
//
// A Vector<W> is made of parts of 8 floats, one AVX2 register each (if a vector is wider than the
// registers of the target, g++ takes it apart element by element). Vector<1> is a single float, for
// odd channel counts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels/tensor.hpp"

namespace dp::cpu {

// The elements of one register; a plain number for width 1.
template <std::size_t N>
struct PartTypes;
template <>
struct PartTypes<8> {
  typedef float Float __attribute__((vector_size(32)));
  typedef std::uint32_t Bits __attribute__((vector_size(32)));
  typedef std::uint16_t Half __attribute__((vector_size(16)));
  static Bits widen(Half half) { return __builtin_convertvector(half, Bits); }
  static Half narrow(Bits bits) { return __builtin_convertvector(bits, Half); }
};
template <>
struct PartTypes<1> {
  using Float = float;
  using Bits = std::uint32_t;
  using Half = std::uint16_t;
  static Bits widen(Half half) { return half; }
  static Half narrow(Bits bits) { return static_cast<Half>(bits); }
};

template <std::size_t W>
struct Vector {
  static_assert(W == 1 || W % 8 == 0);
  static constexpr std::size_t kPart = W == 1 ? 1 : 8, kParts = W / kPart;
  using Types = PartTypes<kPart>;

  std::array<typename Types::Float, kParts> parts{};

  // op(i) gives part i. This is not a loop, because only constant indices let the parts stay in
  // registers.
  template <class Op>
  [[nodiscard]] static Vector make(const Op& op) {
    return [&]<std::size_t... I>(std::index_sequence<I...>) { return Vector{{op(I)...}}; }
    (std::make_index_sequence<kParts>{});
  }
  template <class Body>
  static void for_each_part(const Body& body) {
    [&]<std::size_t... I>(std::index_sequence<I...>) { (body(I), ...); }
    (std::make_index_sequence<kParts>{});
  }
  friend Vector operator+(const Vector& a, const Vector& b) {
    return make([&](std::size_t i) { return a.parts[i] + b.parts[i]; });
  }
  friend Vector operator-(const Vector& a, const Vector& b) {
    return make([&](std::size_t i) { return a.parts[i] - b.parts[i]; });
  }
  friend Vector operator*(const Vector& a, const Vector& b) {
    return make([&](std::size_t i) { return a.parts[i] * b.parts[i]; });
  }
  friend Vector operator*(const Vector& a, float b) {
    return make([&](std::size_t i) { return a.parts[i] * b; });
  }
  Vector& operator+=(const Vector& more) { return *this = *this + more; }
};

// value if test > 0, else 0, lane by lane; a NaN in test gives 0.
template <std::size_t W>
[[nodiscard]] inline Vector<W> where_positive(const Vector<W>& test, const Vector<W>& value) {
  using Float = typename Vector<W>::Types::Float;
  return Vector<W>::make(
      [&](std::size_t i) { return test.parts[i] > 0.0f ? value.parts[i] : Float{}; });
}
// 0 if value < 0, else value, lane by lane. A NaN stays a NaN, so that it is noticed.
template <std::size_t W>
[[nodiscard]] inline Vector<W> relu(const Vector<W>& value) {
  using Float = typename Vector<W>::Types::Float;
  return Vector<W>::make(
      [&](std::size_t i) { return value.parts[i] < 0.0f ? Float{} : value.parts[i]; });
}

template <std::size_t W>
[[nodiscard]] inline Vector<W> load_vector(const float* from) {
  return Vector<W>::make([&](std::size_t i) {
    typename Vector<W>::Types::Float part;
    std::memcpy(&part, from + i * Vector<W>::kPart, sizeof(part));
    return part;
  });
}
template <std::size_t W>
[[nodiscard]] inline Vector<W> load_vector(const bf16* from) {
  using Types = typename Vector<W>::Types;
  return Vector<W>::make([&](std::size_t i) {
    typename Types::Half half;
    std::memcpy(&half, from + i * Vector<W>::kPart, sizeof(half));
    const typename Types::Bits bits = Types::widen(half) << 16;
    typename Types::Float part;
    std::memcpy(&part, &bits, sizeof(part));
    return part;
  });
}

template <std::size_t W>
inline void store_vector(float* to, const Vector<W>& value) {
  Vector<W>::for_each_part([&](std::size_t i) {
    std::memcpy(to + i * Vector<W>::kPart, &value.parts[i], sizeof(value.parts[i]));
  });
}
// Rounds to nearest, ties to even; the same bits as store<bf16> in parallel.hpp.
template <std::size_t W>
inline void store_vector(bf16* to, const Vector<W>& value) {
  using Types = typename Vector<W>::Types;
  Vector<W>::for_each_part([&](std::size_t i) {
    typename Types::Bits bits;
    std::memcpy(&bits, &value.parts[i], sizeof(bits));
    const typename Types::Bits rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    const typename Types::Bits nan = (bits >> 16) | 0x40u;
    const typename Types::Bits chosen = (bits & 0x7FFFFFFFu) > 0x7F800000u ? nan : rounded;
    const typename Types::Half half = Types::narrow(chosen);
    std::memcpy(to + i * Vector<W>::kPart, &half, sizeof(half));
  });
}

}  // namespace dp::cpu
