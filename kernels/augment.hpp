// Random crop, horizontal flip and normalisation of a batch of images on a GPU. On a CPU the
// loader's threads do the same (io/augment.hpp); the results are equal bit for bit.
//
// Padding is with black pixels, before normalisation: y[n, h, w, c] = table[c][byte], where byte is
// that of source pixel (h + shift_y, w' + shift_x), w' = w or, flipped, width - 1 - w, and 0 outside
// of the image.
#pragma once

#include <cstdint>

#include "kernels/device.hpp"
#include "kernels/tensor.hpp"

namespace dp {

// What happens to one image.
struct ImageCrop {
  std::int8_t shift_x = 0, shift_y = 0;
  std::uint8_t is_flipped = 0, unused = 0;
};

// For each channel what a byte becomes.
struct PixelTable {
  float value[3][256];
};

// images: N planar images of C x H x W bytes; crops: N; table: one; all in the device's memory.
// y: N x H x W x 3 NHWC fp32. Assigns. Error(internal) on a CPU.
void augment_images(Device& device, const std::uint8_t* images, const ImageCrop* crops,
                    const PixelTable* table, const TensorView& y);

}  // namespace dp
