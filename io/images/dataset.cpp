#include "io/images/dataset.hpp"

#include <xxhash.h>

#include "io/images/cifar.hpp"
#include "io/images/image_folder.hpp"
#include "io/images/image_index.hpp"
#include "io/images/synthetic.hpp"
#include "kernels/base/setting_error.hpp"

namespace dp {
namespace {

constexpr DatasetRow kDatasets[] = {
    {.name = "synthetic",
     .text = "ten classes of shapes and textures that the program draws, 32x32; needs no files",
     .load = load_synthetic,
     .is_in = nullptr},
    {.name = "cifar10",
     .text = "CIFAR-10: 60,000 photographs, 32x32, of ten classes; needs a folder with its files",
     .load = load_cifar10,
     .is_in = is_cifar10_in},
    {.name = "cifar100",
     .text = "CIFAR-100: 60,000 photographs, 32x32, of a hundred classes; needs a folder with its "
             "files",
     .load = load_cifar100,
     .is_in = is_cifar100_in},
    {.name = "folder",
     .text = "JPEG and PNG images of any size in a folder for each class, as torchvision's "
             "ImageFolder reads them, or a file that dptrain-pack made of them",
     .load = load_image_folder,
     .is_in = is_image_folder_or_pack},
};

// Warns if all training images have one class, because a network then learns nothing.
void warn_of_one_class(Dataset& data) {
  const ImageSource& train = *data.train;
  for (std::size_t i = 1; i < train.count(); ++i) {
    if (train.label(i) != train.label(0)) return;
  }
  data.warnings.push_back(
      fmt::format("all training images have the same class, {}: there is nothing to learn",
                  printable(train.class_names()[static_cast<std::size_t>(train.label(0))])));
}

}  // namespace

std::span<const DatasetRow> dataset_list() { return kDatasets; }

Dataset load_dataset(std::string_view name, const DatasetRequest& request) {
  std::string known;
  for (const DatasetRow& row : kDatasets) {
    if (name == row.name) {
      Dataset data = row.load(request);
      warn_of_one_class(data);
      return data;
    }
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  throw SettingError(Setting{"data set"}, name, "unknown data set; known: " + known);
}

std::string detect_dataset(const std::string& data_dir) {
  std::string found;
  for (const DatasetRow& row : kDatasets) {
    if (row.is_in == nullptr || !row.is_in(data_dir)) continue;
    if (!found.empty()) return "";
    found = row.name;
  }
  return found;
}

std::uint64_t content_hash(const Dataset& dataset) {
  const std::uint64_t parts[] = {dataset.train->content_hash(), dataset.test->content_hash()};
  return XXH3_64bits(parts, sizeof parts);
}

}  // namespace dp
