// The interface between Winograd's convolution (winograd.cpp) and its loops, which are compiled
// once for each vector width (winograd_compiled.hpp).
//
// A *tile* is 4 x 4 outputs; its transform has 36 *points*. Point p of all tiles and channels forms
// a matrix, and the convolution is one matrix product per point. All matrices are stored in blocks
// of 16 channels.
#pragma once

#include <cstddef>

#include "kernels/tensor.hpp"

namespace dp::cpu::winograd {

inline constexpr std::size_t kPoints = 36, kBlock = 16;

// Activations of fp32 or bf16, in blocks of channels (TensorDesc).
struct Images {
  void* data;
  DataType type;
  std::size_t channels, block, height, width;
};

// rows, columns: the tiles of an image from top to bottom and from left to right. top, left: the
// padding; the input of the tile at output (h, w) begins at (h - top, w - left).
struct Tiles {
  std::size_t rows, columns;
  std::ptrdiff_t top, left;
};

// Points of a range of tiles: [point][channels / 16][most_tiles][16].
struct Points {
  float* data;
  std::size_t most_tiles, point_stride;
};

// Points of the weights: [point][columns / group][rows][group]. The product sums over rows.
struct Factor {
  float* data;
  std::size_t rows, columns, group, point_stride;
};

// Tiles [first + begin, first + end) of the convolution are stored as tiles [begin, end) of the
// Points.
struct Range {
  std::size_t first, begin, end;
};

struct Loops {
  std::size_t width;  // floats per vector
  std::size_t most_group;

  // Transforms the input's 6 x 6 values of each tile.
  void (*input_tiles)(const Images& x, const Tiles& tiles, const Range& range, const Points& to);
  // Transforms the 4 x 4 values of each tile of the output's gradient, for the gradient of the
  // weights.
  void (*gradient_tiles)(const Images& dy, const Tiles& tiles, const Range& range,
                         const Points& to);
  // Transforms points back to 4 x 4 values. Writes `channels` channels of y, beginning at channel
  // `first`. `from` holds these channels as its channels 0, 1, ...
  void (*output_tiles)(const Points& from, const Tiles& tiles, const Range& range, const Images& y,
                       std::size_t first, std::size_t channels);

  // Both transform weights (KRSC), for the columns from `first` on. In the forward pass, rows are C
  // and columns are K. In the gradient of the input, rows are K, columns are C (`inputs` in all),
  // and the kernel is rotated.
  void (*forward_weights)(const float* weights, std::size_t first, const Factor& to);
  void (*backward_weights)(const float* weights, std::size_t inputs, std::size_t first,
                           const Factor& to);

  // out = left x right, for one point.
  void (*multiply)(const Points& left, std::size_t tiles, const Factor& right, std::size_t point,
                   const Points& out);
  // sums[outputs][inputs] = gradient^T x input for one point if is_first, else +=.
  void (*accumulate)(const Points& gradient, const Points& input, std::size_t tiles,
                     std::size_t point, std::size_t outputs, std::size_t inputs, bool is_first,
                     float* sums);
  // Transforms sums[point][outputs][inputs] back to KRSC.
  void (*weight_gradient)(const float* sums, std::size_t point_stride, std::size_t inputs,
                          std::size_t outputs, float* gradient);
};

[[nodiscard]] const Loops& loops();
#if defined(__x86_64__)
[[nodiscard]] const Loops& loops_avx512();
#endif

}  // namespace dp::cpu::winograd
