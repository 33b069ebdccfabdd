#include <fmt/ranges.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <span>

#include "io/files/hdf5.hpp"
#include "io/files/new_file.hpp"
#include "io/files/text_table.hpp"
#include "io/images/image_pack.hpp"
#include "io/images/image_pack_columns.hpp"
#include "io/images/image_tree.hpp"
#include "io/images/run_in_parts.hpp"
#include "kernels/base/setting_error.hpp"

namespace dp {
namespace {

// A temporary file, removed by the destructor unless keep_as() renames it.
class PartFile {
 public:
  explicit PartFile(const std::string& path)
      : path_(create_fresh_file(Setting{"pack"}, path, "part")) {}
  ~PartFile() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }
  void keep_as(const std::string& path) {
    rename_to_new_file(Setting{"pack"}, path_, path);
    path_.clear();
  }

 private:
  std::string path_;
};

template <class T>
void write_column(hid_t group, const char* name, const std::vector<T>& values,
                  hsize_t columns = 1) {
  const hsize_t extent[2] = {values.size() / columns, columns};
  const H5Handle space(DP_CHECK_HDF5(H5Screate_simple(columns == 1 ? 1 : 2, extent, nullptr)),
                       H5Sclose);
  H5Handle data(DP_CHECK_HDF5(H5Dcreate2(group, name, pack_type<T>(), space.get(), H5P_DEFAULT,
                                         H5P_DEFAULT, H5P_DEFAULT)),
                H5Dclose);
  if (!values.empty()) {
    DP_CHECK_HDF5(
        H5Dwrite(data.get(), pack_type<T>(), H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()));
  }
  data.close();
}

std::vector<std::uint8_t> join_texts(const std::vector<std::string>& texts) {
  std::vector<std::uint8_t> bytes;
  for (const std::string& text : texts) {
    bytes.insert(bytes.end(), text.begin(), text.end());
    bytes.push_back(0);
  }
  return bytes;
}

// The columns of one group of a pack (such as /train), filled image by image.
struct Columns {
  std::vector<std::uint8_t> names;
  std::vector<std::uint32_t> folder, size, header;
  std::vector<std::int32_t> label;
  std::vector<std::uint64_t> place, checksum;

  void add(const ImageIndex& index, const IndexedImage& image, std::uint64_t at,
           std::uint64_t sum) {
    const std::string_view name = index.name_of(image);
    names.insert(names.end(), name.begin(), name.end());
    names.push_back(0);
    folder.push_back(image.folder);
    size.push_back(image.bytes);
    const ImageHeader& h = image.header;
    header.insert(header.end(),
                  {h.width, h.height, static_cast<std::uint32_t>(h.format), bits_of(h.kinds)});
    label.push_back(image.label);
    place.push_back(at);
    checksum.push_back(sum);
  }
  void write(hid_t group) const {
    write_column(group, "names", names);
    write_column(group, "folder", folder);
    write_column(group, "label", label);
    write_column(group, "size", size);
    write_column(group, "place", place);
    write_column(group, "checksum", checksum);
    write_column(group, "header", header, kHeaderColumns);
  }
};

// Writes the data set `bytes` of a group from front to back.
class Bytes {
 public:
  Bytes(hid_t group, std::uint64_t all) {
    const hsize_t extent = all;
    space_ = H5Handle(DP_CHECK_HDF5(H5Screate_simple(1, &extent, nullptr)), H5Sclose);
    const H5Handle how(DP_CHECK_HDF5(H5Pcreate(H5P_DATASET_CREATE)), H5Pclose);
    DP_CHECK_HDF5(H5Pset_layout(how.get(), H5D_CONTIGUOUS));
    DP_CHECK_HDF5(H5Pset_alloc_time(how.get(), H5D_ALLOC_TIME_EARLY));
    DP_CHECK_HDF5(H5Pset_fill_time(how.get(), H5D_FILL_TIME_NEVER));
    data_ = H5Handle(DP_CHECK_HDF5(H5Dcreate2(group, "bytes", H5T_NATIVE_UINT8, space_.get(),
                                              H5P_DEFAULT, how.get(), H5P_DEFAULT)),
                     H5Dclose);
  }
  void write(std::uint64_t at, const std::vector<std::uint8_t>& bytes) {
    const hsize_t start = at, count = bytes.size();
    if (count == 0) return;
    DP_CHECK_HDF5(
        H5Sselect_hyperslab(space_.get(), H5S_SELECT_SET, &start, nullptr, &count, nullptr));
    const H5Handle memory(DP_CHECK_HDF5(H5Screate_simple(1, &count, nullptr)), H5Sclose);
    DP_CHECK_HDF5(H5Dwrite(data_.get(), H5T_NATIVE_UINT8, memory.get(), space_.get(), H5P_DEFAULT,
                           bytes.data()));
  }
  void close() { data_.close(); }

 private:
  H5Handle space_, data_;
};

class Packer {
 public:
  explicit Packer(const PackRequest& request) : request_(request) {}

