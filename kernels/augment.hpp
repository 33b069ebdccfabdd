// Random crop, horizontal flip, normalisation and cutout of a batch of images on a GPU. On a CPU
// the loader's threads do the same (io/images/augment.hpp); the results are equal bit for bit.
//
// y[n, h, w, c] = table[c][byte]. The byte is channel c of the pixel that the crop selects
// (ImageCrop in kernels/base/pixels.hpp); a black pixel is byte 0 and is normalised like any other.
#pragma once

#include <cstdint>

#include "kernels/base/pixels.hpp"
#include "kernels/device.hpp"
#include "kernels/tensor.hpp"

namespace dp {

// images: N planar images of C x H x W bytes; crops: one per image; table: one table. All three are
// in the device's memory. Overwrites y, which is N x H x W x 3, NHWC, fp32. Throws Error(internal)
// on a CPU.
void augment_images(Device& device, const std::uint8_t* images, const ImageCrop* crops,
                    const PixelTable* table, const TensorView& y);

}  // namespace dp
