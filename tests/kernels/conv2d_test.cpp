// Tests a device's convolution against the reference in double: shapes, types, memory layouts,
// threads and every method. On a GPU also: parts of a batch, recordings, equal bits.
#include "kernels/conv2d.hpp"

#include "tests/kernels/kernel_testing.hpp"
#include "tests/kernels/reference/conv2d.hpp"

#ifdef DP_HAVE_CUDA
#include "kernels/cuda/device.hpp"
#include "kernels/cuda/twins.hpp"
#endif

namespace dp::test {
namespace {

struct ConvCase {
  Shape x;
  std::size_t channels;
  Extent kernel;
  std::size_t stride;
  std::size_t x_block = 0, y_block = 0;  // 0: as the device likes; shape.c: NHWC
  DataType type = DataType::f32;
  std::string method = "fixed";
  int threads = 1;
  bool is_tf32 = false;

  [[nodiscard]] Extent padding() const { return {kernel.h / 2, kernel.w / 2}; }
};

void PrintTo(const ConvCase& c, std::ostream* out) {
  *out << c.x.n << "x" << c.x.h << "x" << c.x.w << "x" << c.x.c << " -> " << c.channels << ", "
       << c.kernel.h << "x" << c.kernel.w << " stride " << c.stride << ", blocks " << c.x_block
       << " " << c.y_block << ", " << (c.is_tf32 ? "tf32" : name_of(c.type)) << ", " << c.method
       << ", " << c.threads << " threads";
}

// Tolerances: largest error divided by the root mean square.
//
// fp32: a running sum of n terms rounds n times by at most 2^-24 of itself, at random: 6e-8 sqrt(n
// / 2). Times 4 for the largest of some thousand values, this is below 2e-7 sqrt(n). Winograd
// F(4x4, 3x3) multiplies by up to 5 and back: at most 3 times that was measured, 4 are allowed.
//
// bf16: weights and output are rounded, 2^-9 each, and the largest of some thousand values is 4
// times the root mean square: 1.6e-2.
//
// TF32: tensor cores may truncate both factors of a product after 10 bits, by 2^-11 on average and
// by up to 2^-10. Sums therefore shrink by 2^-10, 1e-3, and scatter by 2^-10 sqrt(2 / 12), 4e-4;
// times 4 for the largest: 5.6e-3.
double tolerance(const ConvCase& c, const Shape& y, bool is_winograd) {
  if (c.type == DataType::bf16) return 2e-2;
  const std::size_t terms =
      std::max(c.kernel.area() * std::max(c.x.c, c.channels), y.n * y.pixels());
  const double fp32 = (is_winograd ? 8e-7 : 2e-7) * std::sqrt(static_cast<double>(terms));
  return c.is_tf32 ? 6e-3 + fp32 : fp32;
}

// A tensor in the device's own memory (a GuardedTensor on a GPU is elsewhere): filled from a
// GuardedTensor, and copied back to it by fetch().
class DeviceTensor {
 public:
  DeviceTensor(Device& device, GuardedTensor& host) : device_(device), host_(host.view()) {
    if (!on_gpu()) return;
    memory_ = device.allocate(host_.desc.bytes());
    device.upload(memory_.get(), host_.data, host_.desc.bytes());
  }
  [[nodiscard]] TensorView view() const {
    return {host_.desc, memory_ ? memory_.get() : host_.data};
  }
  [[nodiscard]] float* floats() const { return view().as<float>(); }
  void fetch() const {
    if (memory_) device_.download(host_.data, memory_.get(), host_.desc.bytes());
  }

 private:
  Device& device_;
  TensorView host_;
  Device::Memory memory_;
};

// Operands and results of all directions for one case, with the reference's results.
struct ConvProbe {
  reference::ConvShape shape;
  Conv2dDesc desc;
  Doubles x, w, dy, y, dx, dw;

  ConvProbe(const ConvCase& c, const TensorDesc& x_desc, const TensorDesc& y_desc)
      : shape{x_desc.shape, y_desc.shape, c.kernel, c.stride, c.padding()},
        desc{.x = x_desc,
             .y = y_desc,
             .kernel = c.kernel,
             .stride = c.stride,
             .padding = c.padding()},
        x(random_values(x_desc.shape.elements(), 1, x_desc.type)),
        w(random_values(desc.weight_elements(), 2)),
        dy(random_values(y_desc.shape.elements(), 3, y_desc.type)),
        y(dy.size()),
        dx(x.size()),
        dw(w.size()) {
    reference::conv2d_forward(shape, x.data(), w.data(), y.data());
    reference::conv2d_backward_data(shape, dy.data(), w.data(), dx.data());
    reference::conv2d_backward_weights(shape, x.data(), dy.data(), dw.data());
  }

