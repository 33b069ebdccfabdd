// The readable twin of kernels/elementwise.hpp.
#pragma once

#include <cstddef>

namespace dp::reference {

template <class T>
void relu_forward(std::size_t count, const T* x, T* y) {
  for (std::size_t i = 0; i < count; ++i) y[i] = x[i] < 0 ? T(0) : x[i];
}

template <class T>
void relu_backward(std::size_t count, const T* y, const T* dy, T* dx) {
  for (std::size_t i = 0; i < count; ++i) dx[i] = y[i] > 0 ? dy[i] : T(0);
}

template <class T>
void add(std::size_t count, const T* a, const T* b, T* y) {
  for (std::size_t i = 0; i < count; ++i) y[i] = a[i] + b[i];
}

}  // namespace dp::reference
