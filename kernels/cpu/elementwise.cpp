#include "kernels/elementwise.hpp"

#include "kernels/base/error.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/twins.hpp"

namespace dp::cpu {

void relu_forward(CpuDevice& device, const TensorView& x, const TensorView& y) {
  with_type(x.desc.type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const T* in = x.as<const T>();
    T* out = y.as<T>();
    parallel_pieces(device, x.desc.shape.elements(),
                    [&](std::size_t, std::size_t i, std::size_t end) {
#pragma omp simd
                      for (std::size_t j = i; j < end; ++j) {
                        const float value = load(in[j]);
                        out[j] = store<T>(value < 0.0f ? 0.0f : value);  // a NaN stays one
                      }
                    });
  });
}

void relu_backward(CpuDevice& device, const TensorView& y, const TensorView& dy,
                   const TensorView& dx) {
  with_type(y.desc.type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const T *out = y.as<const T>(), *gradient = dy.as<const T>();
    T* result = dx.as<T>();
    parallel_pieces(device, y.desc.shape.elements(),
                    [&](std::size_t, std::size_t i, std::size_t end) {
#pragma omp simd
                      for (std::size_t j = i; j < end; ++j) {
                        result[j] = store<T>(load(out[j]) > 0.0f ? load(gradient[j]) : 0.0f);
                      }
                    });
  });
}

void add(CpuDevice& device, const TensorView& a, const TensorView& b, const TensorView& y) {
  with_type(a.desc.type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const T *left = a.as<const T>(), *right = b.as<const T>();
    T* out = y.as<T>();
    parallel_pieces(device, a.desc.shape.elements(),
                    [&](std::size_t, std::size_t i, std::size_t end) {
#pragma omp simd
                      for (std::size_t j = i; j < end; ++j)
                        out[j] = store<T>(load(left[j]) + load(right[j]));
                    });
  });
}

void scale(CpuDevice& device, const TensorView& x, float factor, const TensorView& y) {
  with_type(x.desc.type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const T* in = x.as<const T>();
    T* out = y.as<T>();
    parallel_pieces(device, x.desc.shape.elements(),
                    [&](std::size_t, std::size_t i, std::size_t end) {
#pragma omp simd
                      for (std::size_t j = i; j < end; ++j) out[j] = store<T>(factor * load(in[j]));
                    });
  });
}

void copy(CpuDevice& device, const TensorView& x, const TensorView& y) {
  DP_ASSERT(x.desc.shape == y.desc.shape, "{} to {}", to_string(x.desc), to_string(y.desc));
  const Shape shape = x.desc.shape;
  const std::size_t from_block = x.desc.channel_block, to_block = y.desc.channel_block;
  with_type(x.desc.type, [&](auto* from_tag) {
    with_type(y.desc.type, [&](auto* to_tag) {
      using From = std::remove_pointer_t<decltype(from_tag)>;
      using To = std::remove_pointer_t<decltype(to_tag)>;
      const From* in = x.as<const From>();
      To* out = y.as<To>();
      parallel_for(device, shape.n, [&](std::size_t n) {
        const std::size_t image = n * shape.pixels() * shape.c;
        const auto at = [&](std::size_t p, std::size_t c, std::size_t block) {
          return image + (c / block * shape.pixels() + p) * block + c % block;
        };
        for (std::size_t p = 0; p < shape.pixels(); ++p) {
          for (std::size_t c = 0; c < shape.c; ++c) {
            out[at(p, c, to_block)] = store<To>(load(in[at(p, c, from_block)]));
          }
        }
      });
    });
  });
}

}  // namespace dp::cpu
