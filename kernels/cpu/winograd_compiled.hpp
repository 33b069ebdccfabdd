// Winograd's loops, compiled for one vector width: 16 floats with AVX-512, 8 with AVX2, else 4
// (NEON). winograd_base.cpp and winograd_avx512.cpp each include this file and export its table
// kLoops.
//
// Everything is in an unnamed namespace, and no function of the standard library is called. Without
// these two rules the linker could keep the AVX-512 copy of a shared inline function for the whole
// program.
//
// Parts: loads and stores; the transforms in one dimension; tiles of activations (read, transform,
// write back); transforms of the weights and of their gradient; products of points.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/cpu/winograd_loops.hpp"

namespace dp::cpu::winograd {
namespace {

#define DP_INLINE inline __attribute__((always_inline))

#if defined(DP_WINOGRAD_AVX512)
constexpr std::size_t kWidth = 16, kMostGroup = 32, kMostRows = 12;
#elif defined(__AVX2__)
constexpr std::size_t kWidth = 8, kMostGroup = 16, kMostRows = 6;
#else
constexpr std::size_t kWidth = 4, kMostGroup = 16, kMostRows = 6;
#endif
typedef float Floats __attribute__((vector_size(kWidth * 4)));
typedef std::uint32_t Bits __attribute__((vector_size(kWidth * 4)));
typedef std::uint16_t Halves __attribute__((vector_size(kWidth * 2)));

DP_INLINE Floats load(const float* from) {
  Floats value;
  __builtin_memcpy(&value, from, sizeof(value));
  return value;
}
DP_INLINE Floats load(const bf16* from) {
  Halves halves;
  __builtin_memcpy(&halves, from, sizeof(halves));
  const Bits bits = __builtin_convertvector(halves, Bits) << 16;
  return reinterpret_cast<Floats>(bits);
}
DP_INLINE void store(float* to, Floats value) { __builtin_memcpy(to, &value, sizeof(value)); }
// Rounds to nearest, ties to even, as store<bf16> in parallel.hpp.
DP_INLINE void store(bf16* to, Floats value) {
  const Bits bits = reinterpret_cast<Bits>(value);
  const Bits rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const Bits nan = (bits >> 16) | 0x40u;
  const Halves halves =
      __builtin_convertvector((bits & 0x7FFFFFFFu) > 0x7F800000u ? nan : rounded, Halves);
  __builtin_memcpy(to, &halves, sizeof(halves));
}

// One-dimensional transforms (Lavin and Gray 2015, sections 4.1 and 4.3) for the points 0, a, -a,
// b, -b and infinity. a = 3/4, b = 3/2 and their squares are exact in fp32, and the error is half
// of the error with a = 1, b = 2 (winograd_test.cpp derives a bound).
constexpr float a1 = 0.75f, a2 = a1 * a1, a3 = a2 * a1, b1 = 1.5f, b2 = b1 * b1, b3 = b2 * b1;
// 1 / the product of the differences between a point and each other finite point.
constexpr float n0 = 1 / (a2 * b2), na = 1 / (2 * a2 * (a2 - b2)), nb = 1 / (2 * b2 * (b2 - a2));

// B^T: transforms six values of an image, kFrom vectors apart, to six points, kTo apart.
template <std::size_t kFrom, std::size_t kTo>
DP_INLINE void image_points(const Floats* x, Floats* v) {
  const Floats x0 = x[0], x1 = x[kFrom], x2 = x[2 * kFrom], x3 = x[3 * kFrom], x4 = x[4 * kFrom],
               x5 = x[5 * kFrom];
  const Floats even_a = x4 - b2 * x2, odd_a = x3 - b2 * x1;
  const Floats even_b = x4 - a2 * x2, odd_b = x3 - a2 * x1;
  v[0] = a2 * b2 * x0 + (x4 - (a2 + b2) * x2);
  v[kTo] = even_a + a1 * odd_a;
  v[2 * kTo] = even_a - a1 * odd_a;
  v[3 * kTo] = even_b + b1 * odd_b;
  v[4 * kTo] = even_b - b1 * odd_b;
  v[5 * kTo] = a2 * b2 * x1 + (x5 - (a2 + b2) * x3);
}
// A^T: six points to four outputs.
template <std::size_t kFrom, std::size_t kTo>
DP_INLINE void output_values(const Floats* m, Floats* y) {
  const Floats sum_a = m[kFrom] + m[2 * kFrom], difference_a = m[kFrom] - m[2 * kFrom];
  const Floats sum_b = m[3 * kFrom] + m[4 * kFrom], difference_b = m[3 * kFrom] - m[4 * kFrom];
  y[0] = m[0] + sum_a + sum_b;
  y[kTo] = a1 * difference_a + b1 * difference_b;
  y[2 * kTo] = a2 * sum_a + b2 * sum_b;
  y[3 * kTo] = a3 * difference_a + (b3 * difference_b + m[5 * kFrom]);
}
// A: four gradients of outputs to six points.
template <std::size_t kFrom, std::size_t kTo>
DP_INLINE void gradient_points(const Floats* y, Floats* v) {
  const Floats y0 = y[0], y1 = y[kFrom], y2 = y[2 * kFrom], y3 = y[3 * kFrom];
  const Floats even_a = y0 + a2 * y2, odd_a = a1 * y1 + a3 * y3;
  const Floats even_b = y0 + b2 * y2, odd_b = b1 * y1 + b3 * y3;
  v[0] = y0;
  v[kTo] = even_a + odd_a;
  v[2 * kTo] = even_a - odd_a;
  v[3 * kTo] = even_b + odd_b;
  v[4 * kTo] = even_b - odd_b;
  v[5 * kTo] = y3;
}
// G: three weights to six points.
template <std::size_t kFrom, std::size_t kTo>
DP_INLINE void weight_points(const Floats* g, Floats* u) {
  const Floats g0 = g[0], g1 = g[kFrom], g2 = g[2 * kFrom];
  const Floats even_a = na * g0 + (na * a2) * g2, odd_a = (na * a1) * g1;
  const Floats even_b = nb * g0 + (nb * b2) * g2, odd_b = (nb * b1) * g1;
  u[0] = n0 * g0;
  u[kTo] = even_a + odd_a;
  u[2 * kTo] = even_a - odd_a;
  u[3 * kTo] = even_b + odd_b;
  u[4 * kTo] = even_b - odd_b;
  u[5 * kTo] = g2;
}
// G^T: six points to three gradients of weights.
template <std::size_t kFrom, std::size_t kTo>
DP_INLINE void weight_values(const Floats* u, Floats* g) {
  const Floats sum_a = u[kFrom] + u[2 * kFrom], difference_a = u[kFrom] - u[2 * kFrom];
  const Floats sum_b = u[3 * kFrom] + u[4 * kFrom], difference_b = u[3 * kFrom] - u[4 * kFrom];
  g[0] = n0 * u[0] + (na * sum_a + nb * sum_b);
  g[kTo] = (na * a1) * difference_a + (nb * b1) * difference_b;
  g[2 * kTo] = (na * a2) * sum_a + ((nb * b2) * sum_b + u[5 * kFrom]);
}

// Tiles of activations.

// The first output of a tile.
struct Place {
  std::size_t image;
  std::ptrdiff_t row, column;
};
DP_INLINE Place place_of(const Tiles& tiles, std::size_t tile) {
  const std::size_t of_image = tiles.rows * tiles.columns, in_image = tile % of_image;
  return {tile / of_image, static_cast<std::ptrdiff_t>(in_image / tiles.columns * 4),
          static_cast<std::ptrdiff_t>(in_image % tiles.columns * 4)};
}
// Offset of the first pixel of a channel of an image.
DP_INLINE std::size_t offset_of(const Images& x, std::size_t image, std::size_t channel) {
  return (image * (x.channels / x.block) + channel / x.block) * x.height * x.width * x.block +
         channel % x.block;
}
DP_INLINE float* values_at(const Points& points, std::size_t channel, std::size_t tile) {
  return points.data + (channel / kBlock * points.most_tiles + tile) * kBlock + channel % kBlock;
}
DP_INLINE float* values_at(const Factor& factor, std::size_t row, std::size_t column) {
  return factor.data + (column / factor.group * factor.rows + row) * factor.group +
         column % factor.group;
}
DP_INLINE std::ptrdiff_t clamp(std::ptrdiff_t value, std::ptrdiff_t low, std::ptrdiff_t high) {
  return value < low ? low : value > high ? high : value;
}

// Calls body(channel, values) with kSide x kSide vectors that start at a pixel; values outside of
// the image are zero.
template <class T, std::size_t kSide, class Body>
DP_INLINE void for_each_patch(const Images& x, std::size_t image, std::ptrdiff_t row,
                              std::ptrdiff_t column, const Body& body) {
  constexpr auto side = static_cast<std::ptrdiff_t>(kSide);
  const auto height = static_cast<std::ptrdiff_t>(x.height),
             width = static_cast<std::ptrdiff_t>(x.width);
  const auto block = static_cast<std::ptrdiff_t>(x.block);
  const std::ptrdiff_t top = clamp(-row, 0, side), bottom = clamp(height - row, 0, side);
  const std::ptrdiff_t left = clamp(-column, 0, side), right = clamp(width - column, 0, side);
  const bool is_inside = top == 0 && bottom == side && left == 0 && right == side;
  Floats values[kSide * kSide] = {};
  for (std::size_t c = 0; c < x.channels; c += kWidth) {
    // An offset instead of a pointer, because the pixel may lie outside of the image, where forming
    // a pointer is undefined.
    const std::ptrdiff_t first =
        static_cast<std::ptrdiff_t>(offset_of(x, image, c)) + (row * width + column) * block;
    const T* data = static_cast<const T*>(x.data);
    if (is_inside) {
      for (std::ptrdiff_t i = 0; i < side; ++i) {
        for (std::ptrdiff_t j = 0; j < side; ++j)
          values[i * side + j] = load(data + (first + (i * width + j) * block));
      }
    } else {
      for (std::ptrdiff_t i = top; i < bottom; ++i) {
        for (std::ptrdiff_t j = left; j < right; ++j)
          values[i * side + j] = load(data + (first + (i * width + j) * block));
      }
    }
    body(c, values);
  }
}

template <class T>
void input_tiles_of(const Images& x, const Tiles& tiles, const Range& range, const Points& to) {
  for (std::size_t t = range.begin; t < range.end; ++t) {
    const Place at = place_of(tiles, range.first + t);
    for_each_patch<T, 6>(x, at.image, at.row - tiles.top, at.column - tiles.left,
                         [&](std::size_t c, const Floats* values) {
                           Floats half[36], points[6];
                           for (std::size_t i = 0; i < 6; ++i)
                             image_points<1, 1>(values + 6 * i, half + 6 * i);
                           float* out = values_at(to, c, t);
                           for (std::size_t j = 0; j < 6; ++j) {
                             image_points<6, 1>(half + j, points);
                             for (std::size_t i = 0; i < 6; ++i)
                               store(out + (6 * i + j) * to.point_stride, points[i]);
                           }
                         });
  }
}
void input_tiles(const Images& x, const Tiles& tiles, const Range& range, const Points& to) {
  if (x.type == DataType::f32) {
    input_tiles_of<float>(x, tiles, range, to);
  } else {
    input_tiles_of<bf16>(x, tiles, range, to);
  }
}

template <class T>
void gradient_tiles_of(const Images& dy, const Tiles& tiles, const Range& range, const Points& to) {
  for (std::size_t t = range.begin; t < range.end; ++t) {
    const Place at = place_of(tiles, range.first + t);
    for_each_patch<T, 4>(dy, at.image, at.row, at.column, [&](std::size_t c, const Floats* values) {
      Floats half[24], points[6];
      for (std::size_t i = 0; i < 4; ++i) gradient_points<1, 1>(values + 4 * i, half + 6 * i);
      float* out = values_at(to, c, t);
      for (std::size_t j = 0; j < 6; ++j) {
        gradient_points<6, 1>(half + j, points);
        for (std::size_t i = 0; i < 6; ++i) store(out + (6 * i + j) * to.point_stride, points[i]);
      }
    });
  }
}
void gradient_tiles(const Images& dy, const Tiles& tiles, const Range& range, const Points& to) {
  if (dy.type == DataType::f32) {
    gradient_tiles_of<float>(dy, tiles, range, to);
  } else {
    gradient_tiles_of<bf16>(dy, tiles, range, to);
  }
}

template <class T>
void output_tiles_of(const Points& from, const Tiles& tiles, const Range& range, const Images& y,
                     std::size_t first, std::size_t channels) {
  for (std::size_t t = range.begin; t < range.end; ++t) {
    const Place at = place_of(tiles, range.first + t);
    const std::size_t row = static_cast<std::size_t>(at.row),
                      column = static_cast<std::size_t>(at.column);
    const std::size_t rows = y.height - row < 4 ? y.height - row : 4;
    const std::size_t columns = y.width - column < 4 ? y.width - column : 4;
    for (std::size_t k = 0; k < channels; k += kWidth) {
      const float* points = values_at(from, k, t);
      Floats m[6], half[24], values[4];
      for (std::size_t j = 0; j < 6; ++j) {
        for (std::size_t i = 0; i < 6; ++i) m[i] = load(points + (6 * i + j) * from.point_stride);
        output_values<1, 6>(m, half + j);
      }
      T* to = static_cast<T*>(y.data) + offset_of(y, at.image, first + k) +
              (row * y.width + column) * y.block;
      for (std::size_t i = 0; i < rows; ++i) {
        output_values<1, 1>(half + 6 * i, values);
        for (std::size_t j = 0; j < columns; ++j)
          store(to + (i * y.width + j) * y.block, values[j]);
      }
    }
  }
}
void output_tiles(const Points& from, const Tiles& tiles, const Range& range, const Images& y,
                  std::size_t first, std::size_t channels) {
  if (y.type == DataType::f32) {
    output_tiles_of<float>(from, tiles, range, y, first, channels);
  } else {
    output_tiles_of<bf16>(from, tiles, range, y, first, channels);
  }
}

// Weights.

// Transforms 3 x 3 vectors that are `apart` from each other, and stores point p at to + p * stride.
DP_INLINE void store_weight_points(const Floats* g, std::ptrdiff_t apart, float* to,
                                   std::size_t stride) {
  Floats line[3], half[18], points[6];
  for (std::ptrdiff_t j = 0; j < 3; ++j) {
    for (std::ptrdiff_t i = 0; i < 3; ++i) line[i] = g[(3 * i + j) * apart];
    weight_points<1, 3>(line, half + j);
  }
  for (std::size_t i = 0; i < 6; ++i) {
    weight_points<1, 1>(half + 3 * i, points);
    for (std::size_t j = 0; j < 6; ++j) store(to + (6 * i + j) * stride, points[j]);
  }
}

// Interleaves kApart lanes of `one` with kApart lanes of `other`.
template <std::size_t kApart, bool kIsSecond, std::size_t... kLane>
DP_INLINE Floats mix(Floats one, Floats other, std::index_sequence<kLane...>) {
  constexpr std::size_t kMore = kIsSecond ? kApart : 0;
  return __builtin_shufflevector(
      one, other, ((kLane & kApart) == 0 ? kLane + kMore : kWidth + kLane - kApart + kMore)...);
}
// Transposes kWidth rows: squares of kApart x kApart lanes on either side of a diagonal are
// swapped, for kApart = kWidth / 2 down to 1.
template <std::size_t kApart = kWidth / 2>
DP_INLINE void transpose(Floats* rows) {
  if constexpr (kApart > 0) {
    constexpr std::make_index_sequence<kWidth> kLanes;
    for (std::size_t i = 0; i < kWidth; ++i) {
      if ((i & kApart) != 0) continue;
      const Floats one = rows[i], other = rows[i + kApart];
      rows[i] = mix<kApart, false>(one, other, kLanes);
      rows[i + kApart] = mix<kApart, true>(one, other, kLanes);
    }
    transpose<kApart / 2>(rows);
  }
}

void forward_weights(const float* weights, std::size_t first, const Factor& to) {
  const std::size_t inputs = to.rows;
  Floats vectors[kBlock / kWidth][9][kWidth];  // vectors of outputs, one per input
  for (std::size_t k = 0; k < to.columns; k += kBlock) {
    for (std::size_t c = 0; c < inputs; c += kWidth) {
      for (std::size_t part = 0; part < kBlock / kWidth; ++part) {
        for (std::size_t rs = 0; rs < 9; ++rs) {
          Floats* lines = vectors[part][rs];
          const float* from = weights + ((first + k + part * kWidth) * 9 + rs) * inputs + c;
          for (std::size_t o = 0; o < kWidth; ++o) lines[o] = load(from + o * 9 * inputs);
          transpose(lines);
        }
      }
      for (std::size_t i = 0; i < kWidth; ++i) {
        for (std::size_t part = 0; part < kBlock / kWidth; ++part) {
          store_weight_points(vectors[part][0] + i, kWidth, values_at(to, c + i, k + part * kWidth),
                              to.point_stride);
        }
      }
    }
  }
}
void backward_weights(const float* weights, std::size_t inputs, std::size_t first,
                      const Factor& to) {
  for (std::size_t block = 0; block < to.columns; block += kBlock) {
    for (std::size_t k = 0; k < to.rows; ++k) {
      for (std::size_t c = block; c < block + kBlock; c += kWidth) {
        Floats g[9];
        for (std::size_t rs = 0; rs < 9; ++rs)
          g[8 - rs] = load(weights + (k * 9 + rs) * inputs + first + c);
        store_weight_points(g, 1, values_at(to, k, c), to.point_stride);
      }
    }
  }
}
void weight_gradient(const float* sums, std::size_t point_stride, std::size_t inputs,
                     std::size_t outputs, float* gradient) {
  for (std::size_t k = 0; k < outputs; ++k) {
    for (std::size_t c = 0; c < inputs; c += kWidth) {
      Floats u[6], half[18], g[3];
      for (std::size_t j = 0; j < 6; ++j) {
        for (std::size_t i = 0; i < 6; ++i)
          u[i] = load(sums + (6 * i + j) * point_stride + k * inputs + c);
        weight_values<1, 6>(u, half + j);
      }
      for (std::size_t i = 0; i < 3; ++i) {
        weight_values<1, 1>(half + 6 * i, g);
        for (std::size_t j = 0; j < 3; ++j)
          store(gradient + (k * 9 + 3 * i + j) * inputs + c, g[j]);
      }
    }
  }
}

// Products.

// Sums of products, kept in registers: kRows rows of kVectors vectors each.
template <std::size_t kRows, std::size_t kVectors>
struct Sums {
  Floats of[kRows][kVectors] = {};

