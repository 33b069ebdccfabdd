// Data sets: labelled colour images of 32x32 pixels, split into a training and a test set.
//
// A set lives in memory as bytes, planar (channel, row, column: the order of CIFAR's files), and
// never changes once it is built, so any number of threads may read it. load_dataset() throws
// Error(data) that names the file, what was found and what is expected, and how to get a data set
// that is not there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dp {

inline constexpr std::size_t kImageChannels = 3;
inline constexpr std::size_t kImageHeight = 32;
inline constexpr std::size_t kImageWidth = 32;
inline constexpr std::size_t kImagePixels = kImageHeight * kImageWidth;
inline constexpr std::size_t kImageBytes = kImageChannels * kImagePixels;

class ImageSet {
 public:
  ImageSet() = default;
  // `pixels` holds kImageBytes per label; every label is below class_names.size().
  ImageSet(std::string name, std::vector<std::string> class_names, std::vector<std::uint8_t> pixels,
           std::vector<std::uint8_t> labels);

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] std::size_t count() const noexcept { return labels_.size(); }
  [[nodiscard]] std::size_t classes() const noexcept { return class_names_.size(); }
  [[nodiscard]] const std::vector<std::string>& class_names() const noexcept {
    return class_names_;
  }
  // Planar: red, green, blue, each kImageHeight rows of kImageWidth bytes.
  [[nodiscard]] std::span<const std::uint8_t> image(std::size_t index) const;
  [[nodiscard]] int label(std::size_t index) const;
  // In the order of the images, for a hash over the whole set.
  [[nodiscard]] std::span<const std::uint8_t> all_pixels() const noexcept { return pixels_; }
  [[nodiscard]] std::span<const std::uint8_t> all_labels() const noexcept { return labels_; }

 private:
  std::string name_;
  std::vector<std::string> class_names_;
  std::vector<std::uint8_t> pixels_;
  std::vector<std::uint8_t> labels_;
};

enum class DatasetKind { synthetic, cifar10, cifar100 };

// The name on the command line: synthetic, cifar10, cifar100.
[[nodiscard]] std::string_view dataset_kind_name(DatasetKind kind);

struct DatasetRequest {
  DatasetKind kind = DatasetKind::synthetic;
  std::string data_dir = {};    // CIFAR: the folder with the .bin files, or its parent
  std::size_t limit_train = 0;  // 0: all; else the first so many (synthetic: exactly so many)
  std::size_t limit_test = 0;
  std::uint64_t seed = 0;   // synthetic: what to draw
  std::size_t threads = 1;  // synthetic: threads that draw; the images do not depend on it
};

struct Dataset {
  ImageSet train;
  ImageSet test;
  // What is allowed and may not be meant, a sentence each.
  std::vector<std::string> warnings = {};
};

// XXH3, 64 bits, over names, classes, labels and pixels of both sets: equal where training would
// see the same.
[[nodiscard]] std::uint64_t content_hash(const Dataset& dataset);

[[nodiscard]] Dataset load_dataset(const DatasetRequest& request);

// Which CIFAR a folder (or its parent) holds, by the names of its files; nothing if neither or
// both.
[[nodiscard]] std::optional<DatasetKind> detect_dataset(const std::string& data_dir);

}  // namespace dp
