// The readable twin of kernels/channel_bias.hpp: rows of C channels.
#pragma once

#include <cstddef>

namespace dp::reference {

template <class T>
void add_channel_bias(std::size_t rows, std::size_t channels, const T* bias, T* y) {
  for (std::size_t m = 0; m < rows; ++m)
    for (std::size_t c = 0; c < channels; ++c) y[m * channels + c] += bias[c];
}

template <class T>
void channel_bias_backward(std::size_t rows, std::size_t channels, const T* dy, T* gradient) {
  for (std::size_t c = 0; c < channels; ++c) {
    gradient[c] = 0;
    for (std::size_t m = 0; m < rows; ++m) gradient[c] += dy[m * channels + c];
  }
}

}  // namespace dp::reference
