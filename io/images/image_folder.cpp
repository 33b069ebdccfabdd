// Outline of load_image_folder(): list the parts of the folder or pack; without test images, take
// some from the training images; apply the limits; read all headers; choose the network's size, the
// crop and the normalisation; make the two sources; describe all of this in Dataset::about. On the
// way it collects warnings about everything that was skipped or may not be intended.
#include "io/images/image_folder.hpp"

#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "io/files/text_table.hpp"
#include "io/images/encoded_source.hpp"
#include "io/images/image_pack.hpp"
#include "io/images/image_survey.hpp"
#include "io/images/image_tree.hpp"
#include "io/images/run_in_parts.hpp"
#include "kernels/base/random.hpp"
#include "kernels/base/setting_error.hpp"

namespace dp {
namespace {

using Members = std::vector<std::uint32_t>;

constexpr std::size_t kMostNamed = 5;  // bad images that a message names

std::string counted(std::size_t count) { return format_count(static_cast<std::int64_t>(count)); }

// "1 image", "2 images"
std::string counted_images(std::size_t count, std::string_view kind = "") {
  return fmt::format("{} {}image{}", counted(count), kind, count == 1 ? "" : "s");
}

// The images of a tree that are used for training, or for testing.
struct Part {
  ImageTree tree;
  Members members;
};

struct Parts {
  Part train, test;
};

Members all_of(const ImageTree& tree) {
  Members members(tree.index->images.size());
  std::iota(members.begin(), members.end(), 0u);
  return members;
}

// Takes a share of each class for testing: at least one image, but never all of them.
Parts divide(const ImageTree& tree, double share, std::uint64_t seed) {
  const ImageIndex& index = *tree.index;
  Parts parts = {{tree, {}}, {tree, {}}};
  parts.test.tree.notes.clear();
  std::vector<std::pair<std::uint64_t, std::uint32_t>> hashes;  // of one class
  std::vector<bool> is_test(index.images.size());
  for (std::uint32_t begin = 0, end = 0; begin < index.images.size(); begin = end) {
    hashes.clear();
    for (end = begin;
         end < index.images.size() && index.images[end].label == index.images[begin].label; ++end) {
      const std::string path = index.path_of(index.images[end]);
      const CounterRng rng(seed, RandomStream::validation, XXH3_64bits(path.data(), path.size()));
      hashes.emplace_back(rng.bits(0), end);
    }
    std::sort(hashes.begin(), hashes.end());
    const std::size_t wanted =
        static_cast<std::size_t>(std::lround(share * static_cast<double>(hashes.size())));
    // A class with a single image keeps it for training.
    const std::size_t taken =
        hashes.size() < 2 ? 0 : std::clamp<std::size_t>(wanted, 1, hashes.size() - 1);
    for (std::size_t i = 0; i < taken; ++i) is_test[hashes[i].second] = true;
  }
  for (std::uint32_t i = 0; i < index.images.size(); ++i) {
    (is_test[i] ? parts.test : parts.train).members.push_back(i);
  }
  return parts;
}

Parts take_parts(const DatasetRequest& request, std::vector<ImageTree> trees) {
  if (trees.size() == 2) {
    if (request.validation_share > 0) {
      throw SettingError(
          Setting{"validation share"}, fmt::format("{}", request.validation_share),
          fmt::format("the data already have test images ({}); remove this option", trees[1].name));
    }
    Parts parts = {{trees[0], all_of(trees[0])}, {trees[1], all_of(trees[1])}};
    return parts;
  }
  Parts parts =
      divide(trees.front(),
             request.validation_share > 0 ? request.validation_share : kUsualValidationShare,
             request.split_seed);
  if (parts.test.members.empty()) {
    throw SettingError(Setting{"data folder"}, printable(request.data_dir),
                       "every class has only one image, so none is left for testing",
                       ErrorKind::data);
  }
  return parts;
}

// Keeps `most` images, spread evenly over the list, so that all classes keep their shares.
void limit(Members& members, std::size_t most) {
  if (most == 0 || most >= members.size()) return;
  Members kept(most);
  for (std::size_t i = 0; i < most; ++i) kept[i] = members[i * members.size() / most];
  members = std::move(kept);
}

// For each class, whether any of these images belongs to it.
std::vector<bool> classes_of(const ImageTree& tree, const Members& members) {
  std::vector<bool> is_there(tree.index->classes.size());
  for (const std::uint32_t member : members) {
    is_there[static_cast<std::size_t>(tree.index->images[member].label)] = true;
  }
  return is_there;
}

// Refuses data with a single class, from which no network can learn. Usually the folder is one
// level too high, so the message names the folders inside the class.
void refuse_one_class(const DatasetRequest& request, const ImageTree& tree) {
  const ImageIndex& index = *tree.index;
  if (index.classes.size() != 1) return;
  const std::string& only = index.classes.front();
  std::vector<std::string> inner;  // the folders in it
  for (const std::string& folder : index.folders) {
    if (folder.size() <= only.size()) continue;
    const std::string name = folder.substr(only.size() + 1);
    if (name.find('/') == std::string::npos) inner.push_back(printable(name));
  }
  constexpr std::size_t kMostFolders = 5;
  const std::size_t more = inner.size() - std::min(inner.size(), kMostFolders);
  inner.resize(inner.size() - more);
  if (more > 0) inner.push_back(fmt::format("{} more", more));
  const std::string place = tree.name.empty() ? "" : " in " + tree.name;
  std::string why = fmt::format("has one class only{}, {}, with {}", place, printable(only),
                                counted_images(index.images.size()));
  if (inner.empty()) {
    why += "; training needs at least two folders of images, one for each class";
  } else {
    why += fmt::format(
        " in {} {}; training needs at least two classes; if these folders are meant as classes, {}",
        inner.size() == 1 ? "its folder" : "its folders", fmt::join(inner, ", "),
        tree.name.empty() ? fmt::format("give the folder {} as the data folder", printable(only))
                          : fmt::format("move them out of {} into {}", printable(only), tree.name));
  }
  throw SettingError(Setting{"data folder"}, printable(request.data_dir), why, ErrorKind::data);
}

// Warns of classes that have training images but no test images.
void note_untested_classes(const DatasetRequest& request, const Parts& parts,
                           std::vector<std::string>& warnings) {
  const std::vector<bool> trained = classes_of(parts.train.tree, parts.train.members),
                          tested = classes_of(parts.test.tree, parts.test.members);
  std::vector<std::string> untested;
  for (std::size_t c = 0; c < trained.size(); ++c) {
    if (trained[c] && !tested[c]) untested.push_back(printable(parts.train.tree.index->classes[c]));
  }
  if (untested.empty()) return;
  const std::size_t count = untested.size();
  if (count > kMostNamed) {
    untested.resize(kMostNamed);
    untested.emplace_back("...");
  }
  warnings.push_back(fmt::format("{}: {} of {} classes {} no test images and {} not tested: {}",
                                 printable(request.data_dir), count, trained.size(),
                                 count == 1 ? "has" : "have", count == 1 ? "is" : "are",
                                 fmt::join(untested, ", ")));
}

// Reads the headers of a part's images. Bad images end the run or, with BadImages::skip, are left
// out with a warning. `what`: "training" or "test".
void check_headers(Part& part, const char* what, const DatasetRequest& request,
                   std::vector<std::string>& warnings) {
  HeaderScan scan = scan_headers(part.tree, part.members, request.threads);
  const Members all = std::exchange(part.members, std::move(scan.good));
  if (scan.bad.empty()) return;
  const std::span<const std::string> named(scan.bad.data(), std::min(scan.bad.size(), kMostNamed));
  const std::size_t others = scan.bad.size() - named.size();
  const std::string text = fmt::format(
      "{} of {} cannot be read: {}{}", counted(scan.bad.size()), counted_images(all.size()),
      fmt::join(named, "; "), others > 0 ? fmt::format("; and {} more", counted(others)) : "");
  if (request.bad_images == BadImages::fail) {
    throw SettingError(ErrorKind::data, text + "; bad images can be left out",
                       Setting{"bad images"});
  }
  if (part.members.empty()) throw_error(ErrorKind::data, "{}; none is left", text);
  warnings.push_back(text + "; they are left out");
  const std::vector<bool> before = classes_of(part.tree, all),
                          after = classes_of(part.tree, part.members);
  for (std::size_t c = 0; c < before.size(); ++c) {
    if (!before[c] || after[c]) continue;
    warnings.push_back(fmt::format("class {}: none of its {} images can be read",
                                   printable(part.tree.index->classes[c]), what));
  }
}

// Warns of images that could not be decoded while mean and deviation were measured.
void warn_of_images(const std::vector<std::string>& notes, std::vector<std::string>& warnings) {
  const std::size_t named = std::min(notes.size(), kMostNamed);
  warnings.insert(warnings.end(), notes.begin(),
                  notes.begin() + static_cast<std::ptrdiff_t>(named));
  if (notes.size() > named) {
    warnings.push_back(
        fmt::format("{} more images cannot be decoded; the next ones of their classes stand in for "
                    "them",
                    counted(notes.size() - named)));
  }
}

std::uint32_t choose_size(const DatasetRequest& request, const ImageSurvey& survey) {
  if (request.image_size > 0) return checked_cast<std::uint32_t>(request.image_size);
  constexpr std::uint32_t kLargestSmall = 64, kUsual = 224;
  const bool is_small = survey.has_one_size() && survey.most_width == survey.most_height &&
                        survey.most_width <= kLargestSmall;
  return is_small ? survey.most_width : kUsual;
}

// Describes how training images are prepared under `rule`.
std::string how_trained(const std::optional<AugmentationRule>& rule, bool has_resized_crop,
                        bool has_that_size, const std::string& how_tested) {
  if (!rule) return "as for testing";
  std::string text = has_resized_crop ? "a random part, scaled" : how_tested;
  if (!has_resized_crop && rule->crop_padding > 0) {
    text = fmt::format("{}shifted by up to {} pixel{}, with {} at the edges",
                       has_that_size ? "" : how_tested + ", ", rule->crop_padding,
                       rule->crop_padding == 1 ? "" : "s",
                       rule->is_reflected ? "their mirror images" : "black");
  }
  constexpr const char* kFlips[] = {"half of them mirrored", "mirrored in every other epoch",
                                    "not mirrored"};
  text += fmt::format(", {}", kFlips[static_cast<std::size_t>(rule->flip)]);
  if (rule->cutout > 0) {
    text += fmt::format(", a square of {0}x{0} set to the mean colour", rule->cutout);
  }
  return text;
}

std::unique_ptr<EncodedSource> make_source(const Part& part, const char* name, std::uint32_t side,
                                           const Normalization& normalization,
                                           const EncodedSourceOptions& options) {
  return std::make_unique<EncodedSource>(ImageFacts{.name = name,
                                                    .class_names = part.tree.index->classes,
                                                    .shape = {.height = side, .width = side},
                                                    .normalization = normalization},
                                         part.tree.index, part.tree.files, part.members, options);
}

}  // namespace

Normalization measure_normalization(const ImageSource& source, std::size_t threads) {
  const std::size_t sample = std::min(source.count(), kMeasuredImages);
  struct Sums {
    std::array<std::uint64_t, kColours> values{}, squares{};
  };
  std::vector<Sums> sums(sample);
  run_in_parts(sample, threads, 8, [&](std::size_t begin, std::size_t end) {
    std::vector<std::uint8_t> scratch;
    for (std::size_t i = begin; i < end; ++i) {
      const auto image = source.read(i * source.count() / sample, {}, scratch).bytes;
      for (std::size_t k = 0; k < image.size(); ++k) {
        const std::size_t c = k / source.shape().pixels();
        const std::uint64_t value = image[k];
        sums[i].values[c] += value;
        sums[i].squares[c] += value * value;
      }
    }
  });
  Normalization measured;
  const double count = static_cast<double>(sample) * static_cast<double>(source.shape().pixels());
  for (std::size_t c = 0; c < kColours; ++c) {
    std::uint64_t values = 0, squares = 0;
    for (const Sums& one : sums) {
      values += one.values[c];
      squares += one.squares[c];
    }
    const double mean = static_cast<double>(values) / count;
    const double variance = std::max(static_cast<double>(squares) / count - mean * mean, 0.0);
    const auto digits = [](double value) { return std::nearbyint(value / 255 * 1e4) / 1e4; };
    measured.mean[c] = static_cast<float>(digits(mean));
    // The network's input is divided by the deviation. If all images have a single colour, the
    // measured deviation is 0, so a small value is used instead.
    measured.deviation[c] = static_cast<float>(std::max(digits(std::sqrt(variance)), 1e-3));
  }
  return measured;
}

Dataset load_image_folder(const DatasetRequest& request) {
  if (request.data_dir.empty()) {
    throw SettingError(Setting{"data set"}, "folder",
                       "needs a folder that has one subfolder of images for each class",
                       ErrorKind::data, Setting{"data folder"});
  }
  Dataset data;
  Parts parts =
      take_parts(request, is_image_pack(request.data_dir) ? open_image_pack(request.data_dir)
                                                          : list_image_folder(request.data_dir));
  for (const Part* part : {&parts.train, &parts.test}) {
    for (const std::string& note : part->tree.notes) data.warnings.push_back(note);
  }
  refuse_one_class(request, parts.train.tree);
  note_untested_classes(request, parts, data.warnings);
  limit(parts.train.members, request.limit_train);
  limit(parts.test.members, request.limit_test);
  check_headers(parts.train, "training", request, data.warnings);
  check_headers(parts.test, "test", request, data.warnings);

  ImageSurvey survey;
  for (const Part* part : {&parts.train, &parts.test}) {
    survey.add(*part->tree.index, part->members);
  }
  const std::uint32_t side = choose_size(request, survey);
  const bool has_that_size =
      survey.has_one_size() && survey.most_width == side && survey.most_height == side;
  EncodedSourceOptions options = {.has_resized_crop = request.crop == CropKind::automatic
                                                          ? !has_that_size
                                                          : request.crop == CropKind::resized,
                                  .short_side = test_short_side(side),
                                  .bad_images = request.bad_images};

  const AugmentationRule usual;
  if (options.has_resized_crop && request.augment &&
      (request.augment->crop_padding != usual.crop_padding ||
       request.augment->is_reflected != usual.is_reflected)) {
    data.warnings.push_back(fmt::format(
        "images are padded only if all of them have the network's size, {}x{}; training scales "
        "random parts of these images instead, and the padding options are ignored",
        side, side));
  }

  Normalization normalization = request.normalization({});
  const bool is_measured = !request.mean || !request.deviation;
  std::unique_ptr<EncodedSource> sample;
  if (is_measured) {
    sample = make_source(parts.train, "folder train", side, {}, options);
    normalization = request.normalization(measure_normalization(*sample, request.threads));
    warn_of_images(sample->take_notes(), data.warnings);
  }
  auto train = make_source(parts.train, "folder train", side, normalization, options);
  if (sample) train->take_bad_images_of(*sample);
  data.train = std::move(train);
  data.test = make_source(parts.test, "folder test", side, normalization, options);
  data.is_decoded = true;
  const std::string kinds = survey.kinds();
  const std::string how_tested =
      has_that_size
          ? "as they are"
          : fmt::format("the centre, after the shorter side is scaled to {}", options.short_side);
  data.about = fmt::format(
      "{} training and {}{} in {} classes, {}{}{}; the network sees {}x{}; training: "
      "{}; testing: {}; mean {:.4f}, deviation {:.4f}{}",
      counted(data.train->count()), counted_images(data.test->count(), "test "),
      parts.train.tree.index == parts.test.tree.index
          ? fmt::format(
                " (a fraction of {} of each class, chosen by names)",
                request.validation_share > 0 ? request.validation_share : kUsualValidationShare)
          : fmt::format(" ({})", parts.test.tree.name),
      data.train->classes(), survey.sizes(), kinds.empty() ? "" : "; ", kinds, side, side,
      how_trained(request.augment, options.has_resized_crop, has_that_size, how_tested), how_tested,
      fmt::join(normalization.mean, " "), fmt::join(normalization.deviation, " "),
      is_measured ? fmt::format(" (measured on {})",
                                counted_images(std::min(kMeasuredImages, data.train->count())))
                  : "");
  return data;
}

bool is_image_folder_or_pack(const std::string& path) {
  return is_image_pack(path) || is_image_folder(path);
}

}  // namespace dp
