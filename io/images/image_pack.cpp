// Reads packs. write_image_pack() is in image_pack_write.cpp.
#include "io/images/image_pack.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "io/files/hdf5.hpp"
#include "io/files/trial.hpp"
#include "io/images/image_pack_columns.hpp"
#include "kernels/base/setting_error.hpp"

namespace dp {
namespace {

// The bytes of a pack, read without HDF5.
class PackFile final : public EncodedImages {
 public:
  PackFile(std::string path, std::string part)
      : path_(std::move(path)),
        part_(std::move(part)),
        fd_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_ < 0) {
      throw_error(ErrorKind::data, "{}: cannot be opened: {}", printable(path_),
                  std::strerror(errno));
    }
  }
  ~PackFile() override { ::close(fd_); }
  PackFile(const PackFile&) = delete;
  PackFile& operator=(const PackFile&) = delete;

  [[nodiscard]] std::uint64_t size() const {
    struct stat status = {};
    return ::fstat(fd_, &status) == 0 ? static_cast<std::uint64_t>(status.st_size) : 0;
  }

  void read(const ImageIndex& index, const IndexedImage& image,
            std::vector<std::uint8_t>& bytes) const override {
    bytes.resize(image.bytes);
    std::size_t at = 0;
    while (at < bytes.size()) {
      const ssize_t got =
          ::pread(fd_, bytes.data() + at, bytes.size() - at, static_cast<off_t>(image.place + at));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) {
        throw_error(ErrorKind::data, "{}: cannot be read: {}", name_of(index, image),
                    got == 0 ? "the file was shortened" : std::strerror(errno));
      }
      at += static_cast<std::size_t>(got);
    }
    if (XXH3_64bits(bytes.data(), bytes.size()) != image.checksum) {
      throw BadImage("is damaged: its checksum differs from the pack's");
    }
  }

  [[nodiscard]] std::uint64_t checksum(const ImageIndex&,
                                       const IndexedImage& image) const override {
    return image.checksum;
  }

  [[nodiscard]] std::string name_of(const ImageIndex& index,
                                    const IndexedImage& image) const override {
    return fmt::format("{}, {}/{}", path_, part_, index.path_of(image));
  }

 private:
  std::string path_, part_;
  int fd_;
};

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw SettingError(Setting{"data folder"}, printable(path), why, ErrorKind::data);
}

// The number of rows of a data set with `columns` columns (1: one-dimensional).
hsize_t count_rows(hid_t data, const char* name, hsize_t columns) {
  const H5Handle space(DP_CHECK_HDF5(H5Dget_space(data)), H5Sclose);
  std::array<hsize_t, 2> extent = {0, 1};
  const int wanted = columns == 1 ? 1 : 2;
  if (H5Sget_simple_extent_ndims(space.get()) != wanted) {
    throw_error(ErrorKind::data, "its table {} has the wrong shape", name);
  }
  DP_CHECK_HDF5(H5Sget_simple_extent_dims(space.get(), extent.data(), nullptr));
  if (extent[1] != columns) throw_error(ErrorKind::data, "its table {} has the wrong shape", name);
  return extent[0];
}

// Reads a column. Refuses more rows than the file can store, so that a damaged file cannot make the
// program allocate much memory.
template <class T>
std::vector<T> read_column(hid_t group, const char* name, std::uint64_t file_bytes,
                           hsize_t columns = 1) {
  const H5Handle data(DP_CHECK_HDF5(H5Dopen2(group, name, H5P_DEFAULT)), H5Dclose);
  const hsize_t rows = count_rows(data.get(), name, columns);
  const std::uint64_t stored = std::min<std::uint64_t>(H5Dget_storage_size(data.get()), file_bytes);
  if (rows > stored / (columns * sizeof(T))) {
    throw_error(ErrorKind::data, "its table {} has more rows than the file holds", name);
  }
  std::vector<T> values(rows * columns);
  if (rows > 0) {
    DP_CHECK_HDF5(
        H5Dread(data.get(), pack_type<T>(), H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()));
  }
  return values;
}

// Splits "a\0b\0" into "a" and "b".
std::vector<std::string> split_texts(const std::vector<std::uint8_t>& bytes) {
  std::vector<std::string> texts;
  for (auto begin = bytes.begin(); begin != bytes.end();) {
    const auto end = std::find(begin, bytes.end(), std::uint8_t{0});
    if (end == bytes.end()) throw Error(ErrorKind::data, "a list of names is cut off");
    texts.emplace_back(begin, end);
    begin = end + 1;
  }
  return texts;
}

