#include "kernels/gelu.hpp"

#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/twins.hpp"
#include "kernels/cpu/vector.hpp"

namespace dp::cpu {

namespace {

// y = op(a, b) for each element, eight at a time: op takes and returns one part of a Vector, or
// single numbers for the remaining elements.
template <class T, class Op>
void map(const CpuDevice& device, std::size_t size, const T* a, const T* b, T* y, const Op& op) {
  constexpr std::size_t kWidth = 8;
  parallel_pieces(device, size, [&](std::size_t, std::size_t i, std::size_t end) {
    for (; i + kWidth <= end; i += kWidth) {
      const Vector<kWidth> left = load_vector<kWidth>(a + i), right = load_vector<kWidth>(b + i);
      store_vector<kWidth>(
          y + i, Vector<kWidth>{{op(left.parts[0], right.parts[0], PartTypes<kWidth>{})}});
    }
    for (; i < end; ++i) y[i] = store<T>(op(load(a[i]), load(b[i]), PartTypes<1>{}));
  });
}

}  // namespace

void gelu_forward(CpuDevice& device, const TensorView& x, const TensorView& y) {
  with_type(x.desc.type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const T* in = x.as<const T>();
    map(device, x.desc.shape.elements(), in, in, y.as<T>(), [](auto value, auto, auto types) {
      using Types = decltype(types);
      return gelu<typename Types::Float, typename Types::Bits>(value);
    });
  });
}

void gelu_backward(CpuDevice& device, const TensorView& x, const TensorView& dy,
                   const TensorView& dx) {
  with_type(x.desc.type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    map(device, x.desc.shape.elements(), x.as<const T>(), dy.as<const T>(), dx.as<T>(),
        [](auto value, auto gradient, auto types) {
          using Types = decltype(types);
          return gradient * gelu_slope<typename Types::Float, typename Types::Bits>(value);
        });
  });
}

}  // namespace dp::cpu
