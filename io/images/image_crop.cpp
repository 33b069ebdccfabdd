#include "io/images/image_crop.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/base/random.hpp"

namespace dp {
namespace {

// The largest denominator at which the reduced source is still at least as large as the result.
std::uint32_t choose_denominator(const ImageHeader& header, const PixelBox& source,
                                 std::uint32_t width, std::uint32_t height) {
  if (header.format != ImageFormat::jpeg) return 1;
  for (const std::uint32_t denominator : {8u, 4u, 2u}) {
    if (source.width >= denominator * width && source.height >= denominator * height) {
      return denominator;
    }
  }
  return 1;
}

ImagePlan make_plan(const ImageHeader& header, const PixelBox& source, std::uint32_t width,
                    std::uint32_t height, const PixelBox& cut) {
  const std::uint32_t d = choose_denominator(header, source, width, height);
  const std::uint32_t x = source.x / d, y = source.y / d;
  const std::uint32_t right = scaled_size(source.x + source.width, d);
  const std::uint32_t bottom = scaled_size(source.y + source.height, d);
  return {.denominator = d,
          .resampling = {.source = {.x = x, .y = y, .width = right - x, .height = bottom - y},
                         .width = width,
                         .height = height,
                         .cut = cut}};
}

// Rounds halves to the even neighbour, as Python does.
double rounded(double value) { return std::nearbyint(value); }

}  // namespace

PixelBox draw_resized_crop(std::uint64_t bits, std::uint32_t width, std::uint32_t height) {
  constexpr double kLeastScale = 0.08, kLeastRatio = 3.0 / 4, kMostRatio = 4.0 / 3;
  const CounterRng rng(bits, RandomStream::augmentation);
  const double area = static_cast<double>(width) * height;
  const double low = std::log(kLeastRatio), high = std::log(kMostRatio);
  for (std::uint64_t attempt = 0; attempt < 10; ++attempt) {
    const std::uint64_t at = 4 * attempt;
    const double target = area * (kLeastScale + (1 - kLeastScale) * rng.uniform(at));
    const double ratio = std::exp(low + (high - low) * rng.uniform(at + 1));
    const double w = rounded(std::sqrt(target * ratio)), h = rounded(std::sqrt(target / ratio));
    if (w < 1 || h < 1 || w > width || h > height) continue;
    const auto part_width = static_cast<std::uint32_t>(w);
    const auto part_height = static_cast<std::uint32_t>(h);
    return {.x = static_cast<std::uint32_t>(rng.below(width - part_width + 1, at + 2)),
            .y = static_cast<std::uint32_t>(rng.below(height - part_height + 1, at + 3)),
            .width = part_width,
            .height = part_height};
  }
  PixelBox part = {.width = width, .height = height};
  const double ratio = static_cast<double>(width) / height;
  if (ratio < kLeastRatio) {
    part.height = static_cast<std::uint32_t>(rounded(width / kLeastRatio));
  } else if (ratio > kMostRatio) {
    part.width = static_cast<std::uint32_t>(rounded(height * kMostRatio));
  }
  part.height = std::clamp(part.height, 1u, height);
  part.width = std::clamp(part.width, 1u, width);
  part.x = (width - part.width) / 2;
  part.y = (height - part.height) / 2;
  return part;
}

ImagePlan plan_part(const ImageHeader& header, const PixelBox& part, const ImageShape& shape) {
  const auto width = static_cast<std::uint32_t>(shape.width);
  const auto height = static_cast<std::uint32_t>(shape.height);
  return make_plan(header, part, width, height, {.width = width, .height = height});
}

ImagePlan plan_centre(const ImageHeader& header, const ImageShape& shape,
                      std::uint32_t short_side) {
  const PixelBox whole = {.width = header.width, .height = header.height};
  if (header.width == shape.width && header.height == shape.height) {
    return plan_part(header, whole, shape);
  }
  const std::uint64_t shorter = std::min(header.width, header.height);
  const auto scaled = [&](std::uint32_t side) {
    return static_cast<std::uint32_t>(std::uint64_t{side} * short_side / shorter);
  };
  const std::uint32_t width = scaled(header.width), height = scaled(header.height);
  // torchvision: int(round((size - crop) / 2))
  const auto start = [](std::uint32_t size, std::size_t crop) {
    return static_cast<std::uint32_t>(rounded(static_cast<double>(size - crop) / 2));
  };
  return make_plan(header, whole, width, height,
                   {.x = start(width, shape.width),
                    .y = start(height, shape.height),
                    .width = static_cast<std::uint32_t>(shape.width),
                    .height = static_cast<std::uint32_t>(shape.height)});
}

}  // namespace dp
