#include "io/images/image_names.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "io/images/image_index.hpp"

namespace dp {

char in_lower_case(char letter) {
  return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
}

std::string in_lower_case(std::string_view name) {
  std::string text(name);
  for (char& letter : text) letter = in_lower_case(letter);
  return text;
}

bool has_image_suffix(std::string_view name) {
  static constexpr std::array<std::string_view, 10> kSuffixes = {
      ".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"};
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return false;
  const std::string suffix = in_lower_case(name.substr(dot));
  return std::find(kSuffixes.begin(), kSuffixes.end(), suffix) != kSuffixes.end();
}

bool is_of_system(std::string_view name) {
  constexpr std::array<std::string_view, 26> kNames = {
      // macOS
      "__macosx", "icon\r", "network trash folder", "temporary items", "thevolumesettingsfolder",
      // Windows
      "$recycle.bin", "recycler", "recycled", "thumbs.db", "ehthumbs.db", "desktop.ini",
      "albumartsmall.jpg", "system volume information", "found.000",
      // NAS
      "@eadir", "#recycle", "@recycle", "#snapshot", "~snapshot", "@recently-snapshot", "@tmp",
      "@__thumb",
      // Linux and programs
      "lost+found", "thumbnails", "thumbs", "__pycache__"};
  constexpr std::array<std::string_view, 4> kBeginnings = {".", "~$", "synophoto_thumb_",
                                                           "albumart_{"};
  const std::string lower = in_lower_case(name);
  return std::ranges::find(kNames, lower) != kNames.end() ||
         std::ranges::any_of(kBeginnings, [&](auto begin) { return lower.starts_with(begin); });
}

std::string LeftOut::text(std::string_view reason) const {
  std::vector<std::string> parts;
  const auto count = [&](std::size_t number, const char* one, const char* many) {
    if (number > 0) parts.push_back(fmt::format("{} {}", number, number == 1 ? one : many));
  };
  count(files_, "file", "files");
  count(folders_, "folder", "folders");
  if (parts.empty()) return "";
  const std::size_t all = files_ + folders_;
  return fmt::format("{} {} skipped: {} ({}{})", fmt::join(parts, " and "),
                     all == 1 ? "was" : "were", reason, fmt::join(examples_, ", "),
                     all > examples_.size() ? ", ..." : "");
}

void LeftOut::add(const std::string& name, std::size_t& count) {
  constexpr std::size_t kMostExamples = 3;
  ++count;
  if (examples_.size() < kMostExamples) examples_.push_back(printable(name));
}

}  // namespace dp
