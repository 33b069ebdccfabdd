// Images in files: how many JPEGs one thread reads, decodes, cuts, scales and normalises a second.
//
//   build/bin/dpbench_kernels --benchmark_filter=Jpeg

#include <benchmark/benchmark.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

#include "io/images/augment.hpp"
#include "io/images/dataset.hpp"
#include "io/images/image_folder.hpp"
#include "io/images/resample.hpp"
#include "io/images/synthetic.hpp"
#include "tests/io/images/image_files.hpp"

namespace dp {
namespace {

// A folder of drawn images, scaled to that size, which is removed in the end.
class JpegFolder {
 public:
  JpegFolder(std::uint32_t width, std::uint32_t height) : path_(make_folder()) {
    constexpr std::size_t kImages = 100;
    const ImageSet drawn = make_synthetic(Split::train, kImages, 1);
    constexpr std::uint32_t kSide = kSyntheticShape.width;
    Resampler resampler;
    DecodedImage image = {.box = {.width = kSide, .height = kSide},
                          .pixels = std::vector<std::uint8_t>(4 * kSide * kSide)};
    std::vector<std::uint8_t> planar(std::size_t{3} * width * height);
    for (std::size_t i = 0; i < kImages; ++i) {
      for (std::size_t k = 0; k < 3 * kSide * kSide; ++k) {
        image.pixels[k % (kSide * kSide) * 4 + k / (kSide * kSide)] = drawn.image(i)[k];
      }
      resampler.run(image,
                    {.source = image.box,
                     .width = width,
                     .height = height,
                     .cut = {.width = width, .height = height}},
                    planar);
      const std::size_t plane = std::size_t{width} * height;
      Bytes pixels(planar.size());
      for (std::size_t k = 0; k < pixels.size(); ++k) pixels[k] = planar[k % 3 * plane + k / 3];
      const Bytes bytes = make_jpeg(width, height, pixels);
      const auto folder = path_ / ("class " + std::to_string(i % 10));
      std::filesystem::create_directories(folder);
      std::ofstream(folder / (std::to_string(i) + ".jpg"), std::ios::binary)
          .write(reinterpret_cast<const char*>(bytes.data()),
                 static_cast<std::streamsize>(bytes.size()));
    }
  }
  ~JpegFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  JpegFolder(const JpegFolder&) = delete;
  JpegFolder& operator=(const JpegFolder&) = delete;
  [[nodiscard]] std::string path() const { return path_.string(); }

 private:
  // A folder of this process alone, so that nobody else can plant links in it.
  static std::filesystem::path make_folder() {
    std::string name = std::filesystem::temp_directory_path() / "dptrain-image-bench-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) {
      throw std::system_error(errno, std::generic_category(), name);
    }
    return name;
  }

  std::filesystem::path path_;
};

// As the loader does it; width and height of the files.
void BM_JpegToInput(benchmark::State& state) {
  const JpegFolder folder(static_cast<std::uint32_t>(state.range(0)),
                          static_cast<std::uint32_t>(state.range(1)));
  const Dataset data = load_image_folder({.data_dir = folder.path()});
  const ImageSource& images = *data.train;
  const Normalizer normalizer(images.shape(), images.normalization());
  std::vector<float> input(images.shape().values());
  std::vector<std::uint8_t> scratch;
  std::size_t sample = 0, epoch = 0;
  for (auto _ : state) {
    const Augmentation drawn = draw_augmentation({}, images.shape(), 1, epoch, sample);
    const ImageSource::Image image = images.read(sample, drawn, scratch);
    normalizer.apply(image.bytes, image.rest, input);
    benchmark::DoNotOptimize(input.data());
    if (++sample == images.count()) {
      sample = 0;
      ++epoch;
    }
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_JpegToInput)->Args({32, 32})->Args({500, 375})->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace dp
