// A pack: a folder of images as one HDF5 file, made by dptrain-pack. It holds the images' files
// byte by byte, so that training sees the same bits as from the folder.
//
//     /                attributes: format ("dptrain image pack"), format_version (1), program
//     /classes         uint8: the classes' names in order, each ended by a zero byte
//     /train, /val, /test, or /all (a folder that is not divided): groups with
//       folders        uint8: "cat", "cat/2019", ...; relative paths, each ended by a zero byte
//       names          uint8: the files' names in order, each ended by a zero byte
//       folder         uint32 per image: the index of its folder
//       label          int32 per image: the index of its class
//       size           uint32 per image: the number of its bytes
//       place          uint64 per image: the offset of its first byte in `bytes`
//       checksum       uint64 per image: XXH3 of its bytes
//       header         four uint32 per image: width, height, format, kinds. Formats: 0 JPEG, 1 PNG.
//                      Kinds are added up: 1 grey, 2 CMYK, 4 16 bits, 8 palette, 16 alpha, 32
//                      animated
//       bytes          uint8, contiguous: the files, one behind the other
//
// Since `bytes` is contiguous, readers take the bytes directly from the file, without HDF5, so any
// number of threads may read. Every read is checked against the checksum.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "io/images/dataset.hpp"
#include "io/images/image_index.hpp"

namespace dp {

// Whether `path` is an HDF5 file.
[[nodiscard]] bool is_image_pack(const std::string& path);

// Returns the parts (train, val, ...) like list_image_folder(), but with the images' headers.
// Throws SettingError(data).
[[nodiscard]] std::vector<ImageTree> open_image_pack(const std::string& path);

struct PackRequest {
  std::string folder, path;
  BadImages bad_images = BadImages::fail;
  std::size_t threads = 1;
  // Called now and then with the number of finished images and the number of all images; may be
  // empty.
  std::function<void(std::size_t done, std::size_t all)> on_progress = nullptr;
};

struct PackReport {
  std::size_t images = 0;
  std::uint64_t bytes = 0;            // of the images
  std::vector<std::string> parts;     // "train: 50,000 images"
  std::vector<std::string> warnings;  // what was left out
};

// Makes a pack; the file must not exist yet. Decodes every image once. An image that cannot be
// decoded is left out or, with BadImages::fail, ends the call without a file. Throws Error(data).
PackReport write_image_pack(const PackRequest& request);

}  // namespace dp
