#include "io/images/image_survey.hpp"

#include <fmt/ranges.h>

#include <algorithm>

#include "io/files/text_table.hpp"

namespace dp {

void ImageSurvey::add(const ImageIndex& index, const std::vector<std::uint32_t>& images) {
  for (const std::uint32_t member : images) {
    const IndexedImage& image = index.images[member];
    const ImageHeader& h = image.header;
    least_width = std::min(least_width, h.width);
    least_height = std::min(least_height, h.height);
    most_width = std::max(most_width, h.width);
    most_height = std::max(most_height, h.height);
    grey += h.kinds.is_grey ? 1 : 0;
    cmyk += h.kinds.is_cmyk ? 1 : 0;
    deep += h.kinds.has_16_bits ? 1 : 0;
    palette += h.kinds.has_palette ? 1 : 0;
    alpha += h.kinds.has_alpha ? 1 : 0;
    animated += h.kinds.is_animated ? 1 : 0;
    const std::string_view name = index.name_of(image);
    const char last = name.back();  // of .png, but also of .jpg and .jpeg
    const bool looks_like_png = name.size() > 4 && (name[name.size() - 3] | 32) == 'p' &&
                                (name[name.size() - 2] | 32) == 'n' && (last | 32) == 'g';
    misnamed += looks_like_png == (h.format == ImageFormat::png) ? 0 : 1;
  }
}

std::string ImageSurvey::sizes() const {
  if (has_one_size()) return fmt::format("all are {}x{}", most_width, most_height);
  const auto range = [](std::uint32_t least, std::uint32_t most) {
    return least == most ? fmt::format("{}", most) : fmt::format("{} to {}", least, most);
  };
  return fmt::format("{} pixels wide and {} high", range(least_width, most_width),
                     range(least_height, most_height));
}

std::string ImageSurvey::kinds() const {
  std::vector<std::string> parts;
  const auto add_kind = [&](std::size_t count, const char* what) {
    if (count > 0)
      parts.push_back(fmt::format("{} {}", format_count(static_cast<std::int64_t>(count)), what));
  };
  add_kind(grey, "grey");
  add_kind(cmyk, "CMYK");
  add_kind(deep, "of 16 bits");
  add_kind(palette, "with a palette");
  add_kind(alpha, "with an alpha channel (ignored)");
  add_kind(animated, "animated (the first picture is used)");
  add_kind(misnamed, "with the suffix of another format");
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace dp
