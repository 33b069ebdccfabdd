// The readable twin of kernels/concatenate.hpp. NHWC.
#pragma once

#include <cstddef>

namespace dp::reference {

// Calls body(index into the part, index into the whole): a part of `channels` channels, the first
// of which is number `first` of the whole's `all`.
template <class Body>
void for_each_in_part(std::size_t pixels, std::size_t channels, std::size_t first, std::size_t all,
                      const Body& body) {
  for (std::size_t p = 0; p < pixels; ++p)
    for (std::size_t c = 0; c < channels; ++c) body(p * channels + c, p * all + first + c);
}

}  // namespace dp::reference
