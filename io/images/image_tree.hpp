// Trees of image files with a folder for each class, as torchvision's ImageFolder reads them:
//
//     DIR/train/cat/1.jpg  DIR/train/dog/a.png ...     DIR/val/cat/7.jpg ...
//     DIR/cat/1.jpg ...                                  one tree, to be divided
//
// The folders of the first level are the classes, in the order of their names' bytes. Images may
// lie deeper. A file is an image if its name ends as those that torchvision accepts (.jpg, .jpeg,
// .png, .bmp, .gif, .webp, .tif, .tiff, .ppm, .pgm, in any case); others are left out and counted.
// So are, unlike in torchvision, files and folders that are hidden (their names begin with a dot)
// or made by a system (__MACOSX, Thumbs.db, @eaDir, ...): they are no classes and no images of the
// user's. Links are followed; one that leads back to a folder above it is left out and named.
//
// Every class of the training images has one; a class may have no test images.
//
// A folder of parts that is not of this form (valid beside train, or val without train) is refused,
// because all of it would be trained on, or a part of train would be the test.
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
  // Enters size and header. `bytes` is memory to work in.
  void read_header(const ImageIndex& index, IndexedImage& image,
                   std::vector<std::uint8_t>& bytes) const;

 private:
  std::string root_;
};

// Whether a folder has images in folders of classes, or in links to such. Ends at the first image,
// or after a million entries without one.
[[nodiscard]] bool is_image_folder(const std::string& folder);

// The parts of a folder: train, and val or test (val, where it has both); or train alone; or one
// part without a name, the folder itself. Their headers are not read yet. Both parts have the
// classes of train. Throws SettingError(data).
[[nodiscard]] std::vector<ImageTree> list_image_folder(const std::string& folder);

}  // namespace dp
