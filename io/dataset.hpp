// Data sets by name. A data set is one row of the list in dataset.cpp: its name for --dataset, a
// description, how it is made or loaded, and how to recognise a folder that holds it.
//
// load_dataset() throws Error(data) that names the file, what was found and what is expected, and
// how to get a missing data set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/image_source.hpp"

namespace dp {

struct DatasetRequest {
  std::string data_dir = {};    // the folder with the files, or its parent; built-in sets: empty
  std::size_t limit_train = 0;  // 0: all; else the first ones (synthetic: exactly that many)
  std::size_t limit_test = 0;
  std::uint64_t seed = 0;   // synthetic: what to draw
  std::size_t threads = 1;  // that load or draw; the images do not depend on it
};

struct Dataset {
  std::unique_ptr<const ImageSource> train, test;  // of the same shape and classes
  // One sentence each about things that are allowed but perhaps not meant.
  std::vector<std::string> warnings = {};
};

struct DatasetRow {
  const char* name;  // on the command line
  const char* text;  // what it is, for --help
  Dataset (*load)(const DatasetRequest& request);
  // Whether a folder, or the subfolder in which the set's archive unpacks, has the set's files.
  // Null: the set is built in and reads none.
  bool (*is_in)(const std::string& folder);
};

// In the order of --help.
[[nodiscard]] std::span<const DatasetRow> dataset_list();

// Throws Error(usage), which lists the known names, for an unknown one.
[[nodiscard]] Dataset load_dataset(std::string_view name, const DatasetRequest& request);

// Which data set a folder (or its parent) holds; empty if none, or several.
[[nodiscard]] std::string detect_dataset(const std::string& data_dir);

// Equal if training would see the same data (ImageSource::content_hash of both parts).
[[nodiscard]] std::uint64_t content_hash(const Dataset& dataset);

}  // namespace dp
