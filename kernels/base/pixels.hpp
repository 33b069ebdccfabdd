// How images become a network's input, in the form that both the loader (io) and the GPU's kernel
// (kernels/augment.hpp) work from.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace dp {

// Red, green, blue.
inline constexpr std::size_t kColours = 3;

// The size of the images of a data set, which all have the same. In memory they are planar: one
// channel behind the other, each `height` rows of `width` bytes.
struct ImageShape {
  std::size_t channels = kColours, height = 0, width = 0;

  [[nodiscard]] constexpr std::size_t pixels() const { return height * width; }
  // How many values an image has: bytes in memory, floats as a network's input.
  [[nodiscard]] constexpr std::size_t values() const { return channels * pixels(); }
  friend bool operator==(const ImageShape&, const ImageShape&) = default;
};

// Per channel, for pixels scaled to [0, 1]; the defaults are CIFAR-10's customary values.
struct Normalization {
  std::array<float, kColours> mean{0.4914f, 0.4822f, 0.4465f};
  std::array<float, kColours> deviation{0.2023f, 0.1994f, 0.2010f};
};

// Random crop, flip and cutout of one image: the output's pixel (h, w) is the source's pixel
// (h + shift_y, w' + shift_x), with w' = w or, flipped, width - 1 - w. Outside of the image it is
// black or, with is_reflected, the image's mirror image (reflected_index). The output's pixels in
// the square of cut_side pixels at (cut_y, cut_x) are 0, the data set's mean.
struct ImageCrop {
  std::int8_t shift_x = 0, shift_y = 0;
  std::uint8_t is_flipped = 0, is_reflected = 0;
  std::uint16_t cut_x = 0, cut_y = 0, cut_side = 0;
};

// The place in a row of `size` pixels that place `at` shows if the row is mirrored at its ends; the
// pixel at an end is not repeated (PyTorch's padding mode "reflect"). -size < at < 2 size - 1.
constexpr int reflected_index(int at, int size) {
  const int from_start = at < 0 ? -at : at;
  return from_start < size ? from_start : 2 * (size - 1) - from_start;
}

// Per channel, what a byte becomes.
struct PixelTable {
  float value[kColours][256];
};

}  // namespace dp
