// Outline of load(): find the folder, check the sizes of all files, then read the records of each
// split. A Layout describes one of the two data sets. Most of the code serves error messages: it
// finds out what is wrong with a folder or file, and how the user can get the right one.
#include "io/images/cifar.hpp"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <system_error>
#include <utility>

#include "io/files/shipped_script.hpp"
#include "kernels/base/setting_error.hpp"

namespace dp {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kImageBytes = kCifarShape.values();

struct Layout {
  const char* name;  // on the command line, and the argument of experiments/get_cifar.sh
  const char* title;
  const char* subfolder;      // into which the official archive unpacks
  const char* python_folder;  // the folder of the Python version of the data, which is not read
  const char* class_names_file;
  std::vector<std::string> train_files, test_files;
  std::size_t label_bytes;  // the last byte is the label; CIFAR-100 has a coarse label before it
  std::size_t classes;
  Normalization normalization;  // the customary values
  [[nodiscard]] std::size_t record_bytes() const { return label_bytes + kImageBytes; }
};

const Layout& cifar10() {
  static const Layout layout{
      .name = "cifar10",
      .title = "CIFAR-10",
      .subfolder = "cifar-10-batches-bin",
      .python_folder = "cifar-10-batches-py",
      .class_names_file = "batches.meta.txt",
      .train_files = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                      "data_batch_4.bin", "data_batch_5.bin"},
      .test_files = {"test_batch.bin"},
      .label_bytes = 1,
      .classes = 10,
      .normalization = {}};
  return layout;
}

const Layout& cifar100() {
  static const Layout layout{.name = "cifar100",
                             .title = "CIFAR-100",
                             .subfolder = "cifar-100-binary",
                             .python_folder = "cifar-100-python",
                             .class_names_file = "fine_label_names.txt",
                             .train_files = {"train.bin"},
                             .test_files = {"test.bin"},
                             .label_bytes = 2,
                             .classes = 100,
                             .normalization = {.mean = {0.5071f, 0.4865f, 0.4409f},
                                               .deviation = {0.2673f, 0.2564f, 0.2762f}}};
  return layout;
}

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

bool has_any_file(const fs::path& folder, const Layout& layout) {
  for (const auto* files : {&layout.train_files, &layout.test_files}) {
    for (const std::string& file : *files) {
      if (is_there(folder / file)) return true;
    }
  }
  return false;
}

bool is_in(const fs::path& folder, const Layout& layout) {
  return has_any_file(folder, layout) || has_any_file(folder / layout.subfolder, layout);
}

std::string how_to_get(const Layout& layout) {
  return fmt::format("{} {} FOLDER downloads it", shipped_script("get_cifar.sh"), layout.name);
}

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

// Describes a folder for messages: "it holds 3 folders (cat, dog, ...) and 2 files (a.txt, b.txt)".
// Also names the first image, which may lie deeper.
std::string what_is_in(const fs::path& folder) {
  std::vector<std::string> folders, files;
  std::string image;
  constexpr int kMostEntries = 10'000;  // enough to see what kind of folder it is
  int count = 0;
  std::error_code code;
  const auto skip = fs::directory_options::skip_permission_denied;
  for (fs::recursive_directory_iterator entry(folder, skip, code), end;
       !code && entry != end && count < kMostEntries; entry.increment(code), ++count) {
    std::error_code ignored;
    const bool is_folder = entry->is_directory(ignored);
    if (entry.depth() == 0) {
      (is_folder ? folders : files).push_back(entry->path().filename().string());
    }
    std::string kind = entry->path().extension().string();
    for (char& c : kind) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    const bool is_image = kind == ".jpg" || kind == ".jpeg" || kind == ".png" || kind == ".bmp" ||
                          kind == ".ppm" || kind == ".webp" || kind == ".gif";
    if (is_image && !is_folder && image.empty()) {
      image = entry->path().lexically_relative(folder).string();
    }
  }
  if (folders.empty() && files.empty()) return "it is empty";
  std::string text = "it holds ";
  const auto list = [&](std::vector<std::string>& names, const char* one, const char* many) {
    std::sort(names.begin(), names.end());
    const bool is_cut = names.size() > 3;
    const std::span<const std::string> shown(names.data(), std::min<std::size_t>(names.size(), 3));
    text += fmt::format("{} {} ({}{})", names.size(), names.size() == 1 ? one : many,
                        fmt::join(shown, ", "), is_cut ? ", ..." : "");
  };
  if (!folders.empty()) list(folders, "folder", "folders");
  if (!folders.empty() && !files.empty()) text += " and ";
  if (!files.empty()) list(files, "file", "files");
  if (!image.empty()) {
    text += fmt::format(", and images such as {}, which data set folder reads", image);
  }
  return text;
}

