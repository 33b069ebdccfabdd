#include "io/images/encoded_source.hpp"

#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "kernels/base/setting_error.hpp"

namespace dp {
namespace {

// The number of files whose bytes are hashed. If a file has 110 kB and the disk reads 100 MB/s,
// this takes 0.3 s.
constexpr std::size_t kSampled = 256;

// A thread's scratch memory, reused for every image.
struct Workplace {
  std::vector<std::uint8_t> bytes;
  Resampler resampler;
};

Workplace& workplace() {
  thread_local Workplace place;
  return place;
}

}  // namespace

EncodedSource::EncodedSource(ImageFacts facts, std::shared_ptr<const ImageIndex> index,
                             std::shared_ptr<const EncodedImages> files,
                             std::vector<std::uint32_t> members,
                             const EncodedSourceOptions& options)
    : ImageSource(std::move(facts)),
      index_(std::move(index)),
      files_(std::move(files)),
      members_(std::move(members)),
      options_(options),
      is_bad_(std::make_unique<std::atomic<bool>[]>(members_.size())) {}

const IndexedImage& EncodedSource::image(std::size_t index) const {
  DP_ASSERT(index < count(), "image {} of {}", index, count());
  return index_->images[members_[index]];
}

std::string EncodedSource::path_of(std::size_t index) const {
  return printable(files_->name_of(*index_, image(index)));
}

void EncodedSource::decode(std::size_t index, const Augmentation& crop,
                           std::span<std::uint8_t> planar) const {
  Workplace& place = workplace();
  const IndexedImage& what = image(index);
  files_->read(*index_, what, place.bytes);
  const ImageHeader& header = what.header;
  const ImagePlan plan =
      options_.has_resized_crop && crop.is_drawn
          ? plan_part(header, draw_resized_crop(crop.bits, header.width, header.height), shape())
          : plan_centre(header, shape(), options_.short_side);
  place.resampler.prepare(plan.resampling);
  decode_rows(place.bytes, header, plan.denominator, plan.resampling.source, place.resampler);
  place.resampler.finish(planar);
}

ImageSource::Image EncodedSource::read(std::size_t index, const Augmentation& crop,
                                       std::vector<std::uint8_t>& scratch) const {
  if (scratch.size() < shape().values()) scratch.resize(shape().values());
  const std::span<std::uint8_t> planar = std::span(scratch).first(shape().values());
  const bool is_cut_here = options_.has_resized_crop && crop.is_drawn;
  Augmentation rest = crop;
  if (is_cut_here) rest.shift_x = rest.shift_y = 0;
  if (options_.bad_images == BadImages::fail) {
    try {
      decode(index, crop, planar);
    } catch (const BadImage& error) {
      throw SettingError(
          ErrorKind::data,
          fmt::format("{}: {}; bad images can be left out", path_of(index), error.what()),
          Setting{"bad images"});
    }
    return {planar, rest};
  }
  std::size_t chosen = index;
  while (true) {
    if (!is_bad_[chosen]) {
      try {
        decode(chosen, crop, planar);
        return {planar, rest};
      } catch (const BadImage& error) {
        if (!is_bad_[chosen].exchange(true)) {
          const std::lock_guard lock(mutex_);
          notes_.push_back(fmt::format("{}: {}; the next image of its class replaces it",
                                       path_of(chosen), error.what()));
        }
      }
    }
    chosen = next_of_class(chosen);
    if (chosen == index) {
      throw_error(ErrorKind::data, "class {} of {}: no image can be decoded, including {}",
                  printable(class_names()[static_cast<std::size_t>(label(index))]), name(),
                  path_of(index));
    }
  }
}

std::size_t EncodedSource::next_of_class(std::size_t index) const {
  if (index + 1 < count() && label(index + 1) == label(index)) return index + 1;
  // The image is the last one of its class, so return the first one. Images of one class
  // are neighbours, because labels never decrease.
  const auto first = std::partition_point(
      members_.begin(), members_.end(),
      [&](std::uint32_t member) { return index_->images[member].label < label(index); });
  return static_cast<std::size_t>(first - members_.begin());
}

void EncodedSource::take_bad_images_of(const EncodedSource& other) {
  DP_ASSERT(members_ == other.members_, "sources of other images");
  for (std::size_t i = 0; i < count(); ++i) is_bad_[i] = other.is_bad_[i].load();
}

std::vector<std::string> EncodedSource::take_notes() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> notes = std::exchange(notes_, {});
  std::sort(notes.begin(), notes.end());
  return notes;
}

// Hashes names, sizes and labels of all images, but the bytes of only kSampled files, because
// reading all files would take as long as an epoch. A pack stores checksums of all images. They are
// not all used, because a pack and its folder must have the same hash.
std::uint64_t EncodedSource::hash_images() const {
  std::uint64_t hash = 0;
  std::string line;
  for (const std::uint32_t member : members_) {
    const IndexedImage& one = index_->images[member];
    line = index_->path_of(one);
    line += '\0';
    line += fmt::format("{} {} {} {}", one.bytes, one.header.width, one.header.height, one.label);
    hash = XXH3_64bits_withSeed(line.data(), line.size(), hash);
  }
  const std::size_t sampled = std::min(kSampled, members_.size());
  for (std::size_t i = 0; i < sampled; ++i) {
    const IndexedImage& one = index_->images[members_[i * members_.size() / sampled]];
    const std::uint64_t checksum = files_->checksum(*index_, one);
    hash = XXH3_64bits_withSeed(&checksum, sizeof checksum, hash);
  }
  return hash;
}

}  // namespace dp