  PackReport run() {
    check_new_file(Setting{"pack"}, request_.path);
    std::vector<ImageTree> trees = list_image_folder(request_.folder);
    std::vector<std::vector<std::uint32_t>> good;
    for (ImageTree& tree : trees) {
      std::vector<std::uint32_t> all(tree.index->images.size());
      std::iota(all.begin(), all.end(), 0u);
      HeaderScan scan = scan_headers(tree, all, request_.threads);
      for (std::string& text : scan.bad) bad_.push_back(std::move(text));
      all_ += scan.good.size();
      good.push_back(std::move(scan.good));
      for (const std::string& note : tree.notes) report_.warnings.push_back(note);
    }
    check_bad();

    prepare_hdf5();
    PartFile part(request_.path);
    H5Handle file;
    writing([&] {
      file = create_hdf5(part.path());
      write_attribute(file.get(), "format", std::string(kPackFormat));
      write_attribute(file.get(), "format_version", std::int64_t{kPackVersion});
      write_column(file.get(), "classes", join_texts(trees.front().index->classes));
    });
    for (std::size_t i = 0; i < trees.size(); ++i) write_tree(file.get(), trees[i], good[i]);
    writing([&] {
      DP_CHECK_HDF5(H5Fflush(file.get(), H5F_SCOPE_GLOBAL));
      file.close();
    });
    part.keep_as(request_.path);
    for (const std::string& text : bad_) report_.warnings.push_back(text + "; left out");
    return report_;
  }

 private:
  // Calls work(). If work() throws, puts the pack's name in front of the message.
  template <class Work>
  void writing(Work work) const {
    try {
      work();
    } catch (const Error& error) {
      throw SettingError(Setting{"pack"}, printable(request_.path),
                         fmt::format("cannot be written: {}", error.what()), ErrorKind::data);
    }
  }

  void check_bad() const {
    if (bad_.empty() || request_.bad_images == BadImages::skip) return;
    constexpr std::size_t kMostNamed = 5;
    const std::span<const std::string> named(bad_.data(), std::min(bad_.size(), kMostNamed));
    throw SettingError(ErrorKind::data,
                       fmt::format("{} image{} cannot be read: {}{}; bad images can be left out",
                                   bad_.size(), bad_.size() == 1 ? "" : "s", fmt::join(named, "; "),
                                   bad_.size() > kMostNamed ? "; ..." : ""),
                       Setting{"bad images"});
  }

  void write_tree(hid_t file, const ImageTree& tree, const std::vector<std::uint32_t>& images) {
    const auto* part = std::find_if(std::begin(kPackParts), std::end(kPackParts),
                                    [&](const PackPart& p) { return p.name == tree.name; });
    std::uint64_t all_bytes = 0;
    for (const std::uint32_t i : images) all_bytes += tree.index->images[i].bytes;
    H5Handle group;
    std::optional<Bytes> bytes;
    writing([&] {
      group = H5Handle(
          DP_CHECK_HDF5(H5Gcreate2(file, part->group, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT)),
          H5Gclose);
      bytes.emplace(group.get(), all_bytes);
    });
    Columns columns;
    std::uint64_t at = 0;
    // All threads read and decode a group of images; then this thread writes the group in order.
    struct Item {
      std::vector<std::uint8_t> bytes;
      std::string bad;
    };
    const std::size_t at_once = 32 * request_.threads;
    std::vector<Item> items(at_once);
    for (std::size_t begin = 0; begin < images.size(); begin += at_once) {
      const std::size_t count = std::min(at_once, images.size() - begin);
      run_in_parts(count, request_.threads, 4, [&](std::size_t first, std::size_t last) {
        DecodedImage decoded;
        for (std::size_t k = first; k < last; ++k) {
          const IndexedImage& image = tree.index->images[images[begin + k]];
          items[k].bad.clear();
          try {
            tree.files->read(*tree.index, image, items[k].bytes);
            decode_image(items[k].bytes, image.header, 1, {.width = 1, .height = 1}, decoded);
          } catch (const BadImage& error) {
            items[k].bad = error.what();
          }
        }
      });
      for (std::size_t k = 0; k < count; ++k) {
        const IndexedImage& image = tree.index->images[images[begin + k]];
        if (!items[k].bad.empty()) {
          bad_.push_back(fmt::format("{}: {}", printable(tree.files->name_of(*tree.index, image)),
                                     items[k].bad));
          continue;
        }
        writing([&] { bytes->write(at, items[k].bytes); });
        columns.add(*tree.index, image, at,
                    XXH3_64bits(items[k].bytes.data(), items[k].bytes.size()));
        at += image.bytes;
      }
      done_ += count;
      check_bad();
      if (request_.on_progress) request_.on_progress(done_, all_);
    }
    if (columns.label.empty()) {
      throw_error(ErrorKind::data, "{}: no image can be read", printable(request_.folder));
    }
    writing([&] {
      bytes->close();
      columns.write(group.get());
      write_column(group.get(), "folders", join_texts(tree.index->folders));
      group.close();
    });
    report_.images += columns.label.size();
    report_.bytes += at;
    report_.parts.push_back(
        fmt::format("{}: {} images", part->group,
                    format_count(static_cast<std::int64_t>(columns.label.size()))));
  }

  const PackRequest& request_;
  PackReport report_;
  std::vector<std::string> bad_;
  std::size_t done_ = 0, all_ = 0;
};

}  // namespace

PackReport write_image_pack(const PackRequest& request) { return Packer(request).run(); }

}  // namespace dp
