#include "io/images/augment.hpp"

#include <algorithm>

#include "kernels/base/error.hpp"
#include "kernels/base/random.hpp"

namespace dp {

bool fits(const AugmentationRule& rule, const ImageShape& shape) {
  const auto side = static_cast<int>(std::min(shape.height, shape.width));
  return (!rule.is_reflected || rule.crop_padding < side) && rule.cutout <= side;
}

Augmentation draw_augmentation(const AugmentationRule& rule, const ImageShape& shape,
                               std::uint64_t seed, std::uint64_t epoch, std::size_t sample) {
  using Flip = AugmentationRule::Flip;
  const CounterRng rng(seed, RandomStream::augmentation, epoch, sample);
  const auto shift = [&](std::uint64_t word) {
    const auto places = static_cast<std::uint64_t>(2 * rule.crop_padding + 1);
    return static_cast<int>(rng.below(places, word)) - rule.crop_padding;
  };
  Augmentation drawn{.shift_x = shift(0),
                     .shift_y = shift(1),
                     .is_flipped = rule.flip == Flip::random && rng.below(2, 2) != 0,
                     .is_reflected = rule.is_reflected,
                     .is_drawn = true,
                     .bits = rng.bits(3)};
  if (rule.flip == Flip::alternate) {
    const CounterRng first(seed, RandomStream::augmentation, 0, sample);
    drawn.is_flipped = (first.below(2, 2) + epoch) % 2 != 0;
  }
  if (rule.cutout > 0) {
    const auto place = [&](std::size_t size, std::uint64_t word) {
      return static_cast<int>(rng.below(size - static_cast<std::size_t>(rule.cutout) + 1, word));
    };
    drawn.cut_x = place(shape.width, 4);
    drawn.cut_y = place(shape.height, 5);
    drawn.cut_side = rule.cutout;
  }
  return drawn;
}

ImageCrop to_crop(const Augmentation& augmentation) {
  return {.shift_x = checked_cast<std::int8_t>(augmentation.shift_x),
          .shift_y = checked_cast<std::int8_t>(augmentation.shift_y),
          .is_flipped = static_cast<std::uint8_t>(augmentation.is_flipped ? 1 : 0),
          .is_reflected = static_cast<std::uint8_t>(augmentation.is_reflected ? 1 : 0),
          .cut_x = checked_cast<std::uint16_t>(augmentation.cut_x),
          .cut_y = checked_cast<std::uint16_t>(augmentation.cut_y),
          .cut_side = checked_cast<std::uint16_t>(augmentation.cut_side)};
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
  DP_ASSERT(shape.channels == kColours, "images have {} channels instead of red, green and blue",
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
            "{} bytes and {} floats do not fit an image of {} values", image.size(), nhwc.size(),
            shape_.values());
  DP_ASSERT(augmentation.cut_side == 0 ||
                (augmentation.cut_x + augmentation.cut_side <= static_cast<int>(shape_.width) &&
                 augmentation.cut_y + augmentation.cut_side <= static_cast<int>(shape_.height)),
            "the cutout reaches beyond the image");
  const int width = static_cast<int>(shape_.width), height = static_cast<int>(shape_.height);
  constexpr int kChannels = static_cast<int>(kColours);
  const std::array<float, kColours> black{table_[0][0], table_[1][0], table_[2][0]};
  const bool is_reflected = augmentation.is_reflected;
  // Fills the columns from `begin` to `end - 1` of an output row. These columns lie outside the
  // image. `red` is the source row's red plane, needed only for mirrored padding.
  const auto fill = [&](float* row, int begin, int end, const std::uint8_t* red) {
    for (int x = begin; x < end; ++x) {
      if (!is_reflected) {
        std::copy(black.begin(), black.end(), row + x * kChannels);
        continue;
      }
      const int column = augmentation.is_flipped ? width - 1 - x : x;
      const std::uint8_t* from = red + reflected_index(column + augmentation.shift_x, width);
      for (std::size_t c = 0; c < kColours; ++c, from += shape_.pixels()) {
        row[x * kChannels + static_cast<int>(c)] = table_[c][*from];
      }
    }
  };

  // Output column x shows source column x + shift or, if mirrored, (width - 1 - x) + shift. Output
  // columns `first` to `last - 1` lie inside the image.
  const int shift = augmentation.is_flipped ? -augmentation.shift_x : augmentation.shift_x;
  const int first = std::clamp(-shift, 0, width), last = std::clamp(width - shift, first, width);
  const int start = augmentation.is_flipped ? width - 1 - first + augmentation.shift_x
                                            : first + augmentation.shift_x;
  const int stride = augmentation.is_flipped ? -1 : 1;

  for (int y = 0; y < height; ++y) {
    float* out = nhwc.data() + y * width * kChannels;
    int source_y = y + augmentation.shift_y;
    if (source_y < 0 || source_y >= height) {
      if (!is_reflected) {
        fill(out, 0, width, nullptr);
        continue;
      }
      source_y = reflected_index(source_y, height);
    }
    const std::uint8_t* row = image.data() + source_y * width;
    fill(out, 0, first, row);
    fill(out, last, width, row);
    if (first == last) continue;
    const std::uint8_t* red = row + start;
    const std::uint8_t* green = red + shape_.pixels();
    const std::uint8_t* blue = green + shape_.pixels();
    for (int x = first, source = 0; x < last; ++x, source += stride) {
      out[x * kChannels] = table_[0][red[source]];
      out[x * kChannels + 1] = table_[1][green[source]];
      out[x * kChannels + 2] = table_[2][blue[source]];
    }
  }

  for (int y = augmentation.cut_y; y < augmentation.cut_y + augmentation.cut_side; ++y) {
    float* out = nhwc.data() + (y * width + augmentation.cut_x) * kChannels;
    std::fill(out, out + augmentation.cut_side * kChannels, 0.0f);
  }
}

}  // namespace dp
