// Data sets by name. A data set is one row of the list in dataset.cpp: its name for --dataset, a
// description, how it is made or loaded, and how to recognise a folder that holds it.
//
// If load_dataset() fails, it throws Error(data). The message names the file, what was found, what
// is expected, and how to get a missing data set.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/images/augment.hpp"
#include "io/images/image_source.hpp"

namespace dp {

// How training images of any size are cut (folders and packs).
enum class CropKind {
  automatic,  // `pad` if all images have the network's size, otherwise `resized`
  pad,        // the image is prepared as for testing, then padded and cut
  resized,    // a random part is scaled to the network's size
};

enum class BadImages { fail, skip };

struct DatasetRequest {
  std::string data_dir = {};  // with the files, or its parent; empty for built-in sets
  // The number of images to use; 0: all. Built-in sets make exactly this many images. From a
  // folder, the images are taken at equal distances in its list, because the list begins with all
  // images of the first class. Other data sets take their first images.
  std::size_t limit_train = 0;
  std::size_t limit_test = 0;
  std::uint64_t seed = 0;   // synthetic: what to draw
  std::size_t threads = 1;  // to load or draw with; the images do not depend on it
  // If given, these values are used instead of the data set's own or measured mean and deviation.
  std::optional<std::array<float, kColours>> mean = {}, deviation = {};
  // The members from here on are for folders and packs.
  std::size_t image_size = 0;  // 0: by the rule in image_folder.hpp
  CropKind crop = CropKind::automatic;
  double validation_share = 0;  // 0 stands for 0.1 if there are no test images
  std::uint64_t split_seed = 0;
  BadImages bad_images = BadImages::fail;
  // How the caller will augment training images; nullopt: not at all. Used only in texts that
  // describe the data set.
  std::optional<AugmentationRule> augment = AugmentationRule{};

  [[nodiscard]] Normalization normalization(const Normalization& usual) const {
    return {.mean = mean.value_or(usual.mean), .deviation = deviation.value_or(usual.deviation)};
  }
};

struct Dataset {
  std::unique_ptr<const ImageSource> train, test;  // of the same shape and classes
  // Warnings about things that are allowed but perhaps not intended, one sentence each.
  std::vector<std::string> warnings = {};
  // How the images are prepared, for the table that the program prints at its start. Empty if there
  // is nothing special to say.
  std::string about = {};
  // Whether images are decoded, which may need several threads (LoaderOptions).
  bool is_decoded = false;
};

struct DatasetRow {
  const char* name;  // on the command line
  const char* text;  // what it is, for --help
  Dataset (*load)(const DatasetRequest& request);
  // Whether a folder, or the subfolder into which the set's archive unpacks, has the set's files.
  // Null for a built-in set, which reads no files.
  bool (*is_in)(const std::string& folder);
};

// All data sets, in the order in which --help lists them.
[[nodiscard]] std::span<const DatasetRow> dataset_list();

// Throws Error(usage) for an unknown name, with a list of the known names.
[[nodiscard]] Dataset load_dataset(std::string_view name, const DatasetRequest& request);

// The data set that the folder holds; empty if it holds none or several.
[[nodiscard]] std::string detect_dataset(const std::string& data_dir);

// A hash of the training and test images (ImageSource::content_hash). It is equal for two data sets
// if training would see the same data.
[[nodiscard]] std::uint64_t content_hash(const Dataset& dataset);

}  // namespace dp
