// The CPU's convolution against the reference in double: shapes, types, memory forms, threads and
// every method.
#include "kernels/conv2d.hpp"

#include "kernels/reference/conv2d.hpp"
#include "tests/kernels/kernel_testing.hpp"

namespace dp::test {
namespace {

struct ConvCase {
  Shape x;
  std::size_t channels, kernel, stride;
  std::size_t x_block = 0, y_block = 0;  // 0: as the device likes; shape.c: NHWC
  DataType type = DataType::f32;
  std::string method = "fixed";
  int threads = 1;
};

void PrintTo(const ConvCase& c, std::ostream* out) {
  *out << c.x.n << "x" << c.x.h << "x" << c.x.w << "x" << c.x.c << " -> " << c.channels << ", "
       << c.kernel << "x" << c.kernel << " stride " << c.stride << ", blocks " << c.x_block << " "
       << c.y_block << ", " << name_of(c.type) << ", " << c.method << ", " << c.threads
       << " threads";
}

// Largest error over the root mean square. fp32: a running sum of n terms rounds off n times by at
// most 2^-24 of itself, at random: 6e-8 sqrt(n / 2), times 4 for the largest among some thousand
// values, is below 2e-7 sqrt(n). Winograd F(4x4, 3x3) multiplies by up to 8 and back: 3 times that
// was measured at most, 4 are allowed. bf16: weights and output are rounded, 2^-9 each, and the
// largest of some thousand values is 4 times the root mean square: 1.6e-2.
double tolerance(const ConvCase& c, const Shape& y, bool is_winograd) {
  if (c.type == DataType::bf16) return 2e-2;
  const std::size_t terms =
      std::max(c.kernel * c.kernel * std::max(c.x.c, c.channels), y.n * y.pixels());
  return (is_winograd ? 8e-7 : 2e-7) * std::sqrt(static_cast<double>(terms));
}

class Conv2dTwin : public testing::TestWithParam<ConvCase> {};

TEST_P(Conv2dTwin, EqualsReference) {
  const ConvCase& c = GetParam();
  const auto device = make_device({.threads = c.threads, .tune = c.method == "measured"});
  if (skips(*device, c.type)) GTEST_SKIP() << "no bf16 on this processor";
  const std::size_t padding = c.kernel / 2;
  const Shape y_shape = conv2d_output(c.x, c.channels, c.kernel, c.stride, padding);
  // The first layer reads fp32 images in either type.
  const DataType x_type = c.x.c == 3 ? DataType::f32 : c.type;
  const auto block = [&](std::size_t asked, std::size_t channels) {
    return asked != 0 ? asked : device->channel_block(channels);
  };
  const Conv2dDesc desc{.x = {c.x, x_type, block(c.x_block, c.x.c)},
                        .y = {y_shape, c.type, block(c.y_block, c.channels)},
                        .kernel = c.kernel,
                        .stride = c.stride,
                        .padding = padding};
  if (c.method != "fixed" && c.method != "measured") {
    const auto other = make_device({.threads = c.threads, .tune = false});
    static_cast<void>(make_conv2d(*other, desc));
    device->tuning().import_text(with_method(other->tuning().export_text(), c.method));
  }
  const auto conv = make_conv2d(*device, desc);
  // Without AVX-512 oneDNN has no Winograd, and the fixed rule decides.
  const bool is_offered = device->channel_block(64) == 16;
  if (is_offered && (c.method == "winograd" || c.method == "direct")) {
    EXPECT_EQ(conv->algorithms(),
              "forward " + c.method + ", data " + c.method + ", weights " + c.method);
  }
  const bool is_winograd = conv->algorithms().find("winograd") != std::string::npos;
  const double allowed = tolerance(c, y_shape, is_winograd);

  const reference::ConvShape shape{c.x, y_shape, c.kernel, c.stride, padding};
  const Doubles x = random_values(c.x.elements(), 1, x_type);
  const Doubles w = random_values(desc.weight_elements(), 2);
  const Doubles dy = random_values(y_shape.elements(), 3, c.type);
  Doubles y(dy.size()), dx(x.size()), dw(w.size());
  reference::conv2d_forward(shape, x.data(), w.data(), y.data());
  reference::conv2d_backward_data(shape, dy.data(), w.data(), dx.data());
  reference::conv2d_backward_weights(shape, x.data(), dy.data(), dw.data());

  GuardedTensor twin_x(desc.x, x), twin_w(w), twin_dy(desc.y, dy);
  // Twice: nothing may be left over from the first time.
  for (int round = 0; round < 2; ++round) {
    GuardedTensor twin_y(desc.y), twin_dx(desc.x), twin_dw(w.size());
    conv->forward(twin_x.view(), twin_w.floats(), twin_y.view());
    conv->backward_data(twin_dy.view(), twin_w.floats(), twin_dx.view());
    conv->backward_weights(twin_x.view(), twin_dy.view(), twin_dw.floats());
    EXPECT_LE(normalised_error(twin_y.values(), y), allowed) << conv->algorithms();
    EXPECT_LE(normalised_error(twin_dx.values(), dx), allowed) << conv->algorithms();
    EXPECT_LE(normalised_error(twin_dw.values(), dw), allowed) << conv->algorithms();
  }
  EXPECT_EQ(twin_x.values(), x);
  EXPECT_EQ(twin_dy.values(), dy);
}

constexpr auto kBf16 = DataType::bf16;
constexpr auto kFp32 = DataType::f32;

std::vector<ConvCase> cases() {
  std::vector<ConvCase> list;
  // The shapes of the networks, smaller, and awkward ones.
  const std::vector<ConvCase> shapes = {
      {{2, 7, 5, 3}, 16, 3, 1},   {{1, 8, 8, 3}, 64, 3, 1},  {{3, 8, 8, 16}, 16, 3, 1},
      {{2, 7, 5, 32}, 32, 3, 1},  {{2, 8, 8, 64}, 64, 3, 1}, {{1, 4, 4, 64}, 128, 3, 1},
      {{3, 9, 7, 16}, 32, 3, 2},  {{2, 8, 8, 32}, 64, 3, 2}, {{2, 8, 8, 32}, 64, 1, 2},
      {{1, 7, 5, 16}, 32, 1, 2},  {{2, 7, 5, 64}, 32, 1, 1}, {{2, 7, 5, 5}, 16, 3, 1},
      {{2, 7, 5, 24}, 32, 3, 1},  {{1, 6, 7, 16}, 24, 3, 2}, {{1, 1, 1, 16}, 16, 1, 1},
      {{3, 2, 1, 16}, 16, 3, 1},  {{1, 5, 5, 24}, 5, 3, 1},  {{2, 4, 4, 512}, 16, 3, 1},
      {{1, 33, 2, 16}, 32, 3, 2},
  };
  for (const ConvCase& shape : shapes) {
    for (const DataType type : {kFp32, kBf16}) {
      for (const int threads : {1, 2}) {
        ConvCase c = shape;
        c.type = type;
        c.threads = threads;
        list.push_back(c);
      }
    }
  }
  // NHWC on both sides, and blocks of 8.
  for (const DataType type : {kFp32, kBf16}) {
    list.push_back({{2, 7, 5, 32}, 64, 3, 1, 32, 64, type});
    list.push_back({{2, 7, 5, 32}, 64, 1, 2, 32, 64, type});
  }
  list.push_back({{2, 7, 5, 32}, 64, 3, 1, 8, 8});
  // Every method where it is offered.
  for (const int threads : {1, 2}) {
    for (const std::string method : {"winograd", "direct", "measured"}) {
      list.push_back({{2, 8, 8, 64}, 64, 3, 1, 0, 0, kFp32, method, threads});
      list.push_back({{1, 7, 5, 32}, 128, 3, 1, 0, 0, kFp32, method, threads});
      list.push_back({{2, 8, 8, 64}, 64, 3, 1, 0, 0, kBf16, method, threads});
    }
    list.push_back({{3, 9, 9, 32}, 64, 3, 2, 0, 0, kFp32, "direct", threads});
    list.push_back({{3, 9, 9, 32}, 64, 3, 2, 0, 0, kBf16, "direct", threads});
  }
  return list;
}

INSTANTIATE_TEST_SUITE_P(Shapes, Conv2dTwin, testing::ValuesIn(cases()));

TEST(Conv2d, WithoutInputGradientPlansNone) {
  const auto device = make_device({.tune = false});
  const Conv2dDesc desc{.x = TensorDesc::nhwc({2, 8, 8, 3}),
                        .y = {{2, 8, 8, 16}, DataType::f32, device->channel_block(16)},
                        .needs_input_gradient = false};
  EXPECT_EQ(make_conv2d(*device, desc)->algorithms().find("data"), std::string::npos);
}

}  // namespace
}  // namespace dp::test
