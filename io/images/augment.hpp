// Turns an image's bytes into the network's input: random crop, horizontal flip, normalisation,
// cutout.
//
// The operations follow each other as in torchvision. The image is padded on each side (by 4 black
// pixels, unless the rule says otherwise), a window of the image's size is cut out and perhaps
// mirrored, then normalised. A black padded pixel therefore becomes (0 - mean) / deviation. Input
// is planar bytes, output is NHWC floats.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "io/images/image_source.hpp"
#include "kernels/base/pixels.hpp"

namespace dp {

// How training images are augmented at random.
struct AugmentationRule {
  // `alternate`: a random half of the images is mirrored in the first epoch, the other half in the
  // next, and so on (Jordan 2024).
  enum class Flip { random, alternate, off };

  int crop_padding = 4;       // pixels on each side, 0 to 127; 0: the whole image
  bool is_reflected = false;  // the padding is the image's mirror image, not black
  Flip flip = Flip::random;
  int cutout = 0;  // the side of a square that is set to the mean (DeVries & Taylor 2017); 0: none
};

// Whether the rule suits images of that shape: mirrored padding must be narrower than an image, and
// a cutout must not be larger than an image.
[[nodiscard]] bool fits(const AugmentationRule& rule, const ImageShape& shape);

// Converts an augmentation to the struct that GPUs read.
[[nodiscard]] ImageCrop to_crop(const Augmentation& augmentation);

// Draws the augmentation of a sample in an epoch, for an image of that shape. The result does not
// depend on the rank or the number of ranks. Shifts are from -crop_padding to crop_padding; the
// cutout's square lies inside the image.
[[nodiscard]] Augmentation draw_augmentation(const AugmentationRule& rule, const ImageShape& shape,
                                             std::uint64_t seed, std::uint64_t epoch,
                                             std::size_t sample);

// Normalises bytes by looking them up in a table. A table entry is (byte / 255 - mean) / deviation
// in single precision, rounded after each operation as in PyTorch.
class Normalizer {
 public:
  // For colour images of that shape.
  explicit Normalizer(const ImageShape& shape, const Normalization& normalization = {});

  // Reads shape.values() planar bytes from `image` and writes as many floats to `nhwc`.
  void apply(std::span<const std::uint8_t> image, const Augmentation& augmentation,
             std::span<float> nhwc) const;

  // The table, for a GPU.
  [[nodiscard]] PixelTable table() const;

 private:
  ImageShape shape_;
  std::array<std::array<float, 256>, kColours> table_;
};

}  // namespace dp
