// From bytes to the network's input: random crop, horizontal flip, normalisation.
//
// The order is torchvision's: the image is padded with 4 black pixels on each side, a 32x32 window
// is cut, mirrored with probability 1/2, and then normalised, so that a padded pixel becomes
// (0 - mean) / deviation. Input is planar bytes, output is NHWC floats.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "io/dataset.hpp"
#include "kernels/base/pixels.hpp"

namespace dp {

inline constexpr int kCropPadding = 4;

// Per channel, for pixels scaled to [0, 1]; the defaults are CIFAR-10's customary values.
struct Normalization {
  std::array<float, kImageChannels> mean{0.4914f, 0.4822f, 0.4465f};
  std::array<float, kImageChannels> deviation{0.2023f, 0.1994f, 0.2010f};
};

// What happens to one image; the default leaves it as it is.
struct Augmentation {
  int shift_x = 0;  // the window's left edge in the image, -kCropPadding to kCropPadding
  int shift_y = 0;
  bool is_flipped = false;
};

// The same in the form that GPUs take.
[[nodiscard]] ImageCrop to_crop(const Augmentation& augmentation);

// The augmentation of a sample in an epoch: the same on every rank and at every number of ranks.
[[nodiscard]] Augmentation draw_augmentation(std::uint64_t seed, std::uint64_t epoch,
                                             std::size_t sample);

// Normalises by table: each byte's float is (byte / 255 - mean) / deviation in single precision,
// rounded after each operation, as PyTorch computes it.
class Normalizer {
 public:
  explicit Normalizer(const Normalization& normalization = {});

  // `image` is kImageBytes planar bytes; all kImageBytes floats of `nhwc` are assigned.
  void apply(std::span<const std::uint8_t> image, const Augmentation& augmentation,
             std::span<float> nhwc) const;

  // Its table, for a GPU.
  [[nodiscard]] PixelTable table() const;

 private:
  std::array<std::array<float, 256>, kImageChannels> table_;
};

}  // namespace dp
