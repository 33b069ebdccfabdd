#include "io/dataset.hpp"

#include <xxhash.h>

#include <utility>

#include "io/cifar.hpp"
#include "io/synthetic.hpp"
#include "kernels/base/error.hpp"

namespace dp {

ImageSet::ImageSet(std::string name, std::vector<std::string> class_names,
                   std::vector<std::uint8_t> pixels, std::vector<std::uint8_t> labels)
    : name_(std::move(name)),
      class_names_(std::move(class_names)),
      pixels_(std::move(pixels)),
      labels_(std::move(labels)) {
  DP_ASSERT(pixels_.size() == labels_.size() * kImageBytes, "{} bytes of pixels for {} labels",
            pixels_.size(), labels_.size());
  for (const std::uint8_t label : labels_) {
    DP_ASSERT(label < class_names_.size(), "label {} of {} classes", label, class_names_.size());
  }
}

std::span<const std::uint8_t> ImageSet::image(std::size_t index) const {
  DP_ASSERT(index < count(), "image {} of {}", index, count());
  return {pixels_.data() + index * kImageBytes, kImageBytes};
}

int ImageSet::label(std::size_t index) const {
  DP_ASSERT(index < count(), "label of image {} of {}", index, count());
  return labels_[index];
}

std::uint64_t content_hash(const Dataset& dataset) {
  std::string facts;
  for (const ImageSet* set : {&dataset.train, &dataset.test}) {
    const auto hash = [](std::span<const std::uint8_t> bytes) {
      return XXH3_64bits(bytes.data(), bytes.size());
    };
    facts += fmt::format("{}\n{}\n{:016x} {:016x}\n", set->name(), set->count(),
                         hash(set->all_labels()), hash(set->all_pixels()));
    for (const std::string& name : set->class_names()) facts += name + '\n';
  }
  return XXH3_64bits(facts.data(), facts.size());
}

std::string_view dataset_kind_name(DatasetKind kind) {
  switch (kind) {
    case DatasetKind::synthetic:
      return "synthetic";
    case DatasetKind::cifar10:
      return "cifar10";
    case DatasetKind::cifar100:
      return "cifar100";
  }
  throw_error(ErrorKind::internal, "data set kind {} has no name", static_cast<int>(kind));
}

Dataset load_dataset(const DatasetRequest& request) {
  if (request.kind != DatasetKind::synthetic) return load_cifar(request);
  const std::size_t train = request.limit_train != 0 ? request.limit_train : kSyntheticTrain;
  const std::size_t test = request.limit_test != 0 ? request.limit_test : kSyntheticTest;
  return {.train = make_synthetic(Split::train, train, request.seed, request.threads),
          .test = make_synthetic(Split::test, test, request.seed, request.threads),
          .warnings = {}};
}

}  // namespace dp
