// Dropout. A thread draws for one pack of neighbouring values at a time. The time is dominated by
// the arithmetic of the draws, not by memory.
#include "kernels/dropout.hpp"

#include "kernels/cuda/device.hpp"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/twins.hpp"

namespace dp::cuda {

namespace {

// `position` is in host memory, so only one thread of each block reads it.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    dropout_kernel(const T* x, T* y, std::size_t count, std::size_t image, std::uint64_t threshold,
                   std::uint64_t stream, float scale, const StepPosition* position) {
  __shared__ StepPosition shared;
  if (threadIdx.x == 0) shared = *position;
  __syncthreads();
  const StepPosition here = shared;
  const CounterRng rng = dropout_rng(here, stream);
  for (std::size_t i = first_item(); i < count / N; i += item_stride()) {
    // A pack is within one image, because N divides the image's size.
    const std::size_t at = i * N, n = at / image;
    const std::uint64_t element = (here.first_image + n * here.image_stride) * image + at % image;
    Floats<N> values = load_floats<N>(x + at);
    for (int v = 0; v < N; ++v) {
      const bool keeps = is_kept(rng, element + static_cast<unsigned>(v), threshold);
      values[v] = keeps ? values[v] * scale : 0.0f;
    }
    store_floats(y + at, values);
  }
}

}  // namespace

void dropout(CudaDevice& device, const TensorView& x, const DropoutRule& rule,
             const StepPosition* position, const TensorView& y) {
  require(x.desc.is_nhwc(), "dropout on a GPU needs the NHWC layout, not channel blocks");
  const std::size_t count = x.desc.shape.elements();
  if (count == 0) return;
  const std::size_t image = x.desc.shape.pixels() * x.desc.shape.c;
  const bool aligned = are_aligned(x.data, y.data);
  with_type_and_pack(x.desc.type, image, aligned, [&](auto* tag, auto n) {
    using T = std::remove_pointer_t<decltype(tag)>;
    constexpr int kN = decltype(n)::value;
    const dim3 blocks = blocks_for(count / kN, kThreads, device.multiprocessors() * 8);
    launch(dropout_kernel<T, kN>, Launch{.blocks = blocks}, device.stream(), x.as<const T>(),
           y.as<T>(), count, image, dropout_threshold(rule.probability), rule.stream,
           static_cast<float>(1.0 / (1.0 - rule.probability)), position);
  });
}

}  // namespace dp::cuda
