#include "kernels/dropout.hpp"

#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/twins.hpp"

namespace dp::cpu {

void dropout(CpuDevice& device, const TensorView& x, const DropoutRule& rule,
             const StepPosition* position, const TensorView& y) {
  const Shape shape = x.desc.shape;
  const std::size_t block = x.desc.channel_block, image = shape.pixels() * shape.c;
  const CounterRng rng = dropout_rng(*position, rule.stream);
  const std::uint64_t threshold = dropout_threshold(rule.probability);
  const auto scale = static_cast<float>(1.0 / (1.0 - rule.probability));
  with_type(x.desc.type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    parallel_for(device, shape.n, [&](std::size_t n) {
      const std::uint64_t place = position->first_image + n * position->image_stride;
      const T* in = x.as<const T>() + n * image;
      T* out = y.as<T>() + n * image;
      for (std::size_t first = 0; first < shape.c; first += block) {
        for (std::size_t p = 0; p < shape.pixels(); ++p) {
          const std::uint64_t element = place * image + p * shape.c + first;
          for (std::size_t c = 0; c < block; ++c, ++in, ++out) {
            *out = store<T>(is_kept(rng, element + c, threshold) ? load(*in) * scale : 0.0f);
          }
        }
      }
    });
  });
}

}  // namespace dp::cpu
