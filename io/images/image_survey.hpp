// Summarises images for the line at the start: their sizes and special properties.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "io/images/image_index.hpp"

namespace dp {

struct ImageSurvey {
  std::uint32_t least_width = ~0u, least_height = ~0u, most_width = 0, most_height = 0;
  std::size_t grey = 0, cmyk = 0, deep = 0, palette = 0, alpha = 0, animated = 0, misnamed = 0;

  void add(const ImageIndex& index, const std::vector<std::uint32_t>& images);

  [[nodiscard]] bool has_one_size() const {
    return least_width == most_width && least_height == most_height;
  }
  // "all are 32x32", or "20 to 500 pixels wide and 32 to 400 high". The widest image need not be
  // the highest one.
  [[nodiscard]] std::string sizes() const;
  // "12 grey, 3 CMYK"; empty if no image is special.
  [[nodiscard]] std::string kinds() const;
};

}  // namespace dp
