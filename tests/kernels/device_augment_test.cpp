// Crop, flip and normalisation on a GPU against the loader's own on the CPU, bit for bit, and
// against plain loops for other sizes than CIFAR's.
#include "io/images/augment.hpp"

#include "kernels/augment.hpp"
#include "tests/kernels/kernel_testing.hpp"

namespace dp::test {
namespace {

class Augment : public testing::Test {
 protected:
  void SetUp() override {
    if (!on_gpu()) GTEST_SKIP() << "on a CPU, the loader augments the images";
  }

  // Uploads everything and returns the floats of the augmented images.
  static std::vector<float> augmented(const Shape& shape, const std::vector<std::uint8_t>& images,
                                      const std::vector<ImageCrop>& crops,
                                      const PixelTable& table) {
    const TestDevice device = make_test_device({.tune = false});
    const auto to_device = [&](const void* data, std::size_t bytes) {
      const Device::Memory memory = device->allocate(bytes);
      device->upload(memory.get(), data, bytes);
      return memory;
    };
    const auto t_images = to_device(images.data(), images.size());
    const auto t_crops = to_device(crops.data(), crops.size() * sizeof(ImageCrop));
    const auto t_table = to_device(&table, sizeof table);
    GuardedTensor y(TensorDesc::nhwc(shape));
    augment_images(*device, reinterpret_cast<const std::uint8_t*>(t_images.get()),
                   reinterpret_cast<const ImageCrop*>(t_crops.get()),
                   reinterpret_cast<const PixelTable*>(t_table.get()), y.view());
    static_cast<void>(y.values());  // waits, and looks at the guards
    return {y.floats(), y.floats() + shape.elements()};
  }

  static std::vector<std::uint8_t> random_bytes(std::size_t count) {
    const CounterRng rng(20, RandomStream::test, 1);
    std::vector<std::uint8_t> bytes(count);
    for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::uint8_t>(rng.below(256, i));
    return bytes;
  }
};

TEST_F(Augment, EqualsLoaderBitForBit) {
  std::vector<Augmentation> augmentations;
  for (int y = -4; y <= 4; ++y) {
    for (int x = -4; x <= 4; ++x) {
      for (const bool is_flipped : {false, true}) {
        augmentations.push_back({x, y, is_flipped});
        augmentations.push_back({.shift_x = x,
                                 .shift_y = y,
                                 .is_flipped = is_flipped,
                                 .is_reflected = true,
                                 .cut_x = 3 * (x + 4),
                                 .cut_y = 2 * (y + 4),
                                 .cut_side = x + 4});
      }
    }
  }
  const std::size_t count = augmentations.size();
  const Normalization normalization{.mean = {0.4f, 0.5f, 0.6f}, .deviation = {0.2f, 0.25f, 0.3f}};
  std::vector<ImageCrop> crops;
  for (const Augmentation& augmentation : augmentations) crops.push_back(to_crop(augmentation));

  for (const ImageShape& image :
       {ImageShape{.height = 32, .width = 32}, ImageShape{.height = 24, .width = 40}}) {
    const std::size_t values = image.values();
    const std::vector<std::uint8_t> images = random_bytes(count * values);
    const Normalizer normalizer(image, normalization);
    std::vector<float> expected(count * values);
    for (std::size_t n = 0; n < count; ++n) {
      normalizer.apply(std::span(images).subspan(n * values, values), augmentations[n],
                       std::span(expected).subspan(n * values, values));
    }
    const Shape shape{count, image.height, image.width, image.channels};
    EXPECT_EQ(augmented(shape, images, crops, normalizer.table()), expected) << image.width;
  }
}

// Odd sizes, shifts beyond the image, more images than one block for each.
TEST_F(Augment, EqualsPlainLoops) {
  const std::vector<Shape> shapes = {{1, 1, 1, 3}, {3, 5, 7, 3}, {2, 19, 17, 3}, {600, 2, 3, 3}};
  PixelTable table{};
  for (std::size_t c = 0; c < 3; ++c) {
    for (std::size_t b = 0; b < 256; ++b) table.value[c][b] = static_cast<float>(c * 1000 + b);
  }
  for (const Shape& s : shapes) {
    const std::vector<std::uint8_t> images = random_bytes(s.elements());
    std::vector<ImageCrop> crops(s.n);
    const std::vector<int> shifts = {0, -2, 3, 127, -128};
    for (std::size_t n = 0; n < s.n; ++n) {
      crops[n] = {.shift_x = static_cast<std::int8_t>(shifts[n % 5]),
                  .shift_y = static_cast<std::int8_t>(shifts[n / 2 % 5]),
                  .is_flipped = static_cast<std::uint8_t>(n % 2)};
    }
    std::vector<float> expected;
    for (std::size_t i = 0; i < s.elements(); ++i) {
      const std::size_t c = i % 3, pixel = i / 3 % s.pixels(), n = i / 3 / s.pixels();
      const auto height = static_cast<int>(s.h), width = static_cast<int>(s.w);
      const auto h = static_cast<int>(pixel / s.w) + crops[n].shift_y;
      const auto column = static_cast<int>(pixel % s.w);
      const int w = (crops[n].is_flipped != 0 ? width - 1 - column : column) + crops[n].shift_x;
      const bool is_inside = h >= 0 && h < height && w >= 0 && w < width;
      const std::size_t source =
          (n * 3 + c) * s.pixels() + static_cast<std::size_t>(is_inside ? h * width + w : 0);
      expected.push_back(table.value[c][is_inside ? images[source] : 0]);
    }
    EXPECT_EQ(augmented(s, images, crops, table), expected) << s.h << " x " << s.w;
  }
}

}  // namespace
}  // namespace dp::test
