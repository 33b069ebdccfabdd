// The part of an image that the network sees.
//
// Training, resized: torchvision's RandomResizedCrop with scale 0.08 to 1 and ratio 3/4 to 4/3. The
// area and the logarithm of the ratio are drawn uniformly. If the part does not fit into the image,
// both are drawn again; after ten draws the largest central part with an allowed ratio is used.
// Testing: the shorter side is scaled to 256/224 of the network's size, rounded down, and the
// centre is cut out (torchvision's Resize and CenterCrop). An image that already has the network's
// size is used as it is.
//
// The part is scaled to the network's size in one step. A JPEG is decoded at 1/2, 1/4 or 1/8 of its
// size if the part then still has at least the network's size.
#pragma once

#include <cstdint>

#include "io/images/image_source.hpp"
#include "io/images/resample.hpp"

namespace dp {

// Draws RandomResizedCrop's part from 64 random bits.
[[nodiscard]] PixelBox draw_resized_crop(std::uint64_t bits, std::uint32_t width,
                                         std::uint32_t height);

// How an image is decoded and scaled.
struct ImagePlan {
  std::uint32_t denominator = 1;  // of decode_image
  Resampling resampling;          // in the pixels of the decoded image
};

// Plans to scale `part` of the image to the whole input.
[[nodiscard]] ImagePlan plan_part(const ImageHeader& header, const PixelBox& part,
                                  const ImageShape& shape);
// Plans the centre for testing, with the image's shorter side scaled to `short_side`.
[[nodiscard]] ImagePlan plan_centre(const ImageHeader& header, const ImageShape& shape,
                                    std::uint32_t short_side);
// 256/224 of a side, rounded down.
[[nodiscard]] constexpr std::uint32_t test_short_side(std::uint32_t side) { return side * 8 / 7; }

}  // namespace dp
