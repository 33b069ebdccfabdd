// An image source: a set of labelled images that any number of threads may read, one image at a
// time and in any order. Before the first image is read, it gives the facts that a network needs
// (size, classes, normalisation).
//
// All images of a source have the same size, shape(). If the stored images have other sizes, the
// source decodes and scales them in read(), which the loader's threads call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/pixels.hpp"

namespace dp {

// The changes to one image. A default Augmentation changes nothing.
struct Augmentation {
  int shift_x = 0;  // the window's left edge in the image; the window is black outside the image
  int shift_y = 0;
  bool is_flipped = false;
  bool is_reflected = false;  // outside the image, the window shows the image's mirror image
  // The cutout, a square of the result that is set to the data set's mean. cut_side: its side in
  // pixels; 0: no cutout.
  int cut_x = 0, cut_y = 0, cut_side = 0;
  // For a source that cuts out a random part of an image of any size and scales it: 64 random bits
  // that decide the part. If is_drawn is false, the source uses the centre.
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

  // A planar image of shape(), and the part of the augmentation that the caller must still do.
  struct Image {
    std::span<const std::uint8_t> bytes;
    Augmentation rest;
  };
  // Reads image `index` for a sample with the augmentation `crop`. The source does those operations
  // that are cheaper before the image has its final size. The returned Image has the remaining
  // operations.
  //
  // `scratch` is memory that the calling thread owns and keeps from call to call; the source may
  // enlarge it. The image's bytes lie in `scratch` or in the source's own memory, and are valid
  // until the thread's next call. Throws Error(data) for an image that cannot be read.
  [[nodiscard]] virtual Image read(std::size_t index, const Augmentation& crop,
                                   std::vector<std::uint8_t>& scratch) const = 0;

  // Returns sentences for the user. Each is about an image that could not be read and was replaced
  // since the last call.
  [[nodiscard]] virtual std::vector<std::string> take_notes() const { return {}; }
  // Whether take_notes() may ever return a sentence.
  [[nodiscard]] virtual bool may_have_notes() const noexcept { return false; }

  // The 64-bit XXH3 hash of everything that training sees: names, size, normalisation, labels and
  // pixels. If the images are files, the hash covers the names and sizes of all files, but the
  // bytes of only a few hundred.
  [[nodiscard]] std::uint64_t content_hash() const;

 protected:
  ImageSource(const ImageSource&) = default;
  ImageSource& operator=(const ImageSource&) = default;

  // A hash of labels and pixels, in the order of the images.
  [[nodiscard]] virtual std::uint64_t hash_images() const = 0;

 private:
  ImageFacts facts_;
};

// Images in memory, all of the same size. Immutable.
class ImageSet final : public ImageSource {
 public:
  // `pixels` holds facts.shape.values() bytes per label; every label is below the number of
  // classes.
  ImageSet(ImageFacts facts, std::vector<std::uint8_t> pixels, std::vector<std::int32_t> labels);

  [[nodiscard]] std::size_t count() const noexcept override { return labels_.size(); }
  [[nodiscard]] std::int32_t label(std::size_t index) const override;
  // The returned bytes lie in the source's own memory. The caller must do the whole augmentation.
  [[nodiscard]] Image read(std::size_t index, const Augmentation& crop,
                           std::vector<std::uint8_t>& scratch) const override;
  // The bytes of an image, without augmentation.
  [[nodiscard]] std::span<const std::uint8_t> image(std::size_t index) const;

 protected:
  [[nodiscard]] std::uint64_t hash_images() const override;

 private:
  std::vector<std::uint8_t> pixels_;
  std::vector<std::int32_t> labels_;
};

}  // namespace dp
