// The rows of the list of codecs: one for each. Adding a codec ends here.
//
// codec_list.cpp makes the CPU's codecs of them, cuda_codecs.cu a GPU's. A format without the
// pieces that the GPU's driver needs (linear.hpp lists them) says kOnGpu = false; such a codec can
// still be used with a GPU, on gradients in host memory. Only for those two files.
#pragma once

#include <tuple>

#include "kernels/codecs/codec.hpp"
#include "kernels/codecs/fp16.hpp"
#include "kernels/codecs/linear.hpp"
#include "kernels/codecs/none.hpp"

namespace dp {

template <class F, bool kHasGpuForm = true>
struct CodecRow {
  using Format = F;
  static constexpr bool kOnGpu = kHasGpuForm;
  CodecInfo info;
};

constexpr CodecInfo linear_info(std::string_view name, std::string_view help, double bits) {
  return {.name = name,
          .help = help,
          .is_biased = true,
          .can_feedback = true,
          .default_feedback = true,
          .default_block = 2048,
          .bits_per_value = bits};
}

inline constexpr std::tuple kCodecRows{
    CodecRow<none::Format>{{.name = "none", .help = "fp32 as it is"}},
    CodecRow<fp16::Format>{{.name = "fp16",
                            .help = "half precision, clamped to 65504",
                            .is_biased = true,
                            .can_feedback = true,
                            .default_feedback = true,
                            .bits_per_value = 16}},
    CodecRow<linear::Format<16>>{linear_info("q16", "16-bit linear bins, one scale per block", 16)},
    CodecRow<linear::Format<8>>{linear_info("q8", "8-bit linear bins, one scale per block", 8)},
    CodecRow<linear::Format<4>>{linear_info("q4", "4-bit linear bins, one scale per block", 4)},
};

// Calls use(row) for the row of that name; false where there is none.
template <class Use>
bool with_codec_row(std::string_view name, Use use) {
  return std::apply(
      [&](const auto&... row) { return ((row.info.name == name && (use(row), true)) || ...); },
      kCodecRows);
}

}  // namespace dp
