// The readable twins of kernels/pool.hpp and kernels/max_pool.hpp. NHWC.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/pooling.hpp"
#include "kernels/tensor.hpp"

namespace dp::reference {

// Calls body(index into x, index into y, place in the window) for the pixels of every window, row
// by row; padding is left out.
template <class Body>
void for_each_in_window(const Shape& x, const Shape& y, const Pooling& pooling, const Body& body) {
  for (std::size_t n = 0; n < y.n; ++n)
    for (std::size_t p = 0; p < y.h; ++p)
      for (std::size_t q = 0; q < y.w; ++q)
        for (std::size_t r = 0; r < pooling.window.h; ++r)
          for (std::size_t s = 0; s < pooling.window.w; ++s) {
            // Above and left of the image these are very large.
            const std::size_t h = p * pooling.stride.h + r - pooling.padding.h;
            const std::size_t w = q * pooling.stride.w + s - pooling.padding.w;
            if (h >= x.h || w >= x.w) continue;
            for (std::size_t c = 0; c < y.c; ++c)
              body(((n * x.h + h) * x.w + w) * x.c + c, ((n * y.h + p) * y.w + q) * y.c + c,
                   r * pooling.window.w + s);
          }
}

// For each value of y: by what its sum is divided.
template <class T>
void average_pool_divisors(const Shape& x_shape, const Shape& y_shape, const Pooling& pooling,
                           T* divisors) {
  const T area = static_cast<T>(pooling.window.area());
  for (std::size_t i = 0; i < y_shape.elements(); ++i)
    divisors[i] = pooling.counts_padding ? area : 0;
  if (pooling.counts_padding) return;
  for_each_in_window(x_shape, y_shape, pooling,
                     [=](std::size_t, std::size_t yi, std::size_t) { divisors[yi] += 1; });
}

template <class T>
void average_pool_forward(const Shape& x_shape, const Shape& y_shape, const Pooling& pooling,
                          const T* x, const T* divisors, T* y) {
  for (std::size_t i = 0; i < y_shape.elements(); ++i) y[i] = 0;
  for_each_in_window(x_shape, y_shape, pooling, [=](std::size_t xi, std::size_t yi, std::size_t) {
    y[yi] += x[xi] / divisors[yi];
  });
}

template <class T>
void average_pool_backward(const Shape& x_shape, const Shape& y_shape, const Pooling& pooling,
                           const T* dy, const T* divisors, T* dx) {
  for (std::size_t i = 0; i < x_shape.elements(); ++i) dx[i] = 0;
  for_each_in_window(x_shape, y_shape, pooling, [=](std::size_t xi, std::size_t yi, std::size_t) {
    dx[xi] += dy[yi] / divisors[yi];
  });
}

// places: for each value of y, where in its window the largest x is.
template <class T>
void max_pool_forward(const Shape& x_shape, const Shape& y_shape, const Pooling& pooling,
                      const T* x, T* y, std::uint8_t* places) {
  std::vector<bool> has_value(y_shape.elements());
  for_each_in_window(x_shape, y_shape, pooling,
                     [&](std::size_t xi, std::size_t yi, std::size_t place) {
                       if (has_value[yi] && !(x[xi] > y[yi]) && !std::isnan(x[xi])) return;
                       has_value[yi] = true;
                       y[yi] = x[xi];
                       places[yi] = static_cast<std::uint8_t>(place);
                     });
}

template <class T>
void max_pool_backward(const Shape& x_shape, const Shape& y_shape, const Pooling& pooling,
                       const T* dy, const std::uint8_t* places, T* dx) {
  for (std::size_t i = 0; i < x_shape.elements(); ++i) dx[i] = 0;
  for_each_in_window(x_shape, y_shape, pooling,
                     [=](std::size_t xi, std::size_t yi, std::size_t place) {
                       if (places[yi] == place) dx[xi] += dy[yi];
                     });
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
