// Scales a part of an image to the network's size: bilinear, with antialiasing when the image
// shrinks, as in Pillow and torchvision. The result equals Pillow's resize() with BILINEAR bit for
// bit.
//
// Each output pixel is a weighted mean of the input pixels under a triangle, which is two input
// pixels wide when the image grows and two output pixels wide when it shrinks. The width is scaled
// first, then the height; the results of the first pass are rounded to bytes. Weights have 22
// binary digits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "io/images/encoded_image.hpp"

namespace dp {

struct Resampling {
  PixelBox source;                      // this part of the whole image is scaled ...
  std::uint32_t width = 0, height = 0;  // ... to this size ...
  PixelBox cut;                         // ... but only this part of the result is computed
};

// Reuses its memory for every image. The memory holds only the needed rows, already scaled to the
// final width, never a whole image.
class Resampler final : public RowSink {
 public:
  // To scale an image, call prepare(), then take_row() for all rows of what.source (other rows are
  // ignored), then finish(), which writes cut.width x cut.height pixels to `planar`, one channel
  // after the other.
  void prepare(const Resampling& what);
  void take_row(const PixelBox& box, std::uint32_t y, const std::uint8_t* pixels) override;
  void finish(std::span<std::uint8_t> planar);

  // Does all three calls for an image in memory. what.source must lie in image.box.
  void run(const DecodedImage& image, const Resampling& what, std::span<std::uint8_t> planar);

 private:
  // The weights of one axis: output i is the sum over k < taps of weight[i * taps + k] *
  // input[first[i] + k].
  struct Axis {
    std::uint32_t taps = 0;
    std::vector<std::uint32_t> first;
    std::vector<std::int32_t> weight;
    std::vector<double> scratch;
    // Computes taps and weights for outputs `begin` to `begin + count - 1` of `size`.
    void plan(std::uint32_t input, std::uint32_t size, std::uint32_t begin, std::uint32_t count);
  };

  Resampling what_;
  Axis columns_, rows_;
  std::uint32_t top_ = 0, bottom_ = 0;  // the rows of the source that are needed
  std::vector<std::uint8_t> narrow_;    // planar, of the output's width and the input's rows
  std::vector<std::int32_t> sums_;
};

}  // namespace dp
