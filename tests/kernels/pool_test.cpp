// Tests pooling and concatenation on a device against the reference: types, blocks, windows that
// overlap, have gaps or extend beyond the image's edge, equal values, NaN, outputs that are not
// wanted.
#include "kernels/pool.hpp"

#include "kernels/base/error.hpp"
#include "kernels/concatenate.hpp"
#include "kernels/max_pool.hpp"
#include "tests/kernels/kernel_testing.hpp"
#include "tests/kernels/reference/concatenate.hpp"
#include "tests/kernels/reference/pool.hpp"

namespace dp::test {
namespace {

// A few values are added: fp32 rounds below 2e-6 of the root mean square. bf16 rounds once, by at
// most 2^-8 of values up to four times the root mean square.
double tolerance(DataType type) { return type == DataType::f32 ? 2e-6 : 1.6e-2; }

double rounded(double v, DataType type) {
  const auto value = static_cast<float>(v);
  return static_cast<double>(type == DataType::f32 ? value : cpu::load(cpu::store<bf16>(value)));
}

const Pooling kPoolings[] = {
    {},
    {.window = 3, .stride = 2, .padding = 1},
    {.window = 3, .stride = 2},
    {.window = 3, .stride = 1, .padding = 1, .counts_padding = false},
    {.window = 1, .stride = 3},
    {.window = {1, 3}, .stride = {2, 1}, .padding = {0, 1}},
    {.window = {4, 2}, .stride = {1, 3}, .padding = {2, 0}, .counts_padding = false},
};

// Whether all windows fit on an image of this size.
bool fits(const Shape& x, const Pooling& p) {
  return x.h + 2 * p.padding.h >= p.window.h && x.w + 2 * p.padding.w >= p.window.w;
}

class PoolOperation : public testing::TestWithParam<Form> {
 protected:
  PoolOperation()
      : form_(GetParam()),
        desc_{form_.shape, form_.type, form_.block},
        device_(make_test_device({.threads = form_.threads, .tune = false})),
        count_(form_.shape.elements()),
        x_(random_values(count_, 1, form_.type)) {}

  void SetUp() override {
    if (on_gpu() && form_.block != form_.shape.c) GTEST_SKIP() << kCpuBlocks;
  }

