#include "kernels/augment.hpp"

#include "kernels/cuda/device.hpp"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/twins.hpp"

namespace dp::cuda {

namespace {

// reflected_index() for unsigned indices: negative indices arrive as very large numbers.
__device__ unsigned reflected(unsigned at, unsigned size) {
  const unsigned from_start = min(at, 0 - at);
  return from_start < size ? from_start : 2 * (size - 1) - from_start;
}

// One block per image; neighbouring threads write neighbouring floats.
__global__ void __launch_bounds__(kThreads)
    augment_kernel(const std::uint8_t* images, const ImageCrop* crops, const PixelTable* table,
                   std::size_t count, unsigned height, unsigned width, float* y) {
  const unsigned pixels = height * width, values = 3 * pixels;
  for (std::size_t n = blockIdx.x; n < count; n += gridDim.x) {
    const std::uint8_t* image = images + n * values;
    const ImageCrop crop = crops[n];
    float* out = y + n * values;
    for (unsigned i = threadIdx.x; i < values; i += blockDim.x) {
      const unsigned c = i % 3, pixel = i / 3, h = pixel / width, w = pixel % width;
      // Indices left of or above the image are very large numbers.
      unsigned from_h = h + static_cast<unsigned>(int{crop.shift_y});
      unsigned from_w =
          (crop.is_flipped != 0 ? width - 1 - w : w) + static_cast<unsigned>(int{crop.shift_x});
      if (crop.is_reflected != 0) {
        from_h = reflected(from_h, height);
        from_w = reflected(from_w, width);
      }
      const bool is_inside = from_h < height && from_w < width;
      const unsigned byte = is_inside ? image[c * pixels + from_h * width + from_w] : 0;
      const bool is_cut = h - crop.cut_y < crop.cut_side && w - crop.cut_x < crop.cut_side;
      out[i] = is_cut ? 0.0f : table->value[c][byte];
    }
  }
}

}  // namespace

void augment_images(CudaDevice& device, const std::uint8_t* images, const ImageCrop* crops,
                    const PixelTable* table, const TensorView& y) {
  const Shape shape = y.desc.shape;
  require(shape.c == kColours && y.desc.type == DataType::f32,
          "output images must have three channels in fp32");
  require(shape.pixels() < (1u << 30), "an image must have fewer than 2^30 pixels");
  if (shape.elements() == 0) return;
  launch(augment_kernel, Launch{.blocks = blocks_for(shape.n, 1)}, device.stream(), images, crops,
         table, shape.n, static_cast<unsigned>(shape.h), static_cast<unsigned>(shape.w),
         y.as<float>());
}

}  // namespace dp::cuda
