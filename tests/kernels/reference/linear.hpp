// The readable twin of kernels/linear.hpp: x N x C, weights K x C, y N x K.
#pragma once

#include <cstddef>

namespace dp::reference {

struct LinearShape {
  std::size_t n, c, k;
};

// bias may be null.
template <class T>
void linear_forward(const LinearShape& s, const T* x, const T* weights, const T* bias, T* y) {
  for (std::size_t n = 0; n < s.n; ++n)
    for (std::size_t k = 0; k < s.k; ++k) {
      T sum = bias != nullptr ? bias[k] : T(0);
      for (std::size_t c = 0; c < s.c; ++c) sum += x[n * s.c + c] * weights[k * s.c + c];
      y[n * s.k + k] = sum;
    }
}

template <class T>
void linear_backward_data(const LinearShape& s, const T* dy, const T* weights, T* dx) {
  for (std::size_t n = 0; n < s.n; ++n)
    for (std::size_t c = 0; c < s.c; ++c) {
      T sum = 0;
      for (std::size_t k = 0; k < s.k; ++k) sum += dy[n * s.k + k] * weights[k * s.c + c];
      dx[n * s.c + c] = sum;
    }
}

// bias_gradient may be null.
template <class T>
void linear_backward_weights(const LinearShape& s, const T* x, const T* dy, T* weight_gradient,
                             T* bias_gradient) {
  for (std::size_t k = 0; k < s.k; ++k) {
    T bias = 0;
    for (std::size_t n = 0; n < s.n; ++n) bias += dy[n * s.k + k];
    if (bias_gradient != nullptr) bias_gradient[k] = bias;
    for (std::size_t c = 0; c < s.c; ++c) {
      T sum = 0;
      for (std::size_t n = 0; n < s.n; ++n) sum += dy[n * s.k + k] * x[n * s.c + c];
      weight_gradient[k * s.c + c] = sum;
    }
  }
}

}  // namespace dp::reference
