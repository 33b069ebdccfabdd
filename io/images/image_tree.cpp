// Outline: list_image_folder() decides from the names of the folders which parts there are, refuses
// other layouts, and calls list_tree() for each part. list_tree() takes the folders of the first
// level as classes; a Lister walks each class folder, depth first, and adds its images to the
// index. Nothing is opened yet: FolderFiles opens an image when its header or its bytes are read.
//
// Links make the tree a graph. The Lister keeps the chain of folders above the current one and
// skips a folder that is in this chain. has_file() and is_image_folder() keep the set of all
// folders that they have entered.
#include "io/images/image_tree.hpp"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include "io/images/image_names.hpp"
#include "kernels/base/setting_error.hpp"

namespace dp {
namespace {

namespace fs = std::filesystem;

class OpenFile {
 public:
  // Refuses pipes and devices, because reading them may never end.
  explicit OpenFile(const std::string& path)
      : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (fd_ < 0 && (errno == ENOENT || errno == ELOOP)) throw BadImage("is a link to nothing");
    if (fd_ < 0) throw BadImage(fmt::format("cannot be opened: {}", std::strerror(errno)));
    struct stat status = {};
    if (::fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) {
      ::close(fd_);
      throw BadImage("is not a regular file");
    }
    size_ = static_cast<std::uint64_t>(status.st_size);
  }
  ~OpenFile() { ::close(fd_); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  [[nodiscard]] std::uint64_t size() const { return size_; }

  // Reads the first bytes of the file, at most `count`.
  void read(std::size_t count, std::vector<std::uint8_t>& bytes, const std::string& path) const {
    bytes.resize(static_cast<std::size_t>(std::min<std::uint64_t>(count, size_)));
    std::size_t at = 0;
    while (at < bytes.size()) {
      const ssize_t got =
          ::pread(fd_, bytes.data() + at, bytes.size() - at, static_cast<off_t>(at));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) {
        throw_error(ErrorKind::data, "{}: cannot be read: {}", printable(path),
                    std::strerror(errno));
      }
      if (got == 0) break;  // the file was shortened
      at += static_cast<std::size_t>(got);
    }
    bytes.resize(at);
  }

 private:
  int fd_;
  std::uint64_t size_ = 0;
};

// The contents of a folder, sorted by the names' bytes.
struct Entries {
  std::vector<std::string> folders, files;
};

[[noreturn]] void refuse(const std::string& folder, const std::string& why, Setting remedy = {}) {
  throw SettingError(Setting{"data folder"}, printable(folder), why, ErrorKind::data, remedy);
}

Entries list(const fs::path& folder) {
  Entries found;
  std::error_code code;
  for (fs::directory_iterator entry(folder, code), end; !code && entry != end;
       entry.increment(code)) {
    std::error_code ignored;
    std::string name = entry->path().filename().string();
    (entry->is_directory(ignored) ? found.folders : found.files).push_back(std::move(name));
  }
  if (code) refuse(folder.string(), fmt::format("cannot be read: {}", code.message()));
  std::sort(found.folders.begin(), found.folders.end());
  std::sort(found.files.begin(), found.files.end());
  return found;
}

std::vector<std::string> class_folders(const fs::path& folder) {
  std::vector<std::string> names = list(folder).folders;
  std::erase_if(names, is_of_system);
  return names;
}

// Identifies a folder, whichever links lead to it.
using Place = std::pair<dev_t, ino_t>;

std::optional<Place> find_place(const fs::path& folder) {
  struct stat status = {};
  if (::stat(folder.c_str(), &status) != 0) return {};
  return Place{status.st_dev, status.st_ino};
}

Place place_of(const fs::path& folder) {
  const std::optional<Place> place = find_place(folder);
  if (!place) refuse(folder.string(), std::strerror(errno));
  return *place;
}

// Whether a file of the user lies in the folder or below it. Enters no folder twice, so that a loop
// of links does not go on for ever.
bool has_file(const fs::path& folder, std::set<Place>& entered) {
  if (const auto place = find_place(folder); place && !entered.insert(*place).second) return false;
  const Entries here = list(folder);
  return std::ranges::any_of(here.files, [](const auto& name) { return !is_of_system(name); }) ||
         std::ranges::any_of(here.folders, [&](const std::string& name) {
           return !is_of_system(name) && has_file(folder / name, entered);
         });
}

// Removes the names of folders without any file. Returns a note for each removed name.
std::vector<std::string> leave_out_empty(const fs::path& root, std::vector<std::string>& names) {
  std::vector<std::string> notes;
  std::erase_if(names, [&](const std::string& name) {
    std::set<Place> entered;
    if (has_file(root / name, entered)) return false;
    notes.push_back(fmt::format("{}: has no files and is not used as a class",
                                printable((root / name).string())));
    return true;
  });
  return notes;
}

// Adds the images of one tree to an index, class by class, and counts what it skips.
class Lister {
 public:
  Lister(fs::path root, ImageIndex& index) : root_(std::move(root)), index_(index) {
    std::error_code code;
    for (fs::path path = fs::canonical(root_, code); !code; path = path.parent_path()) {
      above_.push_back(place_of(path));
      if (path == path.parent_path()) break;
    }
    const Entries here = list(root_);
    for (const std::string& file : here.files) {
      if (is_of_system(file)) of_system_.add_file(file);
    }
    for (const std::string& folder : here.folders) {
      if (is_of_system(folder)) of_system_.add_folder(folder);
    }
  }

