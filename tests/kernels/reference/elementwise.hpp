// The readable twin of kernels/elementwise.hpp and kernels/gelu.hpp.
#pragma once

#include <cmath>
#include <cstddef>
#include <numbers>

namespace dp::reference {

inline constexpr double kSqrtHalf = 1 / std::numbers::sqrt2;

template <class T>
void relu_forward(std::size_t count, const T* x, T* y) {
  for (std::size_t i = 0; i < count; ++i) y[i] = x[i] < 0 ? T(0) : x[i];
}

template <class T>
void relu_backward(std::size_t count, const T* y, const T* dy, T* dx) {
  for (std::size_t i = 0; i < count; ++i) dx[i] = y[i] > 0 ? dy[i] : T(0);
}

template <class T>
void gelu_forward(std::size_t count, const T* x, T* y) {
  for (std::size_t i = 0; i < count; ++i) y[i] = x[i] * std::erfc(-x[i] * kSqrtHalf) / 2;
}

template <class T>
void gelu_backward(std::size_t count, const T* x, const T* dy, T* dx) {
  for (std::size_t i = 0; i < count; ++i) {
    const T density = std::exp(-x[i] * x[i] / 2) * kSqrtHalf * std::numbers::inv_sqrtpi;
    dx[i] = dy[i] * (std::erfc(-x[i] * kSqrtHalf) / 2 + x[i] * density);
  }
}

template <class T>
void scale(std::size_t count, const T* x, T factor, T* y) {
  for (std::size_t i = 0; i < count; ++i) y[i] = factor * x[i];
}

template <class T>
void add(std::size_t count, const T* a, const T* b, T* y) {
  for (std::size_t i = 0; i < count; ++i) y[i] = a[i] + b[i];
}

}  // namespace dp::reference