  struct Results {
    Doubles y, dx, dw;
    bool operator==(const Results&) const = default;
  };
  // Runs all directions; inputs must be as they were.
  [[nodiscard]] Results run(Device& device, Conv2d& conv) const {
    GuardedTensor host_x(desc.x, x), host_w(w), host_dy(desc.y, dy);
    GuardedTensor host_y(desc.y), host_dx(desc.x), host_dw(w.size());
    const DeviceTensor on_x(device, host_x), on_w(device, host_w), on_dy(device, host_dy);
    const DeviceTensor on_y(device, host_y), on_dx(device, host_dx), on_dw(device, host_dw);
    conv.forward(on_x.view(), on_w.floats(), on_y.view());
    conv.backward_data(on_dy.view(), on_w.floats(), on_dx.view());
    conv.backward_weights(on_x.view(), on_dy.view(), on_dw.floats());
    for (const DeviceTensor* t : {&on_x, &on_w, &on_dy, &on_y, &on_dx, &on_dw}) t->fetch();
    EXPECT_EQ(host_x.values(), x);
    EXPECT_EQ(host_w.values(), w);
    EXPECT_EQ(host_dy.values(), dy);
    return {host_y.values(), host_dx.values(), host_dw.values()};
  }
  void expect_near(const Results& results, double allowed, const std::string& text) const {
    EXPECT_LE(normalised_error(results.y, y), allowed) << text;
    EXPECT_LE(normalised_error(results.dx, dx), allowed) << text;
    EXPECT_LE(normalised_error(results.dw, dw), allowed) << text;
  }
};

class Conv2dTwin : public testing::TestWithParam<ConvCase> {};

TEST_P(Conv2dTwin, EqualsReference) {
  const ConvCase& c = GetParam();
  if (on_gpu()) {
    if ((c.x_block != 0 && c.x_block != c.x.c) || (c.y_block != 0 && c.y_block != c.channels)) {
      GTEST_SKIP() << kCpuBlocks;
    }
    if (c.method == "winograd" || c.method == "direct") GTEST_SKIP() << "a GPU has other methods";
    if (c.threads > 1) GTEST_SKIP() << "threads are the CPU's";
  } else if (c.is_tf32) {
    GTEST_SKIP() << "TF32 is the GPU's";
  }
  const DeviceOptions options{
      .threads = c.threads, .tune = c.method == "measured", .allow_tf32 = c.is_tf32};
  const auto device = make_test_device(options);
  if (skips(*device, c.type)) GTEST_SKIP() << "no bf16 on this processor";
  const Shape y_shape = conv2d_output(c.x, c.channels, c.kernel, c.stride, c.padding());
  // The first layer reads fp32 images in either type.
  const DataType x_type = c.x.c == 3 ? DataType::f32 : c.type;
  const auto block = [&](std::size_t asked, std::size_t channels) {
    return asked != 0 ? asked : device->channel_block(channels);
  };
  const ConvProbe probe(c, {c.x, x_type, block(c.x_block, c.x.c)},
                        {y_shape, c.type, block(c.y_block, c.channels)});
  if (c.method != "fixed" && c.method != "measured") {
    const auto other = make_test_device({.threads = c.threads, .tune = false});
    static_cast<void>(make_conv2d(*other, probe.desc));
    device->tuning().import_text(with_method(other->tuning().export_text(), c.method));
  }
  const auto conv = make_conv2d(*device, probe.desc);
  // If activations are NHWC, oneDNN has no direct convolution.
  const bool has_direct = device->channel_block(64) < 64;
  if (c.method == "winograd" || (c.method == "direct" && has_direct)) {
    EXPECT_EQ(conv->algorithms(),
              "forward " + c.method + ", data " + c.method + ", weights " + c.method);
  }
  const bool is_winograd = conv->algorithms().find("winograd") != std::string::npos;
  // Twice: no state of the first run may remain, and the bits must be equal.
  const auto results = probe.run(*device, *conv);
  probe.expect_near(results, tolerance(c, y_shape, is_winograd), conv->algorithms());
  EXPECT_TRUE(probe.run(*device, *conv) == results) << conv->algorithms();
}

constexpr auto kBf16 = DataType::bf16;
constexpr auto kFp32 = DataType::f32;

std::vector<ConvCase> cases() {
  std::vector<ConvCase> list;
  // The shapes of the networks, smaller, and awkward ones.
  const std::vector<ConvCase> shapes = {
      {{2, 7, 5, 3}, 16, 3, 1},
      {{1, 8, 8, 3}, 64, 3, 1},
      {{3, 8, 8, 16}, 16, 3, 1},
      {{2, 7, 5, 32}, 32, 3, 1},
      {{2, 8, 8, 64}, 64, 3, 1},
      {{1, 4, 4, 64}, 128, 3, 1},
      {{3, 9, 7, 16}, 32, 3, 2},
      {{2, 8, 8, 32}, 64, 3, 2},
      {{2, 8, 8, 32}, 64, 1, 2},
      {{1, 7, 5, 16}, 32, 1, 2},
      {{2, 7, 5, 64}, 32, 1, 1},
      {{2, 7, 5, 5}, 16, 3, 1},
      {{2, 7, 5, 24}, 32, 3, 1},
      {{1, 6, 7, 16}, 24, 3, 2},
      {{1, 1, 1, 16}, 16, 1, 1},
      {{3, 2, 1, 16}, 16, 3, 1},
      {{1, 5, 5, 24}, 5, 3, 1},
      {{2, 4, 4, 512}, 16, 3, 1},
      {{1, 33, 2, 16}, 32, 3, 2},
      {{2, 5, 9, 7}, 5, 5, 1},
      {{1, 9, 9, 3}, 13, 7, 2},
      {{2, 3, 3, 1}, 1, 3, 1},
      {{1, 1, 1, 1}, 1, 1, 1},
      {{3, 6, 5, 20}, 12, 5, 2},
      // Kernels that are not square.
      {{2, 7, 5, 32}, 32, {1, 3}, 1},
      {{2, 7, 5, 32}, 32, {3, 1}, 1},
      {{2, 9, 11, 16}, 48, {1, 7}, 1},
      {{2, 9, 11, 16}, 48, {7, 1}, 1},
      {{1, 4, 5, 5}, 7, {1, 7}, 1},
      {{1, 9, 8, 3}, 16, {5, 3}, 2},
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
  // TF32, which only GPUs have.
  for (const std::string method : {"fixed", "measured"}) {
    list.push_back({{2, 8, 8, 64}, 64, 3, 1, 0, 0, kFp32, method, 1, true});
    list.push_back({{2, 9, 7, 5}, 24, 3, 2, 0, 0, kFp32, method, 1, true});
    list.push_back({{1, 8, 8, 3}, 16, 3, 1, 0, 0, kFp32, method, 1, true});
    list.push_back({{2, 8, 8, 64}, 64, 3, 1, 0, 0, kBf16, method, 1, true});
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

// Tests of devices that choose among algorithms, CPU or GPU: one shape of each type.
class Conv2dChoice : public testing::TestWithParam<DataType> {
 protected:
  [[nodiscard]] static ConvCase make_case() {
    ConvCase c{{3, 8, 8, 24}, 40, 3, 1};
    c.type = GetParam();
    return c;
  }
  [[nodiscard]] static ConvProbe make_probe(Device& device, const ConvCase& c) {
    const Shape y = conv2d_output(c.x, c.channels, c.kernel, c.stride, c.padding());
    return {c,
            {c.x, c.type, device.channel_block(c.x.c)},
            {y, c.type, device.channel_block(c.channels)}};
  }
};

TEST_P(Conv2dChoice, IsHandedOnByTheTable) {
  const auto first = make_test_device({.tune = true});
  if (skips(*first, GetParam())) GTEST_SKIP() << "no bf16 on this processor";
  const ConvProbe probe = make_probe(*first, make_case());
  const auto measured = make_conv2d(*first, probe.desc);
  const auto second = make_test_device({.tune = false});
  second->tuning().import_text(first->tuning().export_text());
  const auto told = make_conv2d(*second, probe.desc);
  EXPECT_EQ(told->algorithms(), measured->algorithms());
  EXPECT_TRUE(probe.run(*second, *told) == probe.run(*first, *measured));
  EXPECT_EQ(second->tuning().export_text(), first->tuning().export_text());
}

TEST_P(Conv2dChoice, AnUnknownChoiceFallsBack) {
  const auto device = make_test_device({.tune = false});
  if (skips(*device, GetParam())) GTEST_SKIP() << "no bf16 on this processor";
  const ConvProbe probe = make_probe(*device, make_case());
  const std::string usual = make_conv2d(*device, probe.desc)->algorithms();
  const auto other = make_test_device({.tune = true});
  other->tuning().import_text(with_method(device->tuning().export_text(), "of another machine"));
  EXPECT_EQ(make_conv2d(*other, probe.desc)->algorithms(), usual);
}

TEST_P(Conv2dChoice, RunsInARecording) {
  const auto device = make_test_device({.tune = false});
  if (skips(*device, GetParam())) GTEST_SKIP() << "no bf16 on this processor";
  const ConvCase c = make_case();
  const ConvProbe probe = make_probe(*device, c);
  const auto conv = make_conv2d(*device, probe.desc);
  const auto expected = probe.run(*device, *conv);
  GuardedTensor host_x(probe.desc.x, probe.x), host_w(probe.w), host_dy(probe.desc.y, probe.dy);
  GuardedTensor host_y(probe.desc.y), host_dx(probe.desc.x), host_dw(probe.w.size());
  const DeviceTensor x(*device, host_x), w(*device, host_w), dy(*device, host_dy);
  const DeviceTensor y(*device, host_y), dx(*device, host_dx), dw(*device, host_dw);
  const auto recording = device->record([&] {
    conv->forward(x.view(), w.floats(), y.view());
    conv->backward_data(dy.view(), w.floats(), dx.view());
    conv->backward_weights(x.view(), dy.view(), dw.floats());
  });
  for (int replay = 0; replay < 4; ++replay) {
    for (const DeviceTensor* t : {&y, &dx, &dw}) {
      device->fill_zero(t->view().data, t->view().desc.bytes());
    }
    recording->replay();
    for (const DeviceTensor* t : {&y, &dx, &dw}) t->fetch();
    EXPECT_EQ(host_y.values(), expected.y) << "replay " << replay;
    EXPECT_EQ(host_dx.values(), expected.dx) << "replay " << replay;
    EXPECT_EQ(host_dw.values(), expected.dw) << "replay " << replay;
  }
}

// A model's weights are stored one after the other, so weights after an odd number of elements are
// not aligned.
TEST_P(Conv2dChoice, TakesWeightsAnywhere) {
  const auto device = make_test_device({.tune = false});
  if (skips(*device, GetParam())) GTEST_SKIP() << "no bf16 on this processor";
  const ConvProbe probe = make_probe(*device, make_case());
  const auto conv = make_conv2d(*device, probe.desc);
  const auto expected = probe.run(*device, *conv);
  Doubles shifted = probe.w;
  shifted.insert(shifted.begin(), 0.0);
  GuardedTensor host_x(probe.desc.x, probe.x), host_w(shifted), host_dy(probe.desc.y, probe.dy);
  GuardedTensor host_y(probe.desc.y), host_dx(probe.desc.x), host_dw(shifted);
  const DeviceTensor x(*device, host_x), w(*device, host_w), dy(*device, host_dy);
  const DeviceTensor y(*device, host_y), dx(*device, host_dx), dw(*device, host_dw);
  conv->forward(x.view(), w.floats() + 1, y.view());
  conv->backward_data(dy.view(), w.floats() + 1, dx.view());
  conv->backward_weights(x.view(), dy.view(), dw.floats() + 1);
  for (const DeviceTensor* t : {&y, &dx, &dw}) t->fetch();
  EXPECT_EQ(host_y.values(), expected.y);
  EXPECT_EQ(host_dx.values(), expected.dx);
  Doubles dw_shifted = expected.dw;
  dw_shifted.insert(dw_shifted.begin(), 0.0);
  EXPECT_EQ(host_dw.values(), dw_shifted);
}

#ifdef DP_HAVE_CUDA
TEST_P(Conv2dChoice, RunsALargeBatchInParts) {
  if (!on_gpu()) GTEST_SKIP() << "the CPU's convolution needs no parts";
  const auto device = make_test_device({.tune = false});
  // Copied and not copied; and images of a size at which the second part is not aligned.
  for (const Shape& x : {Shape{6, 8, 8, 24}, {6, 8, 8, 5}, {6, 7, 5, 5}}) {
    ConvCase c = make_case();
    c.x = x;
    const ConvProbe probe = make_probe(*device, c);
    // At most two images of the larger tensor: three parts.
    const std::size_t most = 2 * probe.desc.y.shape.elements() / 6;
    const auto conv = cuda::make_conv2d(cuda::as_cuda(*device), probe.desc, most);
    const auto results = probe.run(*device, *conv);
    probe.expect_near(results, tolerance(c, probe.desc.y.shape, false), "in parts");
    EXPECT_TRUE(probe.run(*device, *conv) == results);
  }
}
#endif

INSTANTIATE_TEST_SUITE_P(Types, Conv2dChoice, testing::Values(kFp32, kBf16),
                         [](const auto& one) { return name_of(one.param); });

TEST(Conv2d, WithoutInputGradientPlansNone) {
  const auto device = make_test_device({.tune = false});
  const Conv2dDesc desc{.x = TensorDesc::nhwc({2, 8, 8, 3}),
                        .y = {{2, 8, 8, 16}, DataType::f32, device->channel_block(16)},
                        .needs_input_gradient = false};
  EXPECT_EQ(make_conv2d(*device, desc)->algorithms().find("data"), std::string::npos);
}

}  // namespace
}  // namespace dp::test
