#include "io/augment.hpp"

#include <algorithm>

#include "kernels/base/error.hpp"
#include "kernels/base/random.hpp"

namespace dp {

Augmentation draw_augmentation(std::uint64_t seed, std::uint64_t epoch, std::size_t sample) {
  const CounterRng rng(seed, RandomStream::augmentation, epoch, sample);
  constexpr std::uint64_t kShifts = 2 * kCropPadding + 1;
  return {.shift_x = static_cast<int>(rng.below(kShifts, 0)) - kCropPadding,
          .shift_y = static_cast<int>(rng.below(kShifts, 1)) - kCropPadding,
          .is_flipped = rng.below(2, 2) != 0,
          .is_drawn = true,
          .bits = rng.bits(3)};
}

ImageCrop to_crop(const Augmentation& augmentation) {
  return {.shift_x = checked_cast<std::int8_t>(augmentation.shift_x),
          .shift_y = checked_cast<std::int8_t>(augmentation.shift_y),
          .is_flipped = static_cast<std::uint8_t>(augmentation.is_flipped ? 1 : 0)};
}

PixelTable Normalizer::table() const {
  PixelTable table{};
  for (std::size_t c = 0; c < kColours; ++c) {
    std::copy(table_[c].begin(), table_[c].end(), table.value[c]);
  }
  return table;
}

Normalizer::Normalizer(const ImageShape& shape, const Normalization& normalization)
    : shape_(shape) {
  DP_ASSERT(shape.channels == kColours, "images of {} channels, not red, green and blue",
            shape.channels);
  for (std::size_t c = 0; c < kColours; ++c) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const float scaled = static_cast<float>(byte) / 255.0f;
      table_[c][byte] = (scaled - normalization.mean[c]) / normalization.deviation[c];
    }
  }
}

void Normalizer::apply(std::span<const std::uint8_t> image, const Augmentation& augmentation,
                       std::span<float> nhwc) const {
  DP_ASSERT(image.size() == shape_.values() && nhwc.size() == shape_.values(),
            "{} bytes and {} floats for an image of {} values", image.size(), nhwc.size(),
            shape_.values());
  const int width = static_cast<int>(shape_.width), height = static_cast<int>(shape_.height);
  constexpr int kChannels = static_cast<int>(kColours);
  const std::array<float, kColours> black{table_[0][0], table_[1][0], table_[2][0]};
  const auto fill = [&](float* row, int begin, int end) {
    for (int x = begin; x < end; ++x) std::copy(black.begin(), black.end(), row + x * kChannels);
  };

  // Output column x shows source column x + shift, or, mirrored, (width - 1 - x) + shift. Columns
  // from first to last - 1 lie inside the image.
  const int shift = augmentation.is_flipped ? -augmentation.shift_x : augmentation.shift_x;
  const int first = std::clamp(-shift, 0, width), last = std::clamp(width - shift, first, width);
  const int start = augmentation.is_flipped ? width - 1 - first + augmentation.shift_x
                                            : first + augmentation.shift_x;
  const int stride = augmentation.is_flipped ? -1 : 1;

  for (int y = 0; y < height; ++y) {
    float* out = nhwc.data() + y * width * kChannels;
    const int source_y = y + augmentation.shift_y;
    if (source_y < 0 || source_y >= height) {
      fill(out, 0, width);
      continue;
    }
    fill(out, 0, first);
    fill(out, last, width);
    if (first == last) continue;
    const std::uint8_t* red = image.data() + source_y * width + start;
    const std::uint8_t* green = red + shape_.pixels();
    const std::uint8_t* blue = green + shape_.pixels();
    for (int x = first, source = 0; x < last; ++x, source += stride) {
      out[x * kChannels] = table_[0][red[source]];
      out[x * kChannels + 1] = table_[1][green[source]];
      out[x * kChannels + 2] = table_[2][blue[source]];
    }
  }
}

}  // namespace dp