// Returns the folder that has the files: the given folder, or the subfolder that the official
// archive creates in the given folder.
fs::path find_folder(const std::string& data_dir, const Layout& layout) {
  if (data_dir.empty()) {
    throw SettingError(
        Setting{"data set"}, layout.name,
        fmt::format("needs the folder with {}'s .bin files; {}", layout.title, how_to_get(layout)),
        ErrorKind::data, Setting{"data folder"});
  }
  const auto refuse = [&](const std::string& why) {
    throw SettingError(Setting{"data folder"}, data_dir, why, ErrorKind::data);
  };
  const fs::path given(data_dir);
  std::error_code code;
  const fs::file_status status = fs::status(given, code);
  if (!fs::exists(status)) {
    const std::string reason = code && code != std::errc::no_such_file_or_directory
                                   ? code.message()
                                   : std::string("no such folder");
    refuse(fmt::format("{}; {}", reason, how_to_get(layout)));
  }
  if (!fs::is_directory(status)) {
    refuse(fmt::format(
        "is not a folder; expected the folder with {}'s .bin files (an archive must be unpacked "
        "first)",
        layout.title));
  }
  for (const fs::path& folder : {given, given / layout.subfolder}) {
    if (has_any_file(folder, layout)) return folder;
  }

  const Layout& other = &layout == &cifar10() ? cifar100() : cifar10();
  std::string hint = how_to_get(layout);
  Setting remedy;
  if (is_in(given, other)) {
    hint = fmt::format("it holds {}: use data set {}", other.title, other.name);
    remedy = Setting{"data set"};
  } else if (is_there(given / layout.python_folder) || is_file(given / "data_batch_1") ||
             (is_file(given / "train") && is_file(given / "meta"))) {
    hint = fmt::format("it seems to hold the Python version; dptrain needs the binary version: {}",
                       how_to_get(layout));
  } else {
    hint = fmt::format("{}; {}", what_is_in(given), how_to_get(layout));
  }
  throw SettingError(
      Setting{"data folder"}, data_dir,
      fmt::format("no {} here: neither {} nor {}/{} is in it; {}", layout.title,
                  layout.train_files.front(), layout.subfolder, layout.train_files.front(), hint),
      ErrorKind::data, remedy);
}

// The number of records in a file, computed from its size.
std::size_t count_records(const fs::path& path, const Layout& layout) {
  std::error_code code;
  const std::uintmax_t bytes = fs::file_size(path, code);
  if (code) {
    if (code == std::errc::no_such_file_or_directory) {
      throw_error(ErrorKind::data, "{}: missing; {} consists of {} and {}; {}", path.string(),
                  layout.title, fmt::join(layout.train_files, ", "),
                  fmt::join(layout.test_files, ", "), how_to_get(layout));
    }
    throw_error(ErrorKind::data, "{}: cannot be read: {}", path.string(), code.message());
  }
  const std::size_t record = layout.record_bytes();
  if (bytes == 0 || bytes % record != 0) {
    throw_error(ErrorKind::data,
                "{}: has {} bytes: {} records of {} bytes and {} bytes more; expected at "
                "least one record and no other bytes; the file is cut off or not in the binary "
                "layout of {} (the original: {})",
                path.string(), bytes, bytes / record, record, bytes % record, layout.title,
                how_to_get(layout));
  }
  return static_cast<std::size_t>(bytes / record);
}

void append_records(const fs::path& path, const Layout& layout, std::size_t records,
                    std::vector<std::uint8_t>& pixels, std::vector<std::int32_t>& labels) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw_error(ErrorKind::data, "{}: cannot be opened: {}", path.string(), std::strerror(errno));
  }
  const std::size_t record_bytes = layout.record_bytes();
  std::vector<char> bytes(records * record_bytes);
  file.read(bytes.data(), checked_cast<std::streamsize>(bytes.size()));
  if (static_cast<std::size_t>(file.gcount()) != bytes.size()) {
    throw_error(ErrorKind::data, "{}: reading stopped after {} of {} bytes", path.string(),
                file.gcount(), bytes.size());
  }
  for (std::size_t i = 0; i < records; ++i) {
    const char* record = bytes.data() + i * record_bytes;
    const auto label = static_cast<std::uint8_t>(record[layout.label_bytes - 1]);
    if (label >= layout.classes) {
      throw_error(ErrorKind::data, "{}: record {} has label {}; {}'s labels are 0 to {}",
                  path.string(), i, label, layout.title, layout.classes - 1);
    }
    labels.push_back(label);
    pixels.insert(pixels.end(), record + layout.label_bytes, record + record_bytes);
  }
}

