// Tests our Winograd convolution: its error is within a bound derived here, and its bits are equal
// for any number of threads and memory layout. conv2d_test.cpp compares it with the reference, like
// all methods. Run with AVX-512 and with AVX2.
#include <array>

#include "kernels/cpu/convolution_pass.hpp"
#include "tests/kernels/kernel_testing.hpp"
#include "tests/kernels/reference/conv2d.hpp"

namespace dp::test {
namespace {

using cpu::Direction;

constexpr std::array kDirections = {Direction::forward, Direction::backward_data,
                                    Direction::backward_weights};

struct WinogradCase {
  std::size_t n, h, w, c, k;
  Extent padding = 1;
};
void PrintTo(const WinogradCase& c, std::ostream* out) {
  *out << c.n << "x" << c.h << "x" << c.w << "x" << c.c << " -> " << c.k << ", padding "
       << c.padding.h << "x" << c.padding.w;
}

// One convolution's operands, and the reference's results.
struct Probe {
  DataType type;  // of activations
  Shape x_shape, y_shape;
  reference::ConvShape shape;
  Doubles x, w, dy;

  explicit Probe(const WinogradCase& c, DataType type_of_activations = DataType::f32)
      : type(type_of_activations),
        x_shape{c.n, c.h, c.w, c.c},
        y_shape(conv2d_output(x_shape, c.k, 3, 1, c.padding)),
        shape{x_shape, y_shape, 3, 1, c.padding},
        x(random_values(x_shape.elements(), 1, type)),
        w(random_values(c.k * 9 * c.c, 2)),
        dy(random_values(y_shape.elements(), 3, type)) {}

  [[nodiscard]] Doubles expected(Direction direction) const {
    Doubles result(size(direction));
    if (direction == Direction::forward)
      reference::conv2d_forward(shape, x.data(), w.data(), result.data());
    if (direction == Direction::backward_data)
      reference::conv2d_backward_data(shape, dy.data(), w.data(), result.data());
    if (direction == Direction::backward_weights)
      reference::conv2d_backward_weights(shape, x.data(), dy.data(), result.data());
    return result;
  }
  [[nodiscard]] std::size_t size(Direction direction) const {
    return direction == Direction::forward         ? dy.size()
           : direction == Direction::backward_data ? x.size()
                                                   : w.size();
  }
  // Empty if the pass is not offered.
  [[nodiscard]] Doubles run(Direction direction, int threads, bool is_nhwc = false) const {
    cpu::CpuDevice device(DeviceOptions{.threads = threads, .tune = false});
    const auto desc_of = [&](const Shape& s) {
      return TensorDesc{s, type, is_nhwc ? s.c : device.channel_block(s.c)};
    };
    const TensorDesc x_desc = desc_of(x_shape), y_desc = desc_of(y_shape);
    const auto pass = make_winograd_pass(
        device, {.x = x_desc, .y = y_desc, .kernel = 3, .stride = 1, .padding = shape.padding},
        direction);
    if (!pass) return {};
    GuardedTensor in_x(x_desc, x), in_w(w), in_dy(y_desc, dy);
    GuardedTensor out = direction == Direction::forward         ? GuardedTensor(y_desc)
                        : direction == Direction::backward_data ? GuardedTensor(x_desc)
                                                                : GuardedTensor(w.size());
    // Scratch memory may hold anything, and is no larger than scratch_bytes().
    GuardedTensor scratch(pass->scratch_bytes() / sizeof(float));
    void* const forward[] = {in_x.view().data, in_w.view().data, out.view().data};
    void* const data[] = {in_dy.view().data, in_w.view().data, out.view().data};
    void* const weights[] = {in_x.view().data, in_dy.view().data, out.view().data};
    pass->run(direction == Direction::forward         ? forward
              : direction == Direction::backward_data ? data
                                                      : weights,
              reinterpret_cast<std::byte*>(scratch.floats()));
    static_cast<void>(scratch.values());  // its guards
    return out.values();
  }
};

// The matrices of the transform, from its points alone: with f(x) the product of (x - p) over the
// finite points,
//   B^T  coefficients of f(x) / (x - p), and of f(x) for infinity
//   G    1, p, p^2 divided by f'(p), and 0, 0, 1
//   A    1, p, p^2, p^3, and 0, 0, 0, 1
struct Transform {
  static constexpr std::array<double, 5> kFinite = {0.0, 0.75, -0.75, 1.5, -1.5};
  std::array<std::array<double, 6>, 6> b{};
  std::array<std::array<double, 3>, 6> g{};
  std::array<std::array<double, 4>, 6> a{};

