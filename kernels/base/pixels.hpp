// How images become a network's input, in the form that both the loader (io) and the GPU's kernel
// (kernels/augment.hpp) work from.
#pragma once

#include <cstdint>

namespace dp {

// Random crop and flip of one image: the output's pixel (h, w) is the source's pixel
// (h + shift_y, w' + shift_x), with w' = w or, flipped, width - 1 - w; black outside of the image.
struct ImageCrop {
  std::int8_t shift_x = 0, shift_y = 0;
  std::uint8_t is_flipped = 0, unused = 0;
};

// Per channel, what a byte becomes.
struct PixelTable {
  float value[3][256];
};

}  // namespace dp
