// Which names in a tree of images are those of images, and which are left out and counted.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace dp {

// The suffixes that torchvision's ImageFolder takes, in any case.
[[nodiscard]] bool has_image_suffix(std::string_view name);

// Whether a name is that of a hidden file or folder, or of one that a system or program keeps
// beside the user's: ._1.jpg and __MACOSX come with archives from a Mac, @eaDir holds the
// thumbnails of a NAS, ~$1.jpg is a lock of an open document.
[[nodiscard]] bool is_of_system(std::string_view name);

// ASCII letters alone.
[[nodiscard]] char in_lower_case(char letter);
[[nodiscard]] std::string in_lower_case(std::string_view name);

// Counts what is left out because of its name, and keeps the first names as examples.
class LeftOut {
 public:
  void add_file(const std::string& name) { add(name, files_); }
  void add_folder(const std::string& name) { add(name, folders_); }

  // "3 files and 1 folder were skipped: not an image by its suffix (a.txt, b.txt, ...)" with that
  // reason; empty if nothing was left out.
  [[nodiscard]] std::string text(std::string_view reason) const;

 private:
  void add(const std::string& name, std::size_t& count);

  std::size_t files_ = 0, folders_ = 0;
  std::vector<std::string> examples_;
};

}  // namespace dp
