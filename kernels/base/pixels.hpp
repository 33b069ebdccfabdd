// Types that describe how images are turned into a network's input. The loader (io) and the GPU
// kernel (kernels/augment.hpp) share them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace dp {

// Red, green, blue.
inline constexpr std::size_t kColours = 3;

// The size of a data set's images, the same for all of them. In memory they are planar: one channel
// after the other, each `height` rows of `width` bytes.
struct ImageShape {
  std::size_t channels = kColours, height = 0, width = 0;

  [[nodiscard]] constexpr std::size_t pixels() const { return height * width; }
  // The number of values of an image: bytes in memory, floats as a network's input.
  [[nodiscard]] constexpr std::size_t values() const { return channels * pixels(); }
  friend bool operator==(const ImageShape&, const ImageShape&) = default;
};

// The mean and deviation of each channel, for pixels scaled to [0, 1]. The defaults are the values
// customary for CIFAR-10.
struct Normalization {
  std::array<float, kColours> mean{0.4914f, 0.4822f, 0.4465f};
  std::array<float, kColours> deviation{0.2023f, 0.1994f, 0.2010f};
};

// Random crop, flip and cutout of one image. Pixel (h, w) of the output is pixel (h + shift_y, w' +
// shift_x) of the source, with w' = w or, if flipped, width - 1 - w. Pixels outside of the source
// are black or, with is_reflected, show the source's mirror image (reflected_index). The cutout is
// a square of the output with a side of cut_side pixels and its upper left corner at (cut_y,
// cut_x). Its pixels are 0 after normalisation, which is the data set's mean.
struct ImageCrop {
  std::int8_t shift_x = 0, shift_y = 0;
  std::uint8_t is_flipped = 0, is_reflected = 0;
  std::uint16_t cut_x = 0, cut_y = 0, cut_side = 0;
};

// A row of `size` pixels is continued beyond its ends by mirroring. Returns the index of the pixel
// that then appears at index `at`. The end pixels are not repeated (PyTorch's padding mode
// "reflect"). Requires -size < at < 2 size - 1.
constexpr int reflected_index(int at, int size) {
  const int from_start = at < 0 ? -at : at;
  return from_start < size ? from_start : 2 * (size - 1) - from_start;
}

// Per channel, the normalised value of each byte.
struct PixelTable {
  float value[kColours][256];
};

}  // namespace dp