  Transform() {
    const auto product = [](std::size_t without) {
      std::array<double, 6> f = {1};
      for (std::size_t i = 0; i < kFinite.size(); ++i) {
        if (i == without) continue;
        std::array<double, 6> next{};
        for (std::size_t d = 0; d < 6; ++d) next[d] = (d > 0 ? f[d - 1] : 0) - kFinite[i] * f[d];
        f = next;
      }
      return f;
    };
    for (std::size_t i = 0; i < 5; ++i) {
      const double p = kFinite[i];
      b[i] = product(i);
      double slope = 0;
      for (std::size_t d = 6; d-- > 0;) slope = slope * p + b[i][d];
      g[i] = {1 / slope, p / slope, p * p / slope};
      a[i] = {1, p, p * p, p * p * p};
    }
    b[5] = product(5);
    g[5] = {0, 0, 1};
    a[5] = {0, 0, 0, 1};
  }

  // |matrix| |values| |matrix|^T, or of the transposed matrix.
  template <std::size_t kRows, std::size_t kColumns>
  static std::vector<double> sizes(const std::array<std::array<double, kColumns>, kRows>& matrix,
                                   bool is_transposed, const std::vector<double>& values) {
    const std::size_t from = is_transposed ? kRows : kColumns,
                      to = is_transposed ? kColumns : kRows;
    const auto at = [&](std::size_t i, std::size_t j) {
      return std::abs(is_transposed ? matrix[j][i] : matrix[i][j]);
    };
    std::vector<double> result(to * to);
    for (std::size_t i = 0; i < to; ++i)
      for (std::size_t j = 0; j < to; ++j)
        for (std::size_t r = 0; r < from; ++r)
          for (std::size_t s = 0; s < from; ++s)
            result[i * to + j] += at(i, r) * std::abs(values[r * from + s]) * at(j, s);
    return result;
  }
};

// For each result, the sum of its terms' absolute values, added in Winograd's way. Rounding a sum
// of n terms errs by at most n 2^-24 of that sum (Higham, "Accuracy and Stability of Numerical
// Algorithms", section 3.1).
Doubles largest_terms(const Probe& probe, Direction direction) {
  const Transform t;
  const Shape& in = direction == Direction::backward_data ? probe.y_shape : probe.x_shape;
  const Shape& out = direction == Direction::backward_data ? probe.x_shape : probe.y_shape;
  const Doubles& input = direction == Direction::backward_data ? probe.dy : probe.x;
  const bool is_back = direction == Direction::backward_data;
  const Extent padding =
      is_back ? Extent{2 - probe.shape.padding.h, 2 - probe.shape.padding.w} : probe.shape.padding;
  const auto patch = [](const Doubles& values, const Shape& s, std::size_t n, std::size_t row,
                        std::size_t column, std::size_t c, std::size_t side, Extent before) {
    std::vector<double> result(side * side);
    for (std::size_t i = 0; i < side; ++i)
      for (std::size_t j = 0; j < side; ++j) {
        const std::size_t h = row + i - before.h,
                          w = column + j - before.w;  // large where it is outside
        if (h < s.h && w < s.w) result[i * side + j] = values[((n * s.h + h) * s.w + w) * s.c + c];
      }
    return result;
  };
  Doubles result(probe.size(direction));
  std::vector<std::vector<double>> sums(out.c * in.c, std::vector<double>(36));
  for (std::size_t n = 0; n < out.n; ++n)
    for (std::size_t row = 0; row < out.h; row += 4)
      for (std::size_t column = 0; column < out.w; column += 4) {
        std::vector<std::vector<double>> points(in.c);
        for (std::size_t c = 0; c < in.c; ++c)
          points[c] = Transform::sizes(t.b, false, patch(input, in, n, row, column, c, 6, padding));
        for (std::size_t k = 0; k < out.c; ++k) {
          if (direction == Direction::backward_weights) {
            const auto gradient =
                Transform::sizes(t.a, false, patch(probe.dy, out, n, row, column, k, 4, 0));
            for (std::size_t c = 0; c < in.c; ++c)
              for (std::size_t p = 0; p < 36; ++p)
                sums[k * in.c + c][p] += gradient[p] * points[c][p];
            continue;
          }
          std::vector<double> sum(36);
          for (std::size_t c = 0; c < in.c; ++c) {
            std::vector<double> kernel(9);
            for (std::size_t rs = 0; rs < 9; ++rs)
              kernel[rs] = is_back ? probe.w[(c * 9 + 8 - rs) * out.c + k]
                                   : probe.w[(k * 9 + rs) * in.c + c];
            const auto weights = Transform::sizes(t.g, false, kernel);
            for (std::size_t p = 0; p < 36; ++p) sum[p] += weights[p] * points[c][p];
          }
          const auto values = Transform::sizes(t.a, true, sum);
          for (std::size_t i = 0; i < 4 && row + i < out.h; ++i)
            for (std::size_t j = 0; j < 4 && column + j < out.w; ++j)
              result[((n * out.h + row + i) * out.w + column + j) * out.c + k] = values[i * 4 + j];
        }
      }
  if (direction == Direction::backward_weights) {
    for (std::size_t k = 0; k < out.c; ++k)
      for (std::size_t c = 0; c < in.c; ++c) {
        const auto values = Transform::sizes(t.g, true, sums[k * in.c + c]);
        for (std::size_t rs = 0; rs < 9; ++rs) result[(k * 9 + rs) * in.c + c] = values[rs];
      }
  }
  return result;
}

class Winograd : public testing::TestWithParam<WinogradCase> {};

TEST_P(Winograd, ErrsWithinTheBound) {
  const Probe probe(GetParam());
  for (const Direction direction : kDirections) {
    const Doubles result = probe.run(direction, 1);
    ASSERT_FALSE(result.empty());
    const Doubles expected = probe.expected(direction), terms = largest_terms(probe, direction);
    // Additions of the sum of products, and in each dimension at most five roundings of each of
    // three transforms, a constant's included; a product's own.
    const std::size_t tiles =
        probe.y_shape.n * ((probe.y_shape.h + 3) / 4) * ((probe.y_shape.w + 3) / 4);
    const std::size_t sum = direction == Direction::forward         ? probe.x_shape.c
                            : direction == Direction::backward_data ? probe.y_shape.c
                                                                    : tiles;
    const double allowed = static_cast<double>(sum + 2 * 3 * 5 + 1) * 0x1p-24;
    double largest = 0;
    for (std::size_t i = 0; i < result.size(); ++i) {
      ASSERT_LE(std::abs(result[i] - expected[i]), allowed * terms[i])
          << "value " << i << ", direction " << static_cast<int>(direction);
      if (terms[i] > 0) largest = std::max(largest, std::abs(result[i] - expected[i]) / terms[i]);
    }
    // The bound is a worst case. The largest error measured was 0.92 of 2^-24 (AVX2 and AVX-512).
    EXPECT_LE(largest, 2 * 0x1p-24);
  }
}

TEST_P(Winograd, BitsDependNeitherOnThreadsNorOnOrder) {
  const Probe probe(GetParam());
  for (const Direction direction : kDirections) {
    const Doubles result = probe.run(direction, 1);
    ASSERT_FALSE(result.empty());
    for (const int threads : {2, 3, 5})
      EXPECT_EQ(probe.run(direction, threads), result) << threads << " threads";
    EXPECT_EQ(probe.run(direction, 2, true), result) << "NHWC";
  }
}

// The loops compute in fp32: activations in bf16 are read exactly, and results are rounded once.
TEST_P(Winograd, RoundsActivationsInBf16Once) {
  const Probe probe(GetParam(), DataType::bf16);
  Probe same_values = probe;
  same_values.type = DataType::f32;
  for (const Direction direction : kDirections) {
    Doubles expected = same_values.run(direction, 1);
    ASSERT_FALSE(expected.empty());
    if (direction != Direction::backward_weights) {
      for (double& value : expected) {
        value = static_cast<double>(cpu::load(cpu::store<bf16>(static_cast<float>(value))));
      }
    }
    EXPECT_EQ(probe.run(direction, 1), expected);
  }
}

// Whole tiles and parts of tiles, images smaller than a tile. By groups of channels:
INSTANTIATE_TEST_SUITE_P(
    FewTiles, Winograd,
    testing::Values(WinogradCase{2, 8, 8, 32, 32}, WinogradCase{1, 7, 5, 16, 48},
                    WinogradCase{3, 4, 4, 48, 16}, WinogradCase{5, 1, 1, 16, 32},
                    WinogradCase{2, 2, 9, 32, 64}, WinogradCase{1, 6, 11, 16, 16, 0},
                    WinogradCase{2, 5, 6, 16, 16, 2}, WinogradCase{2, 6, 4, 16, 32, {0, 1}}));
// By tiles, in one block and in several; outputs in one, two and three groups of 16 and of 32.
INSTANTIATE_TEST_SUITE_P(ManyTiles, Winograd,
                         testing::Values(WinogradCase{5, 8, 8, 16, 16},
                                         WinogradCase{10, 16, 15, 16, 16},
                                         WinogradCase{5, 16, 15, 32, 64},
                                         WinogradCase{5, 16, 15, 16, 48},
                                         WinogradCase{5, 16, 15, 48, 16}));

TEST(WinogradOffer, IsForKernelsOfThreeAndBlocksOfSixteen) {
  cpu::CpuDevice device(DeviceOptions{.threads = 1, .tune = false});
  const auto is_offered = [&](std::size_t c, std::size_t k, Extent kernel, std::size_t stride) {
    const Shape x{1, 8, 8, c}, y = conv2d_output(x, k, kernel, stride, 1);
    return make_winograd_pass(device,
                              {.x = TensorDesc::nhwc(x),
                               .y = TensorDesc::nhwc(y),
                               .kernel = kernel,
                               .stride = stride,
                               .padding = 1},
                              Direction::forward) != nullptr;
  };
  EXPECT_TRUE(is_offered(16, 32, 3, 1));
  EXPECT_FALSE(is_offered(16, 32, 3, 2));
  EXPECT_FALSE(is_offered(16, 32, 1, 1));
  EXPECT_FALSE(is_offered(16, 32, {3, 1}, 1));
  EXPECT_FALSE(is_offered(3, 32, 3, 1));
  EXPECT_FALSE(is_offered(16, 24, 3, 1));
}

}  // namespace
}  // namespace dp::test
