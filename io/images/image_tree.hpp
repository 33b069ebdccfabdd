// Trees of image files with a folder for each class, as torchvision's ImageFolder reads them:
//
//     DIR/train/cat/1.jpg  DIR/train/dog/a.png ...     DIR/val/cat/7.jpg ...
//     DIR/cat/1.jpg ...                                  one tree, to be divided
//
// The folders of the first level are the classes, in the order of their names' bytes. Images may
// lie deeper. A file is an image if its name has a suffix that torchvision accepts, in upper or
// lower case (.jpg, .jpeg, .png, .bmp, .gif, .webp, .tif, .tiff, .ppm, .pgm). Other files are
// skipped and counted.
//
// Unlike torchvision, this also skips and counts files and folders that are hidden (their names
// begin with a dot) or made by a system (__MACOSX, Thumbs.db, @eaDir, ...), because they are
// neither classes nor images of the user. Links are followed; a link that leads back to a folder
// above it is skipped and reported.
//
// Every class must have a training image; it may have no test images.
//
// Folders with other parts are refused, for example "train" with "valid" but without "val" and
// "test", or "val" without "train". If these folders were accepted, test images would be used for
// training, or a share of "train" would be used for testing although there are test images.
#pragma once

#include <string>
#include <vector>

#include "io/images/image_index.hpp"

namespace dp {

// The files below a folder.
class FolderFiles final : public EncodedImages {
 public:
  explicit FolderFiles(std::string root) : root_(std::move(root)) {}

  void read(const ImageIndex& index, const IndexedImage& image,
            std::vector<std::uint8_t>& bytes) const override;
  [[nodiscard]] std::string name_of(const ImageIndex& index,
                                    const IndexedImage& image) const override;
  // Stores size and header in `image`. `bytes` is scratch memory.
  void read_header(const ImageIndex& index, IndexedImage& image,
                   std::vector<std::uint8_t>& bytes) const;

 private:
  std::string root_;
};

// Whether a folder, or "train" in it, has an image in a subfolder. Links to folders count as
// subfolders. Stops at the first image, or after a million entries without one.
[[nodiscard]] bool is_image_folder(const std::string& folder);

// Lists the parts of a folder: "train" with "val" or "test" ("val" if both exist), or "train"
// alone. A folder without "train" is a single part without a name. The headers are not read yet.
// Both parts have the classes of "train". Throws SettingError(data).
[[nodiscard]] std::vector<ImageTree> list_image_folder(const std::string& folder);

}  // namespace dp
