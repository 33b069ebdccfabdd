// A height and a width, for kernels and for padding. A single number sets both.
#pragma once

#include <cstddef>

namespace dp {

struct Extent {
  std::size_t h, w;

  constexpr Extent(std::size_t both) : h(both), w(both) {}
  constexpr Extent(std::size_t height, std::size_t width) : h(height), w(width) {}

  [[nodiscard]] constexpr std::size_t area() const { return h * w; }
  friend constexpr bool operator==(const Extent&, const Extent&) = default;
};

}  // namespace dp