  // Adds to each row r the vectors at `right`, multiplied by left[r * kLeftRow]. The vectors are
  // `apart` floats from each other.
  template <std::size_t kLeftRow>
  DP_INLINE void add(const float* left, const float* right, std::size_t apart) {
    Floats vectors[kVectors];
#pragma GCC unroll 16
    for (std::size_t v = 0; v < kVectors; ++v) vectors[v] = load(right + v * apart);
#pragma GCC unroll 16
    for (std::size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (std::size_t v = 0; v < kVectors; ++v) of[r][v] += left[r * kLeftRow] * vectors[v];
    }
  }
};

template <std::size_t kRows, std::size_t kVectors>
void multiply_rows(const float* left, std::size_t left_block, const float* right, std::size_t depth,
                   float* out, std::size_t out_block) {
  Sums<kRows, kVectors> sums;
  for (std::size_t d = 0; d < depth; d += kBlock, left += left_block) {
    for (std::size_t i = 0; i < kBlock; ++i, right += kVectors * kWidth)
      sums.template add<kBlock>(left + i, right, kWidth);
  }
  for (std::size_t r = 0; r < kRows; ++r) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      store(out + v * kWidth / kBlock * out_block + r * kBlock + v * kWidth % kBlock,
            sums.of[r][v]);
    }
  }
}
// Calls multiply_rows for `rows` rows; `rows` is at most kRows.
template <std::size_t kRows, std::size_t kVectors>
DP_INLINE void multiply_some(std::size_t rows, const float* left, std::size_t left_block,
                             const float* right, std::size_t depth, float* out,
                             std::size_t out_block) {
  if (rows == kRows)
    return multiply_rows<kRows, kVectors>(left, left_block, right, depth, out, out_block);
  if constexpr (kRows > 1)
    multiply_some<kRows - 1, kVectors>(rows, left, left_block, right, depth, out, out_block);
}
template <std::size_t kVectors>
void multiply_groups(const Points& left, std::size_t tiles, const Factor& right, std::size_t point,
                     const Points& out) {
  const std::size_t left_block = left.most_tiles * kBlock, out_block = out.most_tiles * kBlock;
  const float* from = left.data + point * left.point_stride;
  for (std::size_t column = 0; column < right.columns; column += kVectors * kWidth) {
    const float* panel = right.data + point * right.point_stride + column * right.rows;
    float* to = out.data + point * out.point_stride + column / kBlock * out_block;
    for (std::size_t t = 0; t < tiles;) {
      // Remaining rows are divided evenly: 20 rows are 10 + 10, not 12 + 8.
      const std::size_t times = (tiles - t + kMostRows - 1) / kMostRows,
                        rows = (tiles - t + times - 1) / times;
      multiply_some<kMostRows, kVectors>(rows, from + t * kBlock, left_block, panel, right.rows,
                                         to + t * kBlock, out_block);
      t += rows;
    }
  }
}
void multiply(const Points& left, std::size_t tiles, const Factor& right, std::size_t point,
              const Points& out) {
  if (right.group == kMostGroup)
    return multiply_groups<kMostGroup / kWidth>(left, tiles, right, point, out);
  multiply_groups<kBlock / kWidth>(left, tiles, right, point, out);
}

