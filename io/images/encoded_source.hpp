// The image source of folders and packs: reads an image's file, decodes it, cuts and scales it.
//
// With BadImages::skip, an image that cannot be decoded is replaced by the next image of its class
// that can be decoded, in the order of the source. After the last image of the class comes the
// first. The replacement is always the same. The number of samples, their labels and their order do
// not change. The replacement gets the crop that was drawn for the sample.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "io/images/dataset.hpp"
#include "io/images/image_crop.hpp"
#include "io/images/image_index.hpp"

namespace dp {

struct EncodedSourceOptions {
  bool has_resized_crop = false;  // cut a random part in training; false: the caller shifts
  std::uint32_t short_side = 0;   // scale the shorter side to this, then cut the centre
  BadImages bad_images = BadImages::fail;
};

class EncodedSource final : public ImageSource {
 public:
  // `members` are the indices of this source's images in `index`, in increasing order.
  EncodedSource(ImageFacts facts, std::shared_ptr<const ImageIndex> index,
                std::shared_ptr<const EncodedImages> files, std::vector<std::uint32_t> members,
                const EncodedSourceOptions& options);

  [[nodiscard]] std::size_t count() const noexcept override { return members_.size(); }
  [[nodiscard]] std::int32_t label(std::size_t index) const override { return image(index).label; }
  [[nodiscard]] Image read(std::size_t index, const Augmentation& crop,
                           std::vector<std::uint8_t>& scratch) const override;
  [[nodiscard]] std::vector<std::string> take_notes() const override;
  [[nodiscard]] bool may_have_notes() const noexcept override {
    return options_.bad_images == BadImages::skip;
  }

  // Marks the images that `other` could not decode; it must have the same members. The notes about
  // these images are not repeated.
  void take_bad_images_of(const EncodedSource& other);

  [[nodiscard]] const IndexedImage& image(std::size_t index) const;
  [[nodiscard]] std::string path_of(std::size_t index) const;

 protected:
  [[nodiscard]] std::uint64_t hash_images() const override;

 private:
  void decode(std::size_t index, const Augmentation& crop, std::span<std::uint8_t> planar) const;
  [[nodiscard]] std::size_t next_of_class(std::size_t index) const;

  std::shared_ptr<const ImageIndex> index_;
  std::shared_ptr<const EncodedImages> files_;
  std::vector<std::uint32_t> members_;
  EncodedSourceOptions options_;

  mutable std::unique_ptr<std::atomic<bool>[]> is_bad_;  // images that could not be decoded
  mutable std::mutex mutex_;
  mutable std::vector<std::string> notes_;
};

}  // namespace dp
