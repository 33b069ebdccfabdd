#include "io/images/resample.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/base/pixels.hpp"

namespace dp {
namespace {

// Weights are whole numbers that sum to 2^22, so a weighted sum of bytes stays below 2^30 and fits
// an int.
constexpr int kWeightBits = 22;

std::uint8_t to_byte(std::int32_t sum) {
  return static_cast<std::uint8_t>(std::clamp(sum >> kWeightBits, 0, 255));
}

}  // namespace

// The arithmetic and its order are Pillow's (libImaging/Resample.c), in double.
void Resampler::Axis::plan(std::uint32_t input, std::uint32_t size, std::uint32_t begin,
                           std::uint32_t count) {
  const double scale = static_cast<double>(input) / size;
  const double support = std::max(scale, 1.0), step = 1.0 / support;
  taps = std::min(static_cast<std::uint32_t>(std::ceil(support)) * 2 + 1, input);
  first.resize(count);
  weight.assign(std::size_t{count} * taps, 0);
  scratch.resize(taps);
  for (std::uint32_t i = 0; i < count; ++i) {
    const double center = (begin + i + 0.5) * scale;
    const int low = std::max(static_cast<int>(center - support + 0.5), 0);
    const int high = std::min(static_cast<int>(center + support + 0.5), static_cast<int>(input));
    double sum = 0;
    for (int x = low; x < high; ++x) {
      const double distance = std::abs((x - center + 0.5) * step);
      const double w = distance < 1.0 ? 1.0 - distance : 0.0;
      scratch[static_cast<std::size_t>(x - low)] = w;
      sum += w;
    }
    // If the last taps would lie outside the image, the first tap moves towards the image's
    // beginning. The additional taps have weight 0.
    const int start = std::min(low, static_cast<int>(input - taps));
    first[i] = static_cast<std::uint32_t>(start);
    for (int x = low; x < high; ++x) {
      double w = scratch[static_cast<std::size_t>(x - low)];
      if (sum != 0) w /= sum;
      weight[std::size_t{i} * taps + static_cast<std::size_t>(x - start)] =
          static_cast<std::int32_t>(0.5 + w * (1 << kWeightBits));
    }
  }
}

void Resampler::prepare(const Resampling& what) {
  what_ = what;
  columns_.plan(what.source.width, what.width, what.cut.x, what.cut.width);
  rows_.plan(what.source.height, what.height, what.cut.y, what.cut.height);
  top_ = rows_.first.front();
  bottom_ = rows_.first.back() + rows_.taps;
  narrow_.resize(std::size_t{kColours} * what.cut.width * (bottom_ - top_));
}

// Scales a row horizontally. Input pixels have four bytes; the result has one plane per channel.
void Resampler::take_row(const PixelBox& box, std::uint32_t y, const std::uint8_t* pixels) {
  const PixelBox& source = what_.source;
  DP_ASSERT(source.x >= box.x && source.x + source.width <= box.x + box.width,
            "columns {} to {} are not all within the columns {} to {}", source.x,
            source.x + source.width, box.x, box.x + box.width);
  if (y < source.y + top_ || y >= source.y + bottom_) return;
  const std::size_t width = what_.cut.width, plane = width * (bottom_ - top_);
  const std::uint8_t* row = pixels + std::size_t{4} * (source.x - box.x);
  std::uint8_t* out = narrow_.data() + (y - source.y - top_) * width;
  const std::int32_t* weight = columns_.weight.data();
  for (std::size_t x = 0; x < width; ++x, weight += columns_.taps) {
    const std::uint8_t* pixel = row + std::size_t{4} * columns_.first[x];
    std::int32_t sum[4] = {1 << (kWeightBits - 1), 1 << (kWeightBits - 1), 1 << (kWeightBits - 1),
                           1 << (kWeightBits - 1)};
    for (std::uint32_t k = 0; k < columns_.taps; ++k, pixel += 4) {
      for (int c = 0; c < 4; ++c) sum[c] += weight[k] * pixel[c];
    }
    for (std::size_t c = 0; c < kColours; ++c) out[c * plane + x] = to_byte(sum[c]);
  }
}

void Resampler::finish(std::span<std::uint8_t> planar) {
  const PixelBox& cut = what_.cut;
  DP_ASSERT(planar.size() == kColours * cut.width * cut.height, "{} bytes for {}x{} pixels",
            planar.size(), cut.width, cut.height);
  const std::size_t width = cut.width, plane = width * (bottom_ - top_);
  sums_.resize(width);
  for (std::size_t c = 0; c < kColours; ++c) {
    for (std::uint32_t y = 0; y < cut.height; ++y) {
      std::fill(sums_.begin(), sums_.end(), 1 << (kWeightBits - 1));
      for (std::uint32_t k = 0; k < rows_.taps; ++k) {
        const std::int32_t weight = rows_.weight[std::size_t{y} * rows_.taps + k];
        if (weight == 0) continue;
        const std::uint8_t* row = narrow_.data() + c * plane + (rows_.first[y] + k - top_) * width;
        for (std::size_t x = 0; x < width; ++x) sums_[x] += weight * row[x];
      }
      std::uint8_t* out = planar.data() + (c * cut.height + y) * width;
      for (std::size_t x = 0; x < width; ++x) out[x] = to_byte(sums_[x]);
    }
  }
}

void Resampler::run(const DecodedImage& image, const Resampling& what,
                    std::span<std::uint8_t> planar) {
  const PixelBox &source = what.source, &kept = image.box;
  DP_ASSERT(source.y >= kept.y && source.y + source.height <= kept.y + kept.height,
            "rows {} to {} are not all within the rows {} to {}", source.y,
            source.y + source.height, kept.y, kept.y + kept.height);
  prepare(what);
  for (std::uint32_t y = kept.y; y < kept.y + kept.height; ++y) {
    take_row(kept, y, image.pixels.data() + std::size_t{4} * kept.width * (y - kept.y));
  }
  finish(planar);
}

}  // namespace dp
