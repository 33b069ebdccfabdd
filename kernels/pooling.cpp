#include "kernels/pooling.hpp"

#include "kernels/base/error.hpp"

namespace dp {

namespace {

std::size_t windows(std::size_t pixels, std::size_t length, std::size_t stride,
                    std::size_t padding) {
  DP_ASSERT(stride >= 1 && length >= 1 && 2 * padding <= length && pixels + 2 * padding >= length,
            "a window of {} pixels with stride {} does not fit {} pixels with padding {}", length,
            stride, pixels, padding);
  return (pixels + 2 * padding - length) / stride + 1;
}

PoolingLine line(std::size_t pixels, std::size_t windows, std::size_t length, std::size_t stride,
                 std::size_t padding) {
  return {static_cast<unsigned>(pixels), static_cast<unsigned>(windows),
          static_cast<unsigned>(length), static_cast<unsigned>(stride),
          static_cast<unsigned>(padding)};
}

}  // namespace

Shape pooled_shape(const Shape& x, const Pooling& p) {
  return {x.n, windows(x.h, p.window.h, p.stride.h, p.padding.h),
          windows(x.w, p.window.w, p.stride.w, p.padding.w), x.c};
}

PoolingPlane::PoolingPlane(const Shape& x, const Pooling& p, const Shape& y)
    : rows(line(x.h, y.h, p.window.h, p.stride.h, p.padding.h)),
      columns(line(x.w, y.w, p.window.w, p.stride.w, p.padding.w)),
      counts_padding(p.counts_padding) {
  DP_ASSERT(y == pooled_shape(x, p), "{}x{}x{}x{} pooled to {}x{}x{}x{}", x.n, x.h, x.w, x.c, y.n,
            y.h, y.w, y.c);
}

}  // namespace dp