ImageTree read_part(const std::string& path, hid_t file, const PackPart& part,
                    const std::vector<std::string>& classes) {
  const H5Handle group(DP_CHECK_HDF5(H5Gopen2(file, part.group, H5P_DEFAULT)), H5Gclose);
  auto files = std::make_shared<PackFile>(path, part.group);
  const std::uint64_t most = files->size();
  const auto folder = read_column<std::uint32_t>(group.get(), "folder", most);
  const auto label = read_column<std::int32_t>(group.get(), "label", most);
  const auto size = read_column<std::uint32_t>(group.get(), "size", most);
  const auto place = read_column<std::uint64_t>(group.get(), "place", most);
  const auto checksum = read_column<std::uint64_t>(group.get(), "checksum", most);
  const auto header = read_column<std::uint32_t>(group.get(), "header", most, kHeaderColumns);
  const auto names = read_column<std::uint8_t>(group.get(), "names", most);
  const H5Handle bytes(DP_CHECK_HDF5(H5Dopen2(group.get(), "bytes", H5P_DEFAULT)), H5Dclose);
  const hsize_t all_bytes = count_rows(bytes.get(), "bytes", 1);
  const haddr_t start = H5Dget_offset(bytes.get());

  const std::size_t count = label.size();
  if (folder.size() != count || size.size() != count || place.size() != count ||
      checksum.size() != count || header.size() != count * kHeaderColumns || count == 0) {
    throw Error(ErrorKind::data, "its tables have different lengths");
  }
  if (start == HADDR_UNDEF || start > most || all_bytes > most - start) {
    throw Error(ErrorKind::data, "it is cut off");
  }
  ImageTree tree = {.name = std::string(part.name),
                    .index = std::make_shared<ImageIndex>(),
                    .files = files,
                    .has_headers = true};
  ImageIndex& index = *tree.index;
  index.classes = classes;
  index.folders = split_texts(read_column<std::uint8_t>(group.get(), "folders", most));
  index.names.assign(names.begin(), names.end());
  index.images.reserve(count);
  std::size_t name = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t end = index.names.find('\0', name);
    const std::uint32_t* h = header.data() + i * kHeaderColumns;
    const bool is_right =
        end != std::string::npos && end > name && folder[i] < index.folders.size() &&
        label[i] >= 0 && std::cmp_less(label[i], classes.size()) &&
        (i == 0 || label[i] >= label[i - 1]) && place[i] <= all_bytes &&
        size[i] <= all_bytes - place[i] && h[0] > 0 && h[1] > 0 && h[0] <= kMostSide &&
        h[1] <= kMostSide && std::uint64_t{h[0]} * h[1] <= kMostPixels && h[2] <= 1;
    if (!is_right) throw_error(ErrorKind::data, "its entry for image {} is invalid", i);
    index.images.push_back({.name = name,
                            .place = start + place[i],
                            .checksum = checksum[i],
                            .folder = folder[i],
                            .label = label[i],
                            .bytes = size[i],
                            .header = {.format = static_cast<ImageFormat>(h[2]),
                                       .width = h[0],
                                       .height = h[1],
                                       .kinds = kinds_of(h[3])}});
    name = end + 1;
  }
  return tree;
}

std::vector<ImageTree> read_pack(const std::string& path) {
  const H5Handle file = open_hdf5(path);
  if (DP_CHECK_HDF5(H5Aexists(file.get(), "format")) <= 0 ||
      read_text_attribute(file.get(), "format") != kPackFormat) {
    throw Error(ErrorKind::data, "is an HDF5 file, but not a pack made by dptrain-pack");
  }
  const double version = read_number_attribute(file.get(), "format_version");
  if (version != kPackVersion) {
    throw_error(ErrorKind::data, "is a pack of version {}; this program reads version {}", version,
                kPackVersion);
  }
  const std::vector<std::string> classes = split_texts(
      read_column<std::uint8_t>(file.get(), "classes", std::filesystem::file_size(path)));
  std::vector<ImageTree> trees;
  for (const PackPart& part : kPackParts) {
    if (DP_CHECK_HDF5(H5Lexists(file.get(), part.group, H5P_DEFAULT)) > 0) {
      trees.push_back(read_part(path, file.get(), part, classes));
    }
  }
  const bool is_right = trees.size() == 1 ? trees[0].name.empty() || trees[0].name == "train"
                                          : trees.size() == 2 && trees[0].name == "train";
  if (!is_right)
    throw Error(ErrorKind::data,
                "must contain the parts of a pack: all, train alone, or train with val or test");
  return trees;
}

}  // namespace

bool is_image_pack(const std::string& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return false;
  prepare_hdf5();
  return H5Fis_hdf5(path.c_str()) > 0;
}

std::vector<ImageTree> open_image_pack(const std::string& path) {
  prepare_hdf5();
  try {
    // Reading twice costs little: most bytes of a large pack are images, and HDF5 does not read
    // them here.
    try_in_child(path, [&] { static_cast<void>(read_pack(path)); });
    return read_pack(path);
  } catch (const SettingError&) {
    throw;
  } catch (const Error& error) {
    // HDF5's own messages describe the inside of a file and would not help the user.
    if (std::string_view(error.what()).starts_with("HDF5: ")) {
      refuse(path, "is cut off or damaged; copy it again, or make it again with dptrain-pack");
    }
    refuse(path, error.what());
  }
}

}  // namespace dp