template <std::size_t kRows, std::size_t kVectors>
void accumulate_rows(const float* left, const float* right, std::size_t right_block,
                     std::size_t tiles, bool is_first, float* out, std::size_t out_row) {
  Sums<kRows, kVectors> sums;
  const std::size_t apart = kWidth == kBlock ? right_block : kWidth;
  for (std::size_t t = 0; t < tiles; ++t, left += kBlock, right += kBlock)
    sums.template add<1>(left, right, apart);
  for (std::size_t r = 0; r < kRows; ++r) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      float* to = out + r * out_row + v * kWidth;
      store(to, is_first ? sums.of[r][v] : load(to) + sums.of[r][v]);
    }
  }
}
template <std::size_t kVectors>
void accumulate_groups(const Points& gradient, const Points& input, std::size_t tiles,
                       std::size_t point, std::size_t outputs, std::size_t inputs, bool is_first,
                       float* sums) {
  const std::size_t left_block = gradient.most_tiles * kBlock,
                    right_block = input.most_tiles * kBlock;
  const float* left = gradient.data + point * gradient.point_stride;
  const float* right = input.data + point * input.point_stride;
  for (std::size_t k = 0; k < outputs; k += kBlock, left += left_block) {
    for (std::size_t c = 0; c < inputs; c += kVectors * kWidth) {
      const float* columns = right + c / kBlock * right_block;
      float* to = sums + k * inputs + c;
      const auto rows = [&]<std::size_t kRows>(std::size_t first) {
        accumulate_rows<kRows, kVectors>(left + first, columns, right_block, tiles, is_first,
                                         to + first * inputs, inputs);
      };
      // A block's 16 rows, in groups that fit into the registers.
      if constexpr (kMostRows >= 8) {
        rows.template operator()<8>(0);
        rows.template operator()<8>(8);
      } else {
        rows.template operator()<6>(0);
        rows.template operator()<5>(6);
        rows.template operator()<5>(11);
      }
    }
  }
}
void accumulate(const Points& gradient, const Points& input, std::size_t tiles, std::size_t point,
                std::size_t outputs, std::size_t inputs, bool is_first, float* sums) {
  if (inputs % kMostGroup == 0) {
    return accumulate_groups<kMostGroup / kWidth>(gradient, input, tiles, point, outputs, inputs,
                                                  is_first, sums);
  }
  accumulate_groups<kBlock / kWidth>(gradient, input, tiles, point, outputs, inputs, is_first,
                                     sums);
}

constexpr Loops kLoops = {kWidth,       kMostGroup,      input_tiles,      gradient_tiles,
                          output_tiles, forward_weights, backward_weights, multiply,
                          accumulate,   weight_gradient};

#undef DP_INLINE

}  // namespace
}  // namespace dp::cpu::winograd
