// From bytes to the network's input: random crop, horizontal flip, normalisation.
//
// The order is torchvision's: the image is padded with 4 black pixels on each side, a window of the
// image's size is cut, mirrored with probability 1/2, and then normalised, so that a padded pixel
// becomes (0 - mean) / deviation. Input is planar bytes, output is NHWC floats.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "io/image_source.hpp"
#include "kernels/base/pixels.hpp"

namespace dp {

inline constexpr int kCropPadding = 4;

// The same in the form for GPUs.
[[nodiscard]] ImageCrop to_crop(const Augmentation& augmentation);

// The augmentation of a sample in an epoch. It does not depend on the rank or the number of ranks.
// Shifts are from -kCropPadding to kCropPadding.
[[nodiscard]] Augmentation draw_augmentation(std::uint64_t seed, std::uint64_t epoch,
                                             std::size_t sample);

// Normalises by table: each byte's float is (byte / 255 - mean) / deviation in single precision,
// rounded after each operation, as PyTorch computes it.
class Normalizer {
 public:
  // For colour images of that shape.
  explicit Normalizer(const ImageShape& shape, const Normalization& normalization = {});

  // `image` is shape.values() planar bytes; as many floats of `nhwc` are assigned.
  void apply(std::span<const std::uint8_t> image, const Augmentation& augmentation,
             std::span<float> nhwc) const;

  // The table, for a GPU.
  [[nodiscard]] PixelTable table() const;

 private:
  ImageShape shape_;
  std::array<std::array<float, 256>, kColours> table_;
};

}  // namespace dp
