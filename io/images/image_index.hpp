// The list of a tree's images, and access to their bytes in a tree of files or a pack
// (image_pack.hpp). Only the list is kept in memory. An image with a name of 25 characters takes
// about 90 bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/images/encoded_image.hpp"

namespace dp {

struct IndexedImage {
  std::uint64_t name = 0;      // its offset in ImageIndex::names
  std::uint64_t place = 0;     // in a pack: the offset of its first byte in the file
  std::uint64_t checksum = 0;  // in a pack: XXH3 of its bytes
  std::uint32_t folder = 0;    // in ImageIndex::folders
  std::int32_t label = 0;
  std::uint32_t bytes = 0;  // of the file
  ImageHeader header = {};

  friend bool operator==(const IndexedImage& a, const IndexedImage& b) {
    return a.name == b.name && a.folder == b.folder && a.label == b.label && a.bytes == b.bytes &&
           a.header.width == b.header.width && a.header.height == b.header.height;
  }
};

// Images are in the order of torchvision's ImageFolder: by class, by folder, by name, each compared
// byte by byte. Images of one class are therefore neighbours, and labels never decrease.
struct ImageIndex {
  std::vector<std::string> classes;
  std::vector<std::string> folders;  // "cat" or "cat/2019": relative to the tree
  std::string names;                 // each ends with a zero byte
  std::vector<IndexedImage> images;

  [[nodiscard]] std::string_view name_of(const IndexedImage& image) const {
    return names.c_str() + image.name;
  }
  // "cat/2019/a.jpg"
  [[nodiscard]] std::string path_of(const IndexedImage& image) const {
    return folders[image.folder] + "/" + std::string(name_of(image));
  }
};

// Reads the encoded bytes of an index's images. Any number of threads may read at once.
class EncodedImages {
 public:
  virtual ~EncodedImages() = default;
  // Assigns the whole file to `bytes`. Throws Error(data) if the file cannot be read, and BadImage
  // if the file differs from what the index says.
  virtual void read(const ImageIndex& index, const IndexedImage& image,
                    std::vector<std::uint8_t>& bytes) const = 0;
  // XXH3 of the whole file. Throws as read() does.
  [[nodiscard]] virtual std::uint64_t checksum(const ImageIndex& index,
                                               const IndexedImage& image) const;
  // For messages: "DIR/train/cat/1.jpg".
  [[nodiscard]] virtual std::string name_of(const ImageIndex& index,
                                            const IndexedImage& image) const = 0;
};

// A part of a data set with its images, such as the folder train/.
struct ImageTree {
  std::string name;  // "train", "val", "test", or "" for a tree that is not divided
  std::shared_ptr<ImageIndex> index;
  std::shared_ptr<const EncodedImages> files;
  bool has_headers = false;             // whether the index already has the headers
  std::vector<std::string> notes = {};  // a sentence each about what was skipped
};

// The result of scan_headers(): which images have a good header, and what is wrong with the others.
struct HeaderScan {
  std::vector<std::uint32_t> good;
  std::vector<std::string> bad;  // "DIR/train/cat/1.jpg: is empty"
};

// Reads the headers of these images with `threads` threads and stores them in the index. Headers
// that the index already has are not read again. The result does not depend on the number of
// threads. Throws Error(data) if a file cannot be read.
[[nodiscard]] HeaderScan scan_headers(ImageTree& tree, const std::vector<std::uint32_t>& images,
                                      std::size_t threads);

// A text on one line for messages: control characters and bytes that are not UTF-8 become \xNN.
[[nodiscard]] std::string printable(std::string_view text);

}  // namespace dp
