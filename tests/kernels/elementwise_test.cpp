// Tests element-wise operations, dropout, biases and the padding shortcut on a device against the
// reference: types, blocks, odd sizes, outputs that alias inputs; the same bits for 1 and 2
// threads.
#include "kernels/elementwise.hpp"

#include "kernels/channel_bias.hpp"
#include "kernels/conv2d.hpp"
#include "kernels/dropout.hpp"
#include "kernels/gelu.hpp"
#include "kernels/pad_shortcut.hpp"
#include "tests/kernels/kernel_testing.hpp"
#include "tests/kernels/reference/channel_bias.hpp"
#include "tests/kernels/reference/dropout.hpp"
#include "tests/kernels/reference/elementwise.hpp"
#include "tests/kernels/reference/pad_shortcut.hpp"

namespace dp::test {
namespace {

// One operation on a few values: fp32 rounds below 1e-6 of the root mean square. bf16 rounds once,
// by at most 2^-8 of values up to twice the root mean square.
double tolerance(DataType type) { return type == DataType::f32 ? 1e-6 : 8e-3; }

class TensorOperation : public testing::TestWithParam<Form> {
 protected:
  TensorOperation()
      : form_(GetParam()),
        desc_{form_.shape, form_.type, form_.block},
        device_(make_test_device({.threads = form_.threads, .tune = false})),
        count_(form_.shape.elements()),
        a_(random_values(count_, 1, form_.type)),
        b_(random_values(count_, 2, form_.type)) {}

  void SetUp() override {
    if (on_gpu() && form_.block != form_.shape.c) GTEST_SKIP() << kCpuBlocks;
  }

