// An image source: a set of labelled images that are read one at a time, in any order and by any
// number of threads. Before the first image is read, it gives what a network must know (size,
// classes, normalisation).
//
// All images of a source have one size, shape(). A source whose stored images have other sizes
// decodes and scales them in read(), which the loader's threads call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/pixels.hpp"

namespace dp {

// What happens to one image; the default leaves it as it is.
struct Augmentation {
  int shift_x = 0;  // the window's left edge in the image; outside of the image lies black
  int shift_y = 0;
  bool is_flipped = false;
  bool is_reflected = false;  // outside of the image lies its mirror image instead
  // A square of the result that becomes the data set's mean; cut_side 0: none.
  int cut_x = 0, cut_y = 0, cut_side = 0;
  // For a source that cuts a random part out of an image of any size and scales it: 64 random bits,
  // which decide the part. Not drawn: such a source takes the centre.
  bool is_drawn = false;
  std::uint64_t bits = 0;
};

struct ImageFacts {
  std::string name;                      // "CIFAR-10 train"
  std::vector<std::string> class_names;  // labels are indices into it
  ImageShape shape;
  Normalization normalization = {};
};

class ImageSource {
 public:
  explicit ImageSource(ImageFacts facts) : facts_(std::move(facts)) {}
  virtual ~ImageSource() = default;

  [[nodiscard]] const std::string& name() const noexcept { return facts_.name; }
  [[nodiscard]] const std::vector<std::string>& class_names() const noexcept {
    return facts_.class_names;
  }
  [[nodiscard]] std::size_t classes() const noexcept { return facts_.class_names.size(); }
  [[nodiscard]] const ImageShape& shape() const noexcept { return facts_.shape; }
  [[nodiscard]] const Normalization& normalization() const noexcept { return facts_.normalization; }

  [[nodiscard]] virtual std::size_t count() const noexcept = 0;
  // Below classes().
  [[nodiscard]] virtual std::int32_t label(std::size_t index) const = 0;

  // A planar image of shape(), and the augmentation that the caller must still do.
  struct Image {
    std::span<const std::uint8_t> bytes;
    Augmentation rest;
  };
  // Reads image `index` for a sample with the augmentation `crop`. A source does the part of the
  // augmentation that is cheaper before the image has its final size, and returns the rest.
  // `scratch` belongs to the calling thread, which keeps it from call to call; a source that needs
  // memory makes it larger. The bytes may lie there, or in the source's own memory; they are valid
  // until the thread's next call. Throws Error(data) for an image that cannot be read.
  [[nodiscard]] virtual Image read(std::size_t index, const Augmentation& crop,
                                   std::vector<std::uint8_t>& scratch) const = 0;

  // What has happened since the last call that the user should know, a sentence each: images that
  // could not be read and were replaced.
  [[nodiscard]] virtual std::vector<std::string> take_notes() const { return {}; }
  // Whether take_notes() may ever return any.
  [[nodiscard]] virtual bool may_have_notes() const noexcept { return false; }

  // The 64-bit XXH3 hash of all that training would see: names, size, normalisation, labels,
  // pixels (of images in files: names and sizes of all, and the bytes of some hundred files).
  [[nodiscard]] std::uint64_t content_hash() const;

 protected:
  ImageSource(const ImageSource&) = default;
  ImageSource& operator=(const ImageSource&) = default;

  // A hash of labels and pixels, in the order of the images.
  [[nodiscard]] virtual std::uint64_t hash_images() const = 0;

 private:
  ImageFacts facts_;
};

// Images in memory, all of the same size. It never changes once it is built.
class ImageSet final : public ImageSource {
 public:
  // `pixels` holds facts.shape.values() bytes per label; every label is below the number of
  // classes.
  ImageSet(ImageFacts facts, std::vector<std::uint8_t> pixels, std::vector<std::int32_t> labels);

  [[nodiscard]] std::size_t count() const noexcept override { return labels_.size(); }
  [[nodiscard]] std::int32_t label(std::size_t index) const override;
  // The bytes are in the source's own memory. The caller does the whole augmentation.
  [[nodiscard]] Image read(std::size_t index, const Augmentation& crop,
                           std::vector<std::uint8_t>& scratch) const override;
  // The same without an augmentation.
  [[nodiscard]] std::span<const std::uint8_t> image(std::size_t index) const;

 protected:
  [[nodiscard]] std::uint64_t hash_images() const override;

 private:
  std::vector<std::uint8_t> pixels_;
  std::vector<std::int32_t> labels_;
};

}  // namespace dp
