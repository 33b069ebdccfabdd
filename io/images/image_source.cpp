#include "io/images/image_source.hpp"

#include <fmt/ranges.h>
#include <xxhash.h>

#include <utility>

#include "kernels/base/error.hpp"

namespace dp {
namespace {

template <class T>
std::uint64_t hash_of(const std::vector<T>& values) {
  return XXH3_64bits(values.data(), values.size() * sizeof(T));
}

}  // namespace

std::uint64_t ImageSource::content_hash() const {
  const ImageShape& s = shape();
  const std::string text =
      fmt::format("{}\n{} of {}x{}x{}\n{} {}\n{:016x}\n{}\n", name(), count(), s.channels, s.height,
                  s.width, normalization().mean, normalization().deviation, hash_images(),
                  fmt::join(class_names(), "\n"));
  return XXH3_64bits(text.data(), text.size());
}

ImageSet::ImageSet(ImageFacts facts, std::vector<std::uint8_t> pixels,
                   std::vector<std::int32_t> labels)
    : ImageSource(std::move(facts)), pixels_(std::move(pixels)), labels_(std::move(labels)) {
  DP_ASSERT(pixels_.size() == labels_.size() * shape().values(),
            "{} bytes of pixels do not fit {} labels with {} bytes per image", pixels_.size(),
            labels_.size(), shape().values());
  for (const std::int32_t label : labels_) {
    DP_ASSERT(label >= 0 && std::cmp_less(label, classes()), "label {} of {} classes", label,
              classes());
  }
}

std::int32_t ImageSet::label(std::size_t index) const {
  DP_ASSERT(index < count(), "there is no image {} among {} images", index, count());
  return labels_[index];
}

std::span<const std::uint8_t> ImageSet::image(std::size_t index) const {
  DP_ASSERT(index < count(), "image {} of {}", index, count());
  return {pixels_.data() + index * shape().values(), shape().values()};
}

ImageSource::Image ImageSet::read(std::size_t index, const Augmentation& crop,
                                  std::vector<std::uint8_t>&) const {
  return {image(index), crop};
}

std::uint64_t ImageSet::hash_images() const {
  const std::uint64_t parts[] = {hash_of(labels_), hash_of(pixels_)};
  return XXH3_64bits(parts, sizeof parts);
}

}  // namespace dp
