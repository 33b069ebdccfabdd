#include "kernels/codecs/cpu_driver.hpp"

namespace dp {

const float kZeroBlock[kMaxBlock] = {};

std::uint32_t largest_magnitude_bits(const float* partial, const float* residual, std::size_t n) {
  // Without the sign bit, the bit patterns of floats are ordered like the magnitudes. The patterns
  // are compared as signed integers, because every vector unit has a max instruction for signed
  // integers.
  std::int32_t largest = 0;
  const auto magnitude = [](float v) { return std::bit_cast<std::int32_t>(v) & 0x7FFFFFFF; };
  if (residual == nullptr) {
#pragma omp simd reduction(max : largest)
    for (std::size_t i = 0; i < n; ++i) largest = std::max(largest, magnitude(partial[i]));
  } else {
#pragma omp simd reduction(max : largest)
    for (std::size_t i = 0; i < n; ++i) {
      largest = std::max(largest, magnitude(partial[i] + residual[i]));
    }
  }
  return static_cast<std::uint32_t>(largest);
}

void count_clamped(std::span<const float> partial, const float* residual, float largest,
                   EncodeResult& result) {
  for (std::size_t i = 0; i < partial.size(); ++i) {
    const float v = residual == nullptr ? partial[i] : partial[i] + residual[i];
    if (v >= -largest && v <= largest) continue;
    if (result.clamped++ == 0) result.first_clamped = i;
  }
}

void throw_payload_length(const CodecSpec& spec, std::size_t got, std::size_t want,
                          std::size_t floats) {
  throw_error(ErrorKind::communication,
              "a {} payload of {} bytes arrived for {} values; it must have {} bytes", spec.text(),
              got, floats, want);
}

void throw_payload_content(const CodecSpec& spec) {
  throw_error(ErrorKind::communication,
              "a {} payload contains a value that no encoder writes: it was damaged in transit",
              spec.text());
}

}  // namespace dp
