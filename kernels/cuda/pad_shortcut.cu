// The shortcut as a walk over the rows (pixels) of the output, y in forward and dx in backward. A
// thread handles a few neighbouring channels (rows.cuh), copied as a pack or set to zero.
#include "kernels/pad_shortcut.hpp"

#include "kernels/cuda/device.hpp"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/twins.hpp"

namespace dp::cuda {

namespace {

// x has few channels and all pixels; y has many channels and every stride-th row and column. A pack
// has N channels. In y, `first` packs of new channels come before the channels of x.
struct PadShortcut {
  unsigned x_height, x_width, y_height, y_width, x_packs, y_packs, first, stride;
};

// Each row of a block's threads writes one row of y (n, p, q) at a time.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    pad_forward_kernel(RowGrid grid, PadShortcut s, const T* x, T* y) {
  const RowThread thread = row_thread(grid);
  const unsigned from_pack = thread.pack - s.first;  // very large for a new channel
  for_rows<4>(thread, [&](auto unroll, std::size_t row) {
    Pack<T, N> packs[unroll];
    for (int u = 0; u < unroll; ++u) {
      const std::size_t at = row + static_cast<std::size_t>(u) * thread.step;
      packs[u] = {};
      if (from_pack >= s.x_packs) continue;
      const std::size_t line = quotient(at, s.y_width), n = quotient(line, s.y_height);
      const std::size_t h = (line - n * s.y_height) * s.stride;
      const std::size_t w = (at - line * s.y_width) * s.stride;
      const std::size_t from = (n * s.x_height + h) * s.x_width + w;
      packs[u] = load_pack<T, N>(x + (from * s.x_packs + from_pack) * N);
    }
    for (int u = 0; u < unroll; ++u) {
      const std::size_t at = row + static_cast<std::size_t>(u) * thread.step;
      store_pack(y + (at * s.y_packs + thread.pack) * N, packs[u]);
    }
  });
}

// Each row of a block's threads writes one row of dx (n, h, w) at a time.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    pad_backward_kernel(RowGrid grid, PadShortcut s, const T* dy, T* dx) {
  const RowThread thread = row_thread(grid);
  for_rows<4>(thread, [&](auto unroll, std::size_t row) {
    Pack<T, N> packs[unroll];
    for (int u = 0; u < unroll; ++u) {
      const std::size_t at = row + static_cast<std::size_t>(u) * thread.step;
      const std::size_t line = quotient(at, s.x_width), n = quotient(line, s.x_height);
      const unsigned h = static_cast<unsigned>(line - n * s.x_height);
      const unsigned w = static_cast<unsigned>(at - line * s.x_width);
      packs[u] = {};
      if (h % s.stride != 0 || w % s.stride != 0) continue;
      const std::size_t from = (n * s.y_height + h / s.stride) * s.y_width + w / s.stride;
      packs[u] = load_pack<T, N>(dy + (from * s.y_packs + s.first + thread.pack) * N);
    }
    for (int u = 0; u < unroll; ++u) {
      const std::size_t at = row + static_cast<std::size_t>(u) * thread.step;
      store_pack(dx + (at * s.x_packs + thread.pack) * N, packs[u]);
    }
  });
}

// Calls body(tag, count, shortcut) with the widest packs that both sides allow.
template <class Body>
void with_shortcut(const TensorView& x, std::size_t stride, const TensorView& y, const Body& body) {
  const Shape in = x.desc.shape, out = y.desc.shape;
  require(x.desc.is_nhwc() && y.desc.is_nhwc(),
          "a shortcut on a GPU needs the NHWC layout, not channel blocks");
  require(out.c >= in.c && out.h == (in.h - 1) / stride + 1 && out.w == (in.w - 1) / stride + 1,
          "the shortcut's input and output have incompatible shapes");
  const std::size_t first = (out.c - in.c) / 2;
  // A pack has a power of two elements, so in.c, out.c and first are multiples of it exactly if
  // their bitwise OR is.
  const std::size_t channels = in.c | out.c | first;
  with_type_and_pack(x.desc.type, channels, are_aligned(x.data, y.data), [&](auto* tag, auto n) {
    const auto packs = [&](std::size_t count) { return static_cast<unsigned>(count / n); };
    body(tag, n,
         PadShortcut{static_cast<unsigned>(in.h), static_cast<unsigned>(in.w),
                     static_cast<unsigned>(out.h), static_cast<unsigned>(out.w), packs(in.c),
                     packs(out.c), packs(first), static_cast<unsigned>(stride)});
  });
}

}  // namespace

void pad_shortcut_forward(CudaDevice& device, const TensorView& x, std::size_t stride,
                          const TensorView& y) {
  if (y.desc.shape.elements() == 0) return;
  with_shortcut(x, stride, y, [&](auto* tag, auto n, const PadShortcut& s) {
    using T = std::remove_pointer_t<decltype(tag)>;
    constexpr int kN = decltype(n)::value;
    const RowGrid grid = row_grid(y.desc.shape.n * y.desc.shape.pixels(), s.y_packs, Walk::in_bands,
                                  device.multiprocessors() * 8, 4, 4);
    launch(pad_forward_kernel<T, kN>, Launch{.blocks = grid.blocks()}, device.stream(), grid, s,
           x.as<const T>(), y.as<T>());
  });
}

void pad_shortcut_backward(CudaDevice& device, const TensorView& dy, std::size_t stride,
                           const TensorView& dx) {
  if (dx.desc.shape.elements() == 0) return;
  with_shortcut(dx, stride, dy, [&](auto* tag, auto n, const PadShortcut& s) {
    using T = std::remove_pointer_t<decltype(tag)>;
    constexpr int kN = decltype(n)::value;
    const RowGrid grid = row_grid(dx.desc.shape.n * dx.desc.shape.pixels(), s.x_packs,
                                  Walk::in_bands, device.multiprocessors() * 8, 4, 4);
    launch(pad_backward_kernel<T, kN>, Launch{.blocks = grid.blocks()}, device.stream(), grid, s,
           dy.as<const T>(), dx.as<T>());
  });
}

}  // namespace dp::cuda
