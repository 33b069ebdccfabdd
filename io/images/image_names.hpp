// Decides by name which files and folders in a tree of images are used; the others are skipped and
// counted.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace dp {

// Whether the name has a suffix that torchvision's ImageFolder accepts, in upper or lower case.
[[nodiscard]] bool has_image_suffix(std::string_view name);

// Whether a file or folder is hidden, or was put beside the user's files by a system or a program.
// Examples: ._1.jpg and __MACOSX come with archives from a Mac, @eaDir holds the thumbnails of a
// NAS, and ~$1.jpg is the lock of an open document.
[[nodiscard]] bool is_of_system(std::string_view name);

// Converts ASCII letters to lower case and leaves all other bytes as they are.
[[nodiscard]] char in_lower_case(char letter);
[[nodiscard]] std::string in_lower_case(std::string_view name);

// Counts files and folders that are skipped, and keeps the first names as examples.
class LeftOut {
 public:
  void add_file(const std::string& name) { add(name, files_); }
  void add_folder(const std::string& name) { add(name, folders_); }

  // "3 files and 1 folder were skipped: not an image by its suffix (a.txt, b.txt, ...)" for the
  // reason "not an image by its suffix"; empty if nothing was skipped.
  [[nodiscard]] std::string text(std::string_view reason) const;

 private:
  void add(const std::string& name, std::size_t& count);

  std::size_t files_ = 0, folders_ = 0;
  std::vector<std::string> examples_;
};

}  // namespace dp