  // Adds the images of a class folder and returns their number.
  std::size_t add_class(const std::string& name, std::int32_t label) {
    // torchvision sorts the folders of a class by their full paths.
    folders_.clear();
    collect(name, 0);
    std::sort(folders_.begin(), folders_.end());
    const std::size_t before = index_.images.size();
    for (const std::string& folder : folders_) {
      const auto number = checked_cast<std::uint32_t>(index_.folders.size());
      index_.folders.push_back(folder);
      for (const std::string& file : list(root_ / folder).files) {
        if (is_of_system(file)) {
          of_system_.add_file(file);
          continue;
        }
        if (!has_image_suffix(file)) {
          others_.add_file(file);
          continue;
        }
        index_.images.push_back({.name = index_.names.size(), .folder = number, .label = label});
        index_.names += file;
        index_.names += '\0';
      }
    }
    // Check that the count fits into 32 bits, because the sampler and the augmentation use 32-bit
    // image numbers.
    static_cast<void>(checked_cast<std::uint32_t>(index_.images.size()));
    return index_.images.size() - before;
  }

  [[nodiscard]] std::vector<std::string> notes() const {
    std::vector<std::string> notes = loops_;
    for (const std::string& text : {of_system_.text("hidden or made by the operating system"),
                                    others_.text("not an image by its suffix")}) {
      if (!text.empty()) notes.push_back(fmt::format("{}: {}", printable(root_.string()), text));
    }
    return notes;
  }

 private:
  void collect(const std::string& folder, int depth) {
    const std::string path = (root_ / folder).string();
    const Place place = place_of(path);
    // If the chain of folders above already has this folder, the links form a loop.
    if (std::find(above_.begin(), above_.end(), place) != above_.end()) {
      loops_.push_back(
          fmt::format("{}: skipped: it leads back to a folder above it", printable(path)));
      return;
    }
    constexpr int kMostDepth = 64;
    if (depth > kMostDepth)
      refuse(path, fmt::format("folders are nested more than {} deep", kMostDepth));
    folders_.push_back(folder);
    above_.push_back(place);
    for (const std::string& inner : list(path).folders) {
      if (is_of_system(inner)) {
        of_system_.add_folder(inner);
      } else {
        collect(folder + "/" + inner, depth + 1);
      }
    }
    above_.pop_back();
  }

  fs::path root_;
  ImageIndex& index_;
  std::vector<std::string> folders_, loops_;
  std::vector<Place> above_;  // the chain of folders above the one that is being listed
  LeftOut of_system_, others_;
};

// Lists one part. If `classes` is given, the part has exactly these classes, and some of them may
// have no images. Otherwise its classes are its folders, and each must have an image.
ImageTree list_tree(const fs::path& root, const std::string& name,
                    const std::vector<std::string>* classes) {
  ImageTree tree = {.name = name,
                    .index = std::make_shared<ImageIndex>(),
                    .files = std::make_shared<FolderFiles>(root.string())};
  std::vector<std::string> here = class_folders(root);
  const bool has_folders = !here.empty();
  if (classes == nullptr) tree.notes = leave_out_empty(root, here);
  tree.index->classes = classes == nullptr ? here : *classes;
  Lister lister(root, *tree.index);
  for (const std::string& folder : here) {
    const auto found =
        std::lower_bound(tree.index->classes.begin(), tree.index->classes.end(), folder);
    const bool is_known = found != tree.index->classes.end() && *found == folder;
    const std::size_t images =
        lister.add_class(folder, static_cast<std::int32_t>(found - tree.index->classes.begin()));
    if (images > 0 && !is_known) {
      refuse((root / folder).string(), "is a class that the training images do not have");
    }
    if (images == 0 && classes == nullptr) {
      refuse((root / folder).string(),
             "has no image, and every class needs one for training; remove the folder or fill it");
    }
  }
  if (!has_folders) {
    refuse(root.string(), "has no folders; expected one for each class with its images");
  }
  if (tree.index->images.empty()) refuse(root.string(), "has no image in its folders");
  for (std::string& note : lister.notes()) tree.notes.push_back(std::move(note));
  tree.index->names.shrink_to_fit();
  tree.index->images.shrink_to_fit();
  return tree;
}

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

// Folders that have names of parts of a data set but are not read as parts.
std::vector<std::string> other_parts(const fs::path& folder) {
  constexpr std::array<std::string_view, 10> kNames = {"train",      "training", "val",     "valid",
                                                       "validation", "test",     "testing", "eval",
                                                       "evaluation", "dev"};
  const bool has_train = is_folder(folder / "train");
  std::vector<std::string> names = class_folders(folder);
  std::erase_if(names, [&](const std::string& name) {
    if (has_train && (name == "train" || name == "val" || name == "test")) return true;
    return std::ranges::find(kNames, in_lower_case(name)) == kNames.end();
  });
  return names;
}

}  // namespace