// The class names from the data set's own list, or "class 0" and so on if the list is missing or
// does not fit.
std::vector<std::string> read_class_names(const fs::path& folder, const Layout& layout) {
  std::vector<std::string> names;
  const fs::path path = folder / layout.class_names_file;
  std::ifstream file;
  if (is_file(path)) file.open(path);  // opening a pipe would wait for its writer
  for (std::string line; std::getline(file, line);) {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (!line.empty()) names.push_back(line);
  }
  if (names.size() != layout.classes) {
    names.clear();
    for (std::size_t i = 0; i < layout.classes; ++i) names.push_back(fmt::format("class {}", i));
  }
  return names;
}

std::unique_ptr<const ImageSet> load_split(const fs::path& folder, const Layout& layout,
                                           const std::string& split,
                                           const std::vector<std::string>& files, std::size_t limit,
                                           const std::vector<std::string>& class_names,
                                           const Normalization& normalization) {
  std::vector<std::size_t> records;
  std::size_t all = 0;
  for (const std::string& file : files) {
    records.push_back(count_records(folder / file, layout));
    all += records.back();
  }
  const std::size_t wanted = limit == 0 ? all : std::min(limit, all);
  std::vector<std::uint8_t> pixels;
  std::vector<std::int32_t> labels;
  pixels.reserve(wanted * kImageBytes);
  labels.reserve(wanted);
  for (std::size_t i = 0; i < files.size() && labels.size() < wanted; ++i) {
    append_records(folder / files[i], layout, std::min(records[i], wanted - labels.size()), pixels,
                   labels);
  }
  return std::make_unique<const ImageSet>(
      ImageFacts{.name = fmt::format("{} {}", layout.title, split),
                 .class_names = class_names,
                 .shape = kCifarShape,
                 .normalization = normalization},
      std::move(pixels), std::move(labels));
}

// Warnings such as "data_batch_5.bin: has 9000 images and data_batch_1.bin has 10000".
std::vector<std::string> warnings_about(const fs::path& folder, const Layout& layout) {
  std::vector<std::size_t> records;
  for (const std::string& file : layout.train_files) {
    records.push_back(count_records(folder / file, layout));
  }
  const auto longest =
      static_cast<std::size_t>(std::max_element(records.begin(), records.end()) - records.begin());
  std::vector<std::string> warnings;
  for (std::size_t i = 0; i < records.size(); ++i) {
    if (records[i] == records[longest]) continue;
    warnings.push_back(fmt::format("{}: has {} images and {} has {}; is the file complete?",
                                   (folder / layout.train_files[i]).string(), records[i],
                                   layout.train_files[longest], records[longest]));
  }
  return warnings;
}

Dataset load(const DatasetRequest& request, const Layout& layout) {
  const fs::path folder = find_folder(request.data_dir, layout);
  // Check all files before reading the first byte, so that a missing last file is found at once.
  for (const auto* files : {&layout.train_files, &layout.test_files}) {
    for (const std::string& file : *files) static_cast<void>(count_records(folder / file, layout));
  }
  const std::vector<std::string> names = read_class_names(folder, layout);
  const Normalization normalization = request.normalization(layout.normalization);
  return {.train = load_split(folder, layout, "train", layout.train_files, request.limit_train,
                              names, normalization),
          .test = load_split(folder, layout, "test", layout.test_files, request.limit_test, names,
                             normalization),
          .warnings = warnings_about(folder, layout)};
}

}  // namespace

Dataset load_cifar10(const DatasetRequest& request) { return load(request, cifar10()); }
Dataset load_cifar100(const DatasetRequest& request) { return load(request, cifar100()); }

bool is_cifar10_in(const std::string& folder) { return is_in(folder, cifar10()); }
bool is_cifar100_in(const std::string& folder) { return is_in(folder, cifar100()); }

}  // namespace dp