  Form form_;
  TensorDesc desc_;
  TestDevice device_;
  std::size_t count_;
  Doubles a_, b_;
};

TEST_P(TensorOperation, Relu) {
  Doubles y(count_), dx(count_);
  reference::relu_forward(count_, a_.data(), y.data());
  reference::relu_backward(count_, y.data(), b_.data(), dx.data());
  GuardedTensor t_x(desc_, a_), t_y(desc_), t_dy(desc_, b_), t_dx(desc_);
  relu_forward(*device_, t_x.view(), t_y.view());
  relu_backward(*device_, t_y.view(), t_dy.view(), t_dx.view());
  EXPECT_EQ(t_y.values(), y);
  EXPECT_EQ(t_dx.values(), dx);
  relu_forward(*device_, t_x.view(), t_x.view());
  relu_backward(*device_, t_y.view(), t_dy.view(), t_dy.view());
  EXPECT_EQ(t_x.values(), y) << "in place";
  EXPECT_EQ(t_dy.values(), dx) << "in place";
}

TEST_P(TensorOperation, Gelu) {
  Doubles x = a_;
  for (double& v : x) v *= 4;  // exact; both tails
  Doubles y(count_), dx(count_);
  reference::gelu_forward(count_, x.data(), y.data());
  reference::gelu_backward(count_, x.data(), b_.data(), dx.data());
  GuardedTensor t_x(desc_, x), t_y(desc_), t_dy(desc_, b_), t_dx(desc_);
  gelu_forward(*device_, t_x.view(), t_y.view());
  gelu_backward(*device_, t_x.view(), t_dy.view(), t_dx.view());
  // GELU has some ten roundings, and values of up to four times the root mean square.
  EXPECT_LE(normalised_error(t_y.values(), y), 2 * tolerance(form_.type));
  EXPECT_LE(normalised_error(t_dx.values(), dx), 2 * tolerance(form_.type));
  gelu_backward(*device_, t_x.view(), t_dy.view(), t_dy.view());
  gelu_forward(*device_, t_x.view(), t_x.view());
  EXPECT_EQ(t_x.values(), t_y.values()) << "in place";
  EXPECT_EQ(t_dy.values(), t_dx.values()) << "in place";
}

TEST_P(TensorOperation, Scale) {
  Doubles y(count_);
  reference::scale(count_, a_.data(), 1.0 / 9, y.data());
  GuardedTensor t_x(desc_, a_), t_y(desc_);
  scale(*device_, t_x.view(), 1.0f / 9, t_y.view());
  scale(*device_, t_x.view(), 1.0f / 9, t_x.view());
  EXPECT_LE(normalised_error(t_y.values(), y), tolerance(form_.type));
  EXPECT_EQ(t_x.values(), t_y.values()) << "in place";
}

// The mask equals the reference's, value by value, in every memory layout. It depends on the rank's
// images of the step: two ranks that share a batch draw the mask of one rank.
TEST_P(TensorOperation, Dropout) {
  const DropoutRule rule{.probability = 0.3, .stream = 2};
  const Shared position(StepPosition{.seed = 5, .step = 7, .first_image = 1, .image_stride = 2});
  Doubles y(count_);
  reference::dropout(form_.shape, a_.data(), rule, position.value(), y.data());
  GuardedTensor t_x(desc_, a_), t_y(desc_);
  dropout(*device_, t_x.view(), rule, position.data(), t_y.view());
  dropout(*device_, t_x.view(), rule, position.data(), t_x.view());
  const Doubles values = t_y.values();
  EXPECT_LE(normalised_error(values, y), tolerance(form_.type));
  for (std::size_t i = 0; i < count_; ++i) ASSERT_EQ(values[i] == 0, y[i] == 0) << i;
  EXPECT_EQ(t_x.values(), values) << "in place";
}

TEST_P(TensorOperation, ChannelBias) {
  const std::size_t channels = form_.shape.c, rows = count_ / channels;
  const Doubles bias = random_values(channels, 3);
  Doubles y = a_, gradient(channels);
  reference::add_channel_bias(rows, channels, bias.data(), y.data());
  reference::channel_bias_backward(rows, channels, b_.data(), gradient.data());
  const auto plan = make_channel_bias(*device_, desc_);
  GuardedTensor t_y(desc_, a_), t_dy(desc_, b_), t_bias(bias), t_gradient(channels);
  plan->add(t_y.view(), t_bias.floats());
  plan->backward(t_dy.view(), t_gradient.floats());
  EXPECT_LE(normalised_error(t_y.values(), y), tolerance(form_.type));
  // The sum is in fp32 whatever the type of dy; of up to 1,122 values that mostly cancel.
  EXPECT_LE(normalised_error(t_gradient.values(), gradient), 5e-6);
}

TEST_P(TensorOperation, Add) {
  Doubles y(count_);
  reference::add(count_, a_.data(), b_.data(), y.data());
  GuardedTensor t_a(desc_, a_), t_b(desc_, b_), t_y(desc_);
  add(*device_, t_a.view(), t_b.view(), t_y.view());
  EXPECT_LE(normalised_error(t_y.values(), y), tolerance(form_.type));
  add(*device_, t_a.view(), t_b.view(), t_a.view());
  EXPECT_EQ(t_a.values(), t_y.values()) << "in place";
  add(*device_, t_b.view(), t_b.view(), t_b.view());
  for (std::size_t i = 0; i < count_; ++i) y[i] = 2 * b_[i];
  EXPECT_EQ(t_b.values(), y) << "doubling is exact";
}

// To every block that divides the channels and to both types, and back.
TEST_P(TensorOperation, CopyChangesBlockAndType) {
  GuardedTensor from(desc_, a_);
  for (const std::size_t block : {std::size_t{8}, std::size_t{16}, form_.shape.c}) {
    if (form_.shape.c % block != 0) continue;
    if (on_gpu() && block != form_.shape.c) continue;  // blocks are the CPU's
    for (const DataType type : {DataType::f32, DataType::bf16}) {
      GuardedTensor to({form_.shape, type, block}), back(desc_);
      copy(*device_, from.view(), to.view());
      copy(*device_, to.view(), back.view());
      Doubles expected = a_;
      if (type == DataType::bf16) {
        for (double& v : expected) {
          v = static_cast<double>(cpu::load(cpu::store<bf16>(static_cast<float>(v))));
        }
      }
      EXPECT_EQ(to.values(), expected);
      EXPECT_EQ(back.values(), expected);
    }
  }
}

TEST_P(TensorOperation, PadShortcut) {
  const Shape& s = form_.shape;
  for (const std::size_t stride : {1u, 2u}) {
    for (const std::size_t channels : {s.c, 2 * s.c, s.c + 3}) {
      const Shape y_shape = conv2d_output(s, channels, 1, stride, 0);
      const bool is_blocked = channels % form_.block == 0 && !on_gpu();
      const std::size_t block = is_blocked ? form_.block : channels;
      const TensorDesc y_desc{y_shape, form_.type, block};
      const Doubles dy = random_values(y_shape.elements(), 3, form_.type);
      Doubles y(y_shape.elements()), dx(count_);
      reference::pad_shortcut_forward(s, y_shape, stride, a_.data(), y.data());
      reference::pad_shortcut_backward(s, y_shape, stride, dy.data(), dx.data());
      GuardedTensor t_x(desc_, a_), t_y(y_desc), t_dy(y_desc, dy), t_dx(desc_);
      pad_shortcut_forward(*device_, t_x.view(), stride, t_y.view());
      pad_shortcut_backward(*device_, t_dy.view(), stride, t_dx.view());
      EXPECT_EQ(t_y.values(), y) << "nothing is computed: exact";
      EXPECT_EQ(t_dx.values(), dx);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Forms, TensorOperation,
    testing::Values(
        Form{{2, 7, 5, 16}, 16, DataType::f32, 1}, Form{{3, 5, 4, 5}, 5, DataType::f32, 1},
        Form{{1, 3, 3, 24}, 8, DataType::f32, 2}, Form{{1, 1, 1, 3}, 3, DataType::f32, 2},
        Form{{3, 9, 7, 64}, 16, DataType::f32, 2}, Form{{2, 7, 5, 32}, 32, DataType::bf16, 1},
        Form{{3, 9, 7, 64}, 64, DataType::bf16, 1}, Form{{2, 5, 3, 600}, 600, DataType::f32, 1},
        Form{{1, 4, 4, 2080}, 2080, DataType::bf16, 1}, Form{{3, 9, 7, 64}, 16, DataType::bf16, 2},
        // Longer than one piece of the loops.
        Form{{2, 33, 17, 32}, 16, DataType::f32, 2}, Form{{2, 33, 17, 32}, 32, DataType::f32, 2}));

class EveryType : public testing::TestWithParam<DataType> {
 protected:
  void SetUp() override {
    if (skips(*device_, type_)) GTEST_SKIP() << "no bf16 on this processor";
  }

  const TestDevice device_ = make_test_device({.tune = false});
  const DataType type_ = GetParam();
};

// Packs of 16 bytes and single elements give the same results: unaligned addresses, lengths with a
// remainder, tensors longer than one round of all threads, and empty ones.
TEST_P(EveryType, AnyPlaceAndLength) {
  for (const std::size_t count : {0u, 1u, 9u, 100003u}) {
    for (const std::size_t skipped : {0u, 1u}) {
      const std::size_t all = count + skipped;
      const TensorDesc desc = TensorDesc::nhwc({all, 1, 1, 1}, type_);
      const Doubles a = random_values(all, 1, type_), b = random_values(all, 2, type_);
      GuardedTensor t_a(desc, a), t_b(desc, b), t_y(desc);
      const auto part = [&](GuardedTensor& tensor) {
        auto* first = tensor.view().as<std::byte>() + skipped * size_of(type_);
        return TensorView{TensorDesc::nhwc({count, 1, 1, 1}, type_), first};
      };
      const DataType other = type_ == DataType::f32 ? DataType::bf16 : DataType::f32;
      GuardedTensor t_copy(TensorDesc::nhwc({all, 1, 1, 1}, other));
      auto* copy_first = t_copy.view().as<std::byte>() + skipped * size_of(other);
      add(*device_, part(t_a), part(t_b), part(t_y));
      copy(*device_, part(t_a), {TensorDesc::nhwc({count, 1, 1, 1}, other), copy_first});
      relu_forward(*device_, part(t_a), part(t_a));
      relu_backward(*device_, part(t_a), part(t_b), part(t_b));
      const Doubles sums = t_y.values(), relu = t_a.values(), gradient = t_b.values(),
                    copies = t_copy.values();
      for (std::size_t i = 0; i < all; ++i) {
        const auto rounded = [&](double v, DataType to) {
          const auto value = static_cast<float>(v);
          return static_cast<double>(to == DataType::f32 ? value
                                                         : cpu::load(cpu::store<bf16>(value)));
        };
        if (i < skipped) {
          EXPECT_TRUE(std::isnan(sums[i]) && std::isnan(copies[i]));
          EXPECT_EQ(relu[i], a[i]);
          continue;
        }
        ASSERT_EQ(sums[i], rounded(a[i] + b[i], type_)) << i << " of " << all;
        ASSERT_EQ(copies[i], rounded(a[i], other)) << i << " of " << all;
        ASSERT_EQ(relu[i], a[i] < 0 ? 0 : a[i]) << i << " of " << all;
        ASSERT_EQ(gradient[i], a[i] > 0 ? b[i] : 0) << i << " of " << all;
      }
    }
  }
}

TEST_P(EveryType, ReluKeepsNan) {
  const TensorDesc desc = TensorDesc::nhwc({1, 1, 1, 16}, type_);
  GuardedTensor x(desc), dy(desc, Doubles(16, 1.0));
  relu_forward(*device_, x.view(), x.view());
  relu_backward(*device_, x.view(), dy.view(), dy.view());
  for (const double v : x.values()) EXPECT_TRUE(std::isnan(v));
  EXPECT_EQ(dy.values(), Doubles(16, 0.0)) << "NaN is not above 0";
}

INSTANTIATE_TEST_SUITE_P(Types, EveryType, testing::Values(DataType::f32, DataType::bf16),
                         [](const auto& row) { return std::string(name_of(row.param)); });

// Over the whole range on which y is neither 0 nor x, relative to each value: the error of exp(z)
// for a rounded z is up to |z| * 2^-24, which is 5e-6 at 12.
TEST(Gelu, TailsKeepTheirRelativeError) {
  constexpr std::size_t kCount = 4801;
  Doubles x(kCount), y(kCount), slope(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    x[i] = static_cast<double>(static_cast<float>((static_cast<double>(i) + 0.5) / 200.0 - 12.0));
  }
  reference::gelu_forward(kCount, x.data(), y.data());
  const Doubles ones(kCount, 1.0);
  reference::gelu_backward(kCount, x.data(), ones.data(), slope.data());
  const auto device = make_test_device({.tune = false});
  const TensorDesc desc = TensorDesc::nhwc({kCount, 1, 1, 1});
  GuardedTensor t_x(desc, x), t_ones(desc, ones), t_y(desc), t_slope(desc);
  gelu_forward(*device, t_x.view(), t_y.view());
  gelu_backward(*device, t_x.view(), t_ones.view(), t_slope.view());
  const Doubles values = t_y.values(), slopes = t_slope.values();
  for (std::size_t i = 0; i < kCount; ++i) {
    const double allowed = 5e-7 + 3e-8 * x[i] * x[i];
    ASSERT_NEAR(values[i], y[i], allowed * std::abs(y[i])) << x[i];
    ASSERT_NEAR(slopes[i], slope[i], allowed * (1 + std::abs(x[i])) * std::max(y[i] / x[i], 0.01))
        << x[i];
  }
}

TEST(Gelu, EndsOfTheRange) {
  const auto device = make_test_device({.tune = false});
  const double inf = std::numeric_limits<double>::infinity();
  const TensorDesc desc = TensorDesc::nhwc({1, 1, 1, 4});
  GuardedTensor x(desc, {0.0, inf, 1e30, 14.0}), y(desc), below(desc, {-0.0, -14.0, -80.0, -1e30});
  gelu_forward(*device, x.view(), y.view());
  EXPECT_EQ(y.values(), (Doubles{0.0, inf, static_cast<double>(1e30f), 14.0}));
  gelu_forward(*device, below.view(), y.view());
  for (const double v : y.values()) EXPECT_NEAR(v, 0.0, 1e-6);
  GuardedTensor nan(desc), ones(desc, Doubles(4, 1.0));
  gelu_forward(*device, nan.view(), y.view());
  gelu_backward(*device, nan.view(), ones.view(), ones.view());
  for (const double v : y.values()) EXPECT_TRUE(std::isnan(v));
  for (const double v : ones.values()) EXPECT_TRUE(std::isnan(v));
}

// Every device draws and computes the same bits: the test's device agrees with the CPU.
TEST(SameBits, OnEveryDevice) {
  const auto device = make_test_device({.tune = false});
  const std::unique_ptr<Device> cpu = make_device({.threads = 2, .tune = false});
  const Shared position(StepPosition{.seed = 5, .step = 7});
  const TensorDesc desc = TensorDesc::nhwc({3, 5, 7, 24});
  Doubles values = random_values(desc.shape.elements(), 1);
  for (double& v : values) v *= 5;
  GuardedTensor x(desc, values), dy(desc, random_values(values.size(), 2));
  GuardedTensor here(desc), there(desc);
  const auto compare = [&](const char* what, const auto& operation) {
    operation(*device, here.view());
    const auto mine = here.raw();
    operation(*cpu, there.view());
    EXPECT_EQ(mine, there.raw()) << what;
  };
  compare("gelu", [&](Device& d, const TensorView& y) { gelu_forward(d, x.view(), y); });
  compare("slope",
          [&](Device& d, const TensorView& y) { gelu_backward(d, x.view(), dy.view(), y); });
  compare("dropout", [&](Device& d, const TensorView& y) {
    dropout(d, x.view(), {.probability = 0.5}, position.data(), y);
  });
}

// Seed, step, stream and position each change the mask; the fraction of zeros is p.
TEST(Dropout, MaskIsAFunctionOfItsPlace) {
  const auto device = make_test_device({.tune = false});
  constexpr std::size_t kCount = 40000;
  const TensorDesc desc = TensorDesc::nhwc({4, 1, 1, kCount / 4});
  const auto mask = [&](const StepPosition& position, const DropoutRule& rule) {
    const Shared shared(position);
    GuardedTensor x(desc, Doubles(kCount, 1.0)), y(desc);
    dropout(*device, x.view(), rule, shared.data(), y.view());
    return y.values();
  };
  const Doubles first = mask({.seed = 1}, {.probability = 0.25});
  EXPECT_EQ(first, mask({.seed = 1}, {.probability = 0.25}));
  const std::vector<Doubles> others = {mask({.seed = 2}, {.probability = 0.25}),
                                       mask({.seed = 1, .step = 1}, {.probability = 0.25}),
                                       mask({.seed = 1}, {.probability = 0.25, .stream = 1}),
                                       mask({.seed = 1, .first_image = 4}, {.probability = 0.25})};
  for (const Doubles& other : others) {
    double equal = 0;
    for (std::size_t i = 0; i < kCount; ++i) equal += first[i] == other[i] ? 1.0 : 0.0;
    // Independent masks agree at 0.75^2 + 0.25^2 of the places; 6 standard errors.
    EXPECT_NEAR(equal / kCount, 0.625, 6 * std::sqrt(0.625 * 0.375 / kCount));
  }
  double zeros = 0;
  for (const double v : first) {
    zeros += v == 0 ? 1.0 : 0.0;
    EXPECT_TRUE(v == 0 || v == static_cast<double>(static_cast<float>(4.0 / 3))) << v;
  }
  EXPECT_NEAR(zeros / kCount, 0.25, 6 * std::sqrt(0.25 * 0.75 / kCount));
  EXPECT_EQ(mask({}, {.probability = 0.0}), Doubles(kCount, 1.0));
}

// NaN, infinities, the largest numbers and ties through the bf16 conversion.
TEST(Copy, RoundsToBf16) {
  const auto device = make_test_device({.tune = false});
  const double inf = std::numeric_limits<double>::infinity();
  const Doubles values = {1.0,  1.0 + 0x1p-8, 1.0 + 3 * 0x1p-8, -1.0 - 0x1p-9, 0x1.FFFFFEp127, inf,
                          -inf, -0.0};
  const Shape shape{1, 1, 1, 8};
  GuardedTensor from(TensorDesc::nhwc(shape), values);
  GuardedTensor to(TensorDesc::nhwc(shape, DataType::bf16));
  copy(*device, from.view(), to.view());
  EXPECT_EQ(to.values(), (Doubles{1.0, 1.0, 1.0 + 0x1p-6, -1.0, inf, inf, -inf, -0.0}));
  GuardedTensor nan(TensorDesc::nhwc(shape));
  copy(*device, nan.view(), to.view());
  for (const double v : to.values()) EXPECT_TRUE(std::isnan(v));
}

}  // namespace
}  // namespace dp::test
