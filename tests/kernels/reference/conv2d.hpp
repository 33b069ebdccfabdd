// The readable twin of kernels/conv2d.hpp: convolution in plain loops, float or double.
// Layouts: x N H W C, weights K R S C, y N P Q K; dense arrays, sizes are the caller's promise.
#pragma once

#include <cstddef>

#include "kernels/extent.hpp"
#include "kernels/tensor.hpp"

namespace dp::reference {

struct ConvShape {
  Shape x, y;
  Extent kernel = 1;
  std::size_t stride = 1;
  Extent padding = 0;
};

// Calls body(index into x, into weights, into y) for every product of the convolution. All three
// directions are sums over the same products.
template <class Body>
void for_each_product(const ConvShape& c, const Body& body) {
  const auto [N, H, W, C] = c.x;
  const auto [n_, P, Q, K] = c.y;
  static_cast<void>(n_);
  for (std::size_t n = 0; n < N; ++n)
    for (std::size_t p = 0; p < P; ++p)
      for (std::size_t q = 0; q < Q; ++q)
        for (std::size_t r = 0; r < c.kernel.h; ++r)
          for (std::size_t s = 0; s < c.kernel.w; ++s) {
            // Positions in the padded image; unsigned, so "left of it" is a very large number.
            const std::size_t h = p * c.stride + r - c.padding.h;
            const std::size_t w = q * c.stride + s - c.padding.w;
            if (h >= H || w >= W) continue;
            for (std::size_t k = 0; k < K; ++k)
              for (std::size_t i = 0; i < C; ++i)
                body(((n * H + h) * W + w) * C + i, ((k * c.kernel.h + r) * c.kernel.w + s) * C + i,
                     ((n * P + p) * Q + q) * K + k);
          }
}

// y[n,p,q,k] = sum over r, s, i of x[n, p stride + r - padding.h, q stride + s - padding.w, i] *
// weights[k,r,s,i]
template <class T>
void conv2d_forward(const ConvShape& c, const T* x, const T* weights, T* y) {
  for (std::size_t i = 0; i < c.y.elements(); ++i) y[i] = 0;
  for_each_product(
      c, [=](std::size_t xi, std::size_t wi, std::size_t yi) { y[yi] += x[xi] * weights[wi]; });
}

template <class T>
void conv2d_backward_data(const ConvShape& c, const T* dy, const T* weights, T* dx) {
  for (std::size_t i = 0; i < c.x.elements(); ++i) dx[i] = 0;
  for_each_product(
      c, [=](std::size_t xi, std::size_t wi, std::size_t yi) { dx[xi] += dy[yi] * weights[wi]; });
}

template <class T>
void conv2d_backward_weights(const ConvShape& c, const T* x, const T* dy, T* weight_gradient) {
  const std::size_t count = c.y.c * c.kernel.area() * c.x.c;
  for (std::size_t i = 0; i < count; ++i) weight_gradient[i] = 0;
  for_each_product(c, [=](std::size_t xi, std::size_t wi, std::size_t yi) {
    weight_gradient[wi] += x[xi] * dy[yi];
  });
}

}  // namespace dp::reference