  Form form_;
  TensorDesc desc_;
  TestDevice device_;
  std::size_t count_;
  Doubles x_;
};

TEST_P(PoolOperation, Average) {
  for (const Pooling& pooling : kPoolings) {
    if (!fits(form_.shape, pooling)) continue;
    const Shape y_shape = pooled_shape(form_.shape, pooling);
    const TensorDesc y_desc{y_shape, form_.type, form_.block};
    const Doubles dy = random_values(y_shape.elements(), 3, form_.type);
    Doubles divisors(y_shape.elements()), y(y_shape.elements()), dx(count_);
    reference::average_pool_divisors(form_.shape, y_shape, pooling, divisors.data());
    reference::average_pool_forward(form_.shape, y_shape, pooling, x_.data(), divisors.data(),
                                    y.data());
    reference::average_pool_backward(form_.shape, y_shape, pooling, dy.data(), divisors.data(),
                                     dx.data());
    GuardedTensor t_x(desc_, x_), t_y(y_desc), t_dy(y_desc, dy), t_dx(desc_);
    average_pool_forward(*device_, t_x.view(), pooling, t_y.view());
    average_pool_backward(*device_, t_dy.view(), pooling, t_dx.view());
    EXPECT_LE(normalised_error(t_y.values(), y), tolerance(form_.type));
    EXPECT_LE(normalised_error(t_dx.values(), dx), tolerance(form_.type));
  }
}

// Values are multiples of 1/4, so that many are equal; some are NaN or infinite.
TEST_P(PoolOperation, Max) {
  for (double& v : x_) v = std::round(4 * v) / 4;
  for (std::size_t i = 0; i < count_; i += 13) x_[i] = -std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (std::size_t i = 5; i < count_; i += 37) x_[i] = nan;
  for (const Pooling& pooling : kPoolings) {
    if (!fits(form_.shape, pooling)) continue;
    const Shape y_shape = pooled_shape(form_.shape, pooling);
    const TensorDesc y_desc{y_shape, form_.type, form_.block};
    const Doubles dy = random_values(y_shape.elements(), 3, form_.type);
    Doubles y(y_shape.elements()), dx(count_);
    std::vector<std::uint8_t> places(y_shape.elements());
    reference::max_pool_forward(form_.shape, y_shape, pooling, x_.data(), y.data(), places.data());
    reference::max_pool_backward(form_.shape, y_shape, pooling, dy.data(), places.data(),
                                 dx.data());
    GuardedTensor t_x(desc_, x_), t_y(y_desc), t_alone(y_desc), t_dy(y_desc, dy), t_dx(desc_);
    GuardedTensor t_places(
        TensorDesc::nhwc({(y_shape.elements() + 1) / 2, 1, 1, 1}, DataType::bf16));
    auto* kept = t_places.view().as<std::uint8_t>();
    max_pool_forward(*device_, t_x.view(), pooling, t_y.view(), kept);
    max_pool_forward(*device_, t_x.view(), pooling, t_alone.view(), nullptr);
    max_pool_backward(*device_, t_dy.view(), kept, pooling, t_dx.view());
    const auto without_nan = [&](Doubles values) {
      for (double& v : values) v = std::isnan(v) ? 1234.0 : v;
      return values;
    };
    EXPECT_EQ(without_nan(t_y.values()), without_nan(y)) << "nothing is computed: exact";
    EXPECT_EQ(t_alone.raw(), t_y.raw()) << "without places";
    // Both sides round to the type once; fp32 adds the few terms of a sum nearly exactly.
    for (double& v : dx) v = rounded(v, form_.type);
    EXPECT_LE(normalised_error(t_dx.values(), dx), 2e-6);
    static_cast<void>(t_places.values());  // looks at the guards
  }
}

TEST_P(PoolOperation, GlobalAverage) {
  const Shape& s = form_.shape;
  const TensorDesc y_desc = TensorDesc::nhwc({s.n, 1, 1, s.c});
  const Doubles dy = random_values(s.n * s.c, 3);
  Doubles y(s.n * s.c), dx(count_);
  reference::global_average_pool_forward(s, x_.data(), y.data());
  reference::global_average_pool_backward(s, dy.data(), dx.data());
  GuardedTensor t_x(desc_, x_), t_y(y_desc), t_dy(y_desc, dy), t_dx(desc_);
  global_average_pool_forward(*device_, t_x.view(), t_y.view());
  global_average_pool_backward(*device_, t_dy.view(), t_dx.view());
  // The sum is in fp32 whatever the type of x; of up to 63 values that mostly cancel.
  EXPECT_LE(normalised_error(t_y.values(), y), 5e-6);
  EXPECT_LE(normalised_error(t_dx.values(), dx), tolerance(form_.type));
}

// Parts with the same and with other blocks; in backward one part is not wanted.
TEST_P(PoolOperation, Concatenate) {
  const std::size_t channels[] = {form_.shape.c, 5, 2 * form_.shape.c};
  std::size_t all = 0;
  for (const std::size_t c : channels) all += c;
  Shape y_shape = form_.shape;
  y_shape.c = all;
  for (const bool has_block : {false, true}) {
    const bool is_blocked = has_block && all % form_.block == 0 && !on_gpu();
    if (has_block && !is_blocked) continue;
    const TensorDesc y_desc{y_shape, form_.type, is_blocked ? form_.block : all};
    Doubles y(y_shape.elements());
    std::vector<Doubles> values;
    std::vector<GuardedTensor> parts, back;
    std::size_t first = 0;
    for (const std::size_t c : channels) {
      Shape shape = form_.shape;
      shape.c = c;
      const TensorDesc desc{shape, form_.type, c % form_.block == 0 && !on_gpu() ? form_.block : c};
      values.push_back(random_values(shape.elements(), 10 + first, form_.type));
      reference::for_each_in_part(
          shape.n * shape.pixels(), c, first, all,
          [&](std::size_t part, std::size_t whole) { y[whole] = values.back()[part]; });
      parts.emplace_back(desc, values.back());
      back.emplace_back(desc);
      first += c;
    }
    std::vector<TensorView> from, to;
    for (GuardedTensor& t : parts) from.push_back(t.view());
    for (GuardedTensor& t : back) to.push_back(t.view());
    to[1].data = nullptr;
    GuardedTensor t_y(y_desc);
    concatenate(*device_, from, t_y.view());
    EXPECT_EQ(t_y.values(), y);
    split(*device_, t_y.view(), to);
    EXPECT_EQ(back[0].values(), values[0]);
    EXPECT_EQ(back[2].values(), values[2]);
    for (const double v : back[1].values()) ASSERT_TRUE(std::isnan(v)) << "was written";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Forms, PoolOperation,
    testing::Values(
        Form{{2, 7, 5, 16}, 16, DataType::f32, 1}, Form{{3, 5, 4, 5}, 5, DataType::f32, 1},
        Form{{1, 3, 3, 24}, 8, DataType::f32, 2}, Form{{1, 1, 1, 3}, 3, DataType::f32, 2},
        Form{{3, 9, 7, 64}, 16, DataType::f32, 2}, Form{{2, 7, 5, 32}, 32, DataType::bf16, 1},
        Form{{3, 9, 7, 64}, 64, DataType::bf16, 1}, Form{{2, 5, 3, 600}, 600, DataType::f32, 1},
        Form{{3, 9, 7, 64}, 16, DataType::bf16, 2}, Form{{3, 4, 4, 5}, 5, DataType::bf16, 1},
        Form{{0, 4, 4, 8}, 8, DataType::f32, 1}, Form{{2, 33, 17, 32}, 32, DataType::f32, 2}));

TEST(Pooling, ShapesAreThoseOfTorch) {
  const Shape x{2, 112, 57, 5};
  EXPECT_EQ(pooled_shape(x, {.window = 3, .stride = 2, .padding = 1}), (Shape{2, 56, 29, 5}));
  EXPECT_EQ(pooled_shape(x, {.window = 3, .stride = 2}), (Shape{2, 55, 28, 5}));
  EXPECT_EQ(pooled_shape(x, {.window = {7, 1}, .stride = {1, 4}}), (Shape{2, 106, 15, 5}));
  // A window with no pixel of the image, or larger than the image.
  EXPECT_THROW(static_cast<void>(pooled_shape(x, {.window = 3, .padding = 2})), Error);
  EXPECT_THROW(static_cast<void>(pooled_shape({1, 2, 9, 1}, {.window = 3})), Error);
}

}  // namespace
}  // namespace dp::test
