// The geometry of pooling windows, shared by max pooling and average pooling.
#pragma once

#include "kernels/base/hd.hpp"
#include "kernels/extent.hpp"
#include "kernels/tensor.hpp"

namespace dp {

// Window (p, q) begins at row p * stride.h - padding.h and column q * stride.w - padding.w. Only
// pixels inside the image count. Padding is at most half a window, so every window contains at
// least one pixel.
struct Pooling {
  Extent window = 2, stride = 2, padding = 0;
  // If true, average pooling divides by the window's size, padding included (torch's default,
  // count_include_pad); if false, by the number of the window's pixels inside the image.
  bool counts_padding = true;
};

// y's shape: its height is (H + 2 padding.h - window.h) / stride.h + 1, rounded down; its width
// likewise. Throws Error(internal) for windows that do not fit.
[[nodiscard]] Shape pooled_shape(const Shape& x, const Pooling& pooling);

// The windows along one dimension.
struct PoolingLine {
  unsigned pixels, windows, length, stride, padding;

  // Window p covers pixels [begin(p), end(p)).
  [[nodiscard]] DP_HD unsigned begin(unsigned p) const {
    return p * stride > padding ? p * stride - padding : 0;
  }
  [[nodiscard]] DP_HD unsigned end(unsigned p) const {
    const unsigned behind = p * stride + length - padding;
    return behind < pixels ? behind : pixels;
  }
  // Pixel h is in windows [first(h), last(h)).
  [[nodiscard]] DP_HD unsigned first(unsigned h) const {
    return h + padding < length ? 0 : (h + padding - length) / stride + 1;
  }
  [[nodiscard]] DP_HD unsigned last(unsigned h) const {
    const unsigned behind = (h + padding) / stride + 1;
    return behind < windows ? behind : windows;
  }
  // The position of pixel h in window p, from the window's start.
  [[nodiscard]] DP_HD unsigned place(unsigned h, unsigned p) const {
    return h + padding - p * stride;
  }
};

struct PoolingPlane {
  PoolingLine rows, columns;
  bool counts_padding;

  // Throws Error(internal) if y is not pooled_shape(x).
  PoolingPlane(const Shape& x, const Pooling& pooling, const Shape& y);

  // The divisor of average pooling for window (p, q).
  [[nodiscard]] DP_HD unsigned divisor(unsigned p, unsigned q) const {
    return counts_padding ? rows.length * columns.length
                          : (rows.end(p) - rows.begin(p)) * (columns.end(q) - columns.begin(q));
  }
};

}  // namespace dp
