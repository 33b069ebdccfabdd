// The readable twin of kernels/pool.hpp. NHWC.
#pragma once

#include <cstddef>

#include "kernels/tensor.hpp"

namespace dp::reference {

// Calls body(index into x, index into y) for every pixel of every window.
template <class Body>
void for_each_in_window(const Shape& x, const Shape& y, std::size_t window, std::size_t stride,
                        const Body& body) {
  for (std::size_t n = 0; n < y.n; ++n)
    for (std::size_t p = 0; p < y.h; ++p)
      for (std::size_t q = 0; q < y.w; ++q)
        for (std::size_t r = 0; r < window; ++r)
          for (std::size_t s = 0; s < window; ++s)
            for (std::size_t c = 0; c < y.c; ++c)
              body(((n * x.h + p * stride + r) * x.w + q * stride + s) * x.c + c,
                   ((n * y.h + p) * y.w + q) * y.c + c);
}

template <class T>
void average_pool_forward(const Shape& x_shape, const Shape& y_shape, std::size_t window,
                          std::size_t stride, const T* x, T* y) {
  const T area = static_cast<T>(window * window);
  for (std::size_t i = 0; i < y_shape.elements(); ++i) y[i] = 0;
  for_each_in_window(x_shape, y_shape, window, stride,
                     [=](std::size_t xi, std::size_t yi) { y[yi] += x[xi] / area; });
}

template <class T>
void average_pool_backward(const Shape& x_shape, const Shape& y_shape, std::size_t window,
                           std::size_t stride, const T* dy, T* dx) {
  const T area = static_cast<T>(window * window);
  for (std::size_t i = 0; i < x_shape.elements(); ++i) dx[i] = 0;
  for_each_in_window(x_shape, y_shape, window, stride,
                     [=](std::size_t xi, std::size_t yi) { dx[xi] += dy[yi] / area; });
}

// y: N x C
template <class T>
void global_average_pool_forward(const Shape& shape, const T* x, T* y) {
  for (std::size_t i = 0; i < shape.n * shape.c; ++i) y[i] = 0;
  for (std::size_t i = 0; i < shape.elements(); ++i) {
    const std::size_t n = i / (shape.pixels() * shape.c), c = i % shape.c;
    y[n * shape.c + c] += x[i] / static_cast<T>(shape.pixels());
  }
}

template <class T>
void global_average_pool_backward(const Shape& shape, const T* dy, T* dx) {
  for (std::size_t i = 0; i < shape.elements(); ++i) {
    const std::size_t n = i / (shape.pixels() * shape.c), c = i % shape.c;
    dx[i] = dy[n * shape.c + c] / static_cast<T>(shape.pixels());
  }
}

}  // namespace dp::reference
