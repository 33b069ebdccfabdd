// Which part of an image the network sees.
//
// Training, resized: torchvision's RandomResizedCrop with scale 0.08 to 1 and ratio 3/4 to 4/3. The
// area and the ratio of the sides (its logarithm) are drawn uniformly, up to ten times until the
// part fits; then the largest central part whose ratio is allowed is taken.
// Testing: the shorter side is scaled to 256/224 of the network's size, rounded down, and the
// centre is cut out (torchvision's Resize and CenterCrop). An image that has the network's size
// already is taken as it is.
//
// The image is scaled in one go from the part to the network's size. A JPEG may be decoded at 1/2,
// 1/4 or 1/8 of its size, if it is at least as large as needed even then.
#pragma once

#include <cstdint>

#include "io/images/image_source.hpp"
#include "io/images/resample.hpp"

namespace dp {

// RandomResizedCrop's part, drawn from 64 random bits.
[[nodiscard]] PixelBox draw_resized_crop(std::uint64_t bits, std::uint32_t width,
                                         std::uint32_t height);

// How an image is decoded and scaled.
struct ImagePlan {
  std::uint32_t denominator = 1;  // of decode_image
  Resampling resampling;          // in the pixels of the decoded image
};

// `part` of the image becomes the whole input.
[[nodiscard]] ImagePlan plan_part(const ImageHeader& header, const PixelBox& part,
                                  const ImageShape& shape);
// The centre for testing. `short_side` is the length to which the shorter side is scaled.
[[nodiscard]] ImagePlan plan_centre(const ImageHeader& header, const ImageShape& shape,
                                    std::uint32_t short_side);
// 256/224 of a side, rounded down.
[[nodiscard]] constexpr std::uint32_t test_short_side(std::uint32_t side) { return side * 8 / 7; }

}  // namespace dp
