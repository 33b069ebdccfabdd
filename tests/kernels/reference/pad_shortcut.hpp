// The readable twin of kernels/pad_shortcut.hpp. NHWC.
#pragma once

#include <cstddef>

#include "kernels/tensor.hpp"

namespace dp::reference {

// Calls body(index into x, index into y) for every value that is taken over.
template <class Body>
void for_each_taken(const Shape& x, const Shape& y, std::size_t stride, const Body& body) {
  const std::size_t first = (y.c - x.c) / 2;
  for (std::size_t n = 0; n < y.n; ++n)
    for (std::size_t p = 0; p < y.h; ++p)
      for (std::size_t q = 0; q < y.w; ++q)
        for (std::size_t c = 0; c < x.c; ++c)
          body(((n * x.h + p * stride) * x.w + q * stride) * x.c + c,
               ((n * y.h + p) * y.w + q) * y.c + first + c);
}

template <class T>
void pad_shortcut_forward(const Shape& x_shape, const Shape& y_shape, std::size_t stride,
                          const T* x, T* y) {
  for (std::size_t i = 0; i < y_shape.elements(); ++i) y[i] = 0;
  for_each_taken(x_shape, y_shape, stride, [=](std::size_t xi, std::size_t yi) { y[yi] = x[xi]; });
}

template <class T>
void pad_shortcut_backward(const Shape& x_shape, const Shape& y_shape, std::size_t stride,
                           const T* dy, T* dx) {
  for (std::size_t i = 0; i < x_shape.elements(); ++i) dx[i] = 0;
  for_each_taken(x_shape, y_shape, stride,
                 [=](std::size_t xi, std::size_t yi) { dx[xi] = dy[yi]; });
}

}  // namespace dp::reference