std::string FolderFiles::name_of(const ImageIndex& index, const IndexedImage& image) const {
  return root_ + "/" + index.path_of(image);
}

void FolderFiles::read(const ImageIndex& index, const IndexedImage& image,
                       std::vector<std::uint8_t>& bytes) const {
  const std::string path = name_of(index, image);
  try {
    const OpenFile file(path);
    file.read(image.bytes, bytes, path);
    if (file.size() == image.bytes && bytes.size() == image.bytes) return;
  } catch (const BadImage& error) {  // the image was good when the run began
    throw_error(ErrorKind::data, "{}: {}", printable(path), error.what());
  }
  throw_error(ErrorKind::data, "{}: has changed size since the run began", printable(path));
}

void FolderFiles::read_header(const ImageIndex& index, IndexedImage& image,
                              std::vector<std::uint8_t>& bytes) const {
  const std::string path = name_of(index, image);
  const OpenFile file(path);
  constexpr std::size_t kUsualHeader = 4096;
  file.read(kUsualHeader, bytes, path);
  std::optional<ImageHeader> header = read_image_header(bytes, file.size());
  if (!header) {
    file.read(static_cast<std::size_t>(kMostFileBytes), bytes, path);
    header = read_image_header(bytes, bytes.size());
  }
  if (!header) throw BadImage("is cut off in its header");
  image.header = *header;
  image.bytes = checked_cast<std::uint32_t>(file.size());
}

bool is_image_folder(const std::string& folder) {
  const fs::path train = fs::path(folder) / "train";
  const fs::path root = is_folder(train) ? train : fs::path(folder);
  constexpr int kMostEntries = 1'000'000;  // this takes a second or two
  int count = 0;
  std::vector<fs::path> waiting = {root};
  std::set<Place> entered;
  while (!waiting.empty()) {
    const fs::path here = std::move(waiting.back());
    waiting.pop_back();
    const std::optional<Place> place = find_place(here);
    if (!place || !entered.insert(*place).second) continue;
    const bool is_root = entered.size() == 1;
    std::error_code code;
    for (fs::directory_iterator entry(here, code), end; !code && entry != end;
         entry.increment(code)) {
      if (++count > kMostEntries) return false;
      const std::string name = entry->path().filename().string();
      std::error_code ignored;
      if (entry->is_directory(ignored)) {
        if (!is_of_system(name)) waiting.push_back(entry->path());
      } else if (!is_root && has_image_suffix(name) && !is_of_system(name)) {
        return true;
      }
    }
  }
  return false;
}

std::vector<ImageTree> list_image_folder(const std::string& folder) {
  const fs::path given(folder);
  std::error_code code;
  const fs::file_status status = fs::status(given, code);
  if (!fs::exists(status)) {
    refuse(folder, code && code != std::errc::no_such_file_or_directory
                       ? code.message()
                       : std::string("no such folder"));
  }
  if (!fs::is_directory(status)) {
    refuse(folder, "is neither a folder with images nor a pack made by dptrain-pack");
  }
  std::vector<ImageTree> trees;
  const std::vector<std::string> others = other_parts(given);
  const std::string named = printable(fmt::format("{}", fmt::join(others, " and ")));
  if (!is_folder(given / "train")) {
    if (!others.empty() && others.size() == class_folders(given).size()) {
      refuse(folder,
             fmt::format("has {}, but no train; put a folder of training images for each class "
                         "into train, and the same folders with test images into val or test",
                         named));
    }
    trees.push_back(list_tree(given, "", nullptr));
    if (!others.empty()) {
      trees.front().notes.push_back(
          fmt::format("{}: has no train, so {} {}", printable(folder), named,
                      others.size() == 1 ? "is used as a class" : "are used as classes"));
    }
    return trees;
  }
  const bool has_tests = is_folder(given / "val") || is_folder(given / "test");
  if (!others.empty() && !has_tests) {
    refuse(
        folder,
        fmt::format("has train and {}; a folder of test images must be called val or test", named));
  }
  trees.push_back(list_tree(given / "train", "train", nullptr));
  if (!others.empty()) {
    trees.front().notes.push_back(
        fmt::format("{}: {} {} not used; test images are taken from {}", printable(folder), named,
                    others.size() == 1 ? "is" : "are", is_folder(given / "val") ? "val" : "test"));
  }
  for (const char* name : {"val", "test"}) {
    if (!is_folder(given / name)) continue;
    trees.push_back(list_tree(given / name, name, &trees.front().index->classes));
    if (std::string_view(name) == "val" && is_folder(given / "test")) {
      trees.front().notes.push_back(
          fmt::format("{}: has val and test; val is used for testing", printable(folder)));
    }
    break;
  }
  return trees;
}

}  // namespace dp
