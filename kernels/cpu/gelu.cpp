#include "kernels/gelu.hpp"

#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/twins.hpp"

namespace dp::cpu {

void gelu_forward(CpuDevice& device, const TensorView& x, const TensorView& y) {
  with_type(x.desc.type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const T* in = x.as<const T>();
    T* out = y.as<T>();
    parallel_pieces(device, x.desc.shape.elements(),
                    [&](std::size_t, std::size_t i, std::size_t end) {
#pragma omp simd
                      for (std::size_t j = i; j < end; ++j) out[j] = store<T>(gelu(load(in[j])));
                    });
  });
}

void gelu_backward(CpuDevice& device, const TensorView& x, const TensorView& dy,
                   const TensorView& dx) {
  with_type(x.desc.type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const T *in = x.as<const T>(), *gradient = dy.as<const T>();
    T* result = dx.as<T>();
    parallel_pieces(device, x.desc.shape.elements(),
                    [&](std::size_t, std::size_t i, std::size_t end) {
#pragma omp simd
                      for (std::size_t j = i; j < end; ++j) {
                        result[j] = store<T>(load(gradient[j]) * gelu_slope(load(in[j])));
                      }
                    });
  });
}

}  // namespace dp::cpu
