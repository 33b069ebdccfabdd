// One kernel for all maps of one or two tensors, with the operation as a function object, and one
// kernel that converts types. Threads process packs of neighbouring elements, 16 bytes if tensors
// are aligned, with several loads in flight. copy() between channel blocks exists on the CPU only:
// on a GPU tensors are NHWC.
#include "kernels/elementwise.hpp"

#include "kernels/cuda/device.hpp"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/twins.hpp"
#include "kernels/gelu.hpp"

namespace dp::cuda {

namespace {

// The number of packs that a thread has in flight: fewer for operations with much arithmetic, which
// leaves fewer registers for packs.
template <class Op>
inline constexpr int kUnroll = 4;

// The threads of the whole grid take neighbouring packs, and then move on by the size of the grid.
// The first threads also take the elements after the last whole pack.
template <int kAtOnce, class Body>
__device__ void for_packs(std::size_t count, int width, const Body& body) {
  const std::size_t packs = count / static_cast<std::size_t>(width), stride = item_stride();
  std::size_t i = first_item();
  for (; i + (kAtOnce - 1) * stride < packs; i += kAtOnce * stride) {
    body(std::integral_constant<int, kAtOnce>{}, i, stride);
  }
  for (; i < packs; i += stride) body(std::integral_constant<int, 1>{}, i, stride);
}

// y = op(a, b) for each element; y may be a or b.
template <class T, int N, class Op>
__global__ void __launch_bounds__(kThreads)
    map_kernel(const T* a, const T* b, T* y, std::size_t count, Op op) {
  for_packs<kUnroll<Op>>(count, N, [&](auto unroll, std::size_t first, std::size_t stride) {
    Pack<T, N> left[unroll], right[unroll];
    for (int u = 0; u < unroll; ++u) {
      const std::size_t at = (first + static_cast<std::size_t>(u) * stride) * N;
      left[u] = load_pack<T, N>(a + at);
      right[u] = b == nullptr ? left[u] : load_pack<T, N>(b + at);
    }
    for (int u = 0; u < unroll; ++u) {
      const std::size_t at = (first + static_cast<std::size_t>(u) * stride) * N;
      const Floats<N> l = to_floats(left[u]), r = to_floats(right[u]);
      Floats<N> result;
      DP_UNROLL_8
      for (int v = 0; v < N; ++v) result[v] = op(l[v], r[v]);
      store_floats(y + at, result);
    }
  });
  const std::size_t rest = count / N * N + first_item();
  if (N > 1 && rest < count) {
    const float left = to_float(a[rest]), right = b == nullptr ? left : to_float(b[rest]);
    y[rest] = from_float<T>(op(left, right));
  }
}

struct Relu {
  DP_HD float operator()(float x, float) const { return x < 0.0f ? 0.0f : x; }
};
struct ReluBackward {
  DP_HD float operator()(float y, float dy) const { return y > 0.0f ? dy : 0.0f; }
};
struct Gelu {
  DP_HD float operator()(float x, float) const { return gelu(x); }
};
struct GeluBackward {
  DP_HD float operator()(float x, float dy) const { return dy * gelu_slope(x); }
};
template <>
inline constexpr int kUnroll<Gelu> = 1;
template <>
inline constexpr int kUnroll<GeluBackward> = 1;
struct Scale {
  float factor;
  DP_HD float operator()(float x, float) const { return factor * x; }
};
struct Add {
  DP_HD float operator()(float a, float b) const { return a + b; }
};

// b has no data if the operation reads only one tensor.
template <class Op>
void map(CudaDevice& device, const TensorView& a, const TensorView& b, const TensorView& y, Op op) {
  const std::size_t count = y.desc.shape.elements();
  if (count == 0) return;
  with_type_and_pack(y.desc.type, 0, are_aligned(a.data, b.data, y.data), [&](auto* tag, auto n) {
    using T = std::remove_pointer_t<decltype(tag)>;
    constexpr int kN = decltype(n)::value;
    const dim3 blocks = blocks_for(count / kN, kThreads, device.multiprocessors() * 8);
    launch(map_kernel<T, kN, Op>, Launch{.blocks = blocks}, device.stream(), a.as<const T>(),
           b.as<const T>(), y.as<T>(), count, op);
  });
}

// Converts to another type, eight elements per thread.
template <class From, class To, int N>
__global__ void __launch_bounds__(kThreads)
    convert_kernel(const From* x, To* y, std::size_t count) {
  constexpr int kFrom = N < kPackCount<From> ? N : kPackCount<From>;
  constexpr int kTo = N < kPackCount<To> ? N : kPackCount<To>;
  for (std::size_t i = first_item(); i < count / N; i += item_stride()) {
    Floats<N> values;
    for (int part = 0; part < N / kFrom; ++part) {
      const Floats<kFrom> some = load_floats<kFrom>(x + i * N + part * kFrom);
      for (int v = 0; v < kFrom; ++v) values[part * kFrom + v] = some[v];
    }
    for (int part = 0; part < N / kTo; ++part) {
      Floats<kTo> some;
      for (int v = 0; v < kTo; ++v) some[v] = values[part * kTo + v];
      store_floats(y + i * N + part * kTo, some);
    }
  }
  const std::size_t rest = count / N * N + first_item();
  if (N > 1 && rest < count) y[rest] = from_float<To>(to_float(x[rest]));
}

template <class From, class To>
void convert(CudaDevice& device, const TensorView& x, const TensorView& y) {
  const std::size_t count = x.desc.shape.elements();
  const auto start = [&](auto n) {
    constexpr int kN = decltype(n)::value;
    const dim3 blocks = blocks_for(count / kN, kThreads, device.multiprocessors() * 8);
    launch(convert_kernel<From, To, kN>, Launch{.blocks = blocks}, device.stream(),
           x.as<const From>(), y.as<To>(), count);
  };
  if (are_aligned(x.data, y.data)) {
    start(std::integral_constant<int, 8>{});
  } else {
    start(std::integral_constant<int, 1>{});
  }
}

}  // namespace

void relu_forward(CudaDevice& device, const TensorView& x, const TensorView& y) {
  map(device, x, {}, y, Relu{});
}

void relu_backward(CudaDevice& device, const TensorView& y, const TensorView& dy,
                   const TensorView& dx) {
  map(device, y, dy, dx, ReluBackward{});
}

void gelu_forward(CudaDevice& device, const TensorView& x, const TensorView& y) {
  map(device, x, {}, y, Gelu{});
}

void gelu_backward(CudaDevice& device, const TensorView& x, const TensorView& dy,
                   const TensorView& dx) {
  map(device, x, dy, dx, GeluBackward{});
}

void scale(CudaDevice& device, const TensorView& x, float factor, const TensorView& y) {
  map(device, x, {}, y, Scale{factor});
}

void add(CudaDevice& device, const TensorView& a, const TensorView& b, const TensorView& y) {
  map(device, a, b, y, Add{});
}

void copy(CudaDevice& device, const TensorView& x, const TensorView& y) {
  require(x.desc.shape == y.desc.shape && x.desc.is_nhwc() && y.desc.is_nhwc(),
          "a copy on a GPU needs equal shapes and the NHWC layout, not channel blocks");
  if (x.desc.shape.elements() == 0) return;
  if (x.desc.type == y.desc.type) {
    if (x.data == y.data) return;
    DP_CHECK_CUDA(
        cudaMemcpyAsync(y.data, x.data, x.desc.bytes(), cudaMemcpyDeviceToDevice, device.stream()));
  } else if (x.desc.type == DataType::f32) {
    convert<float, bf16>(device, x, y);
  } else {
    convert<bf16, float>(device, x, y);
  }
}

}  // namespace dp::cuda
