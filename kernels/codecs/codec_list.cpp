// The list of codecs: one row each. Adding a codec ends here.
#include <array>

#include "kernels/base/error.hpp"
#include "kernels/codecs/codec.hpp"
#include "kernels/codecs/cpu_driver.hpp"
#include "kernels/codecs/fp16.hpp"
#include "kernels/codecs/linear.hpp"
#include "kernels/codecs/none.hpp"

namespace dp {
namespace {

struct Row {
  CodecInfo info;
  std::unique_ptr<Codec> (*make)(const CodecSpec&);
};

template <class Format>
std::unique_ptr<Codec> make(const CodecSpec& spec) {
  return std::make_unique<CpuCodec<Format>>(spec);
}

constexpr CodecInfo linear(std::string_view name, std::string_view help, double bits) {
  return {.name = name,
          .help = help,
          .is_biased = true,
          .can_feedback = true,
          .default_feedback = true,
          .default_block = 2048,
          .bits_per_value = bits};
}

constexpr std::array kRows{
    Row{{.name = "none", .help = "fp32 as it is"}, make<none::Format>},
    Row{{.name = "fp16",
         .help = "half precision, clamped to 65504",
         .is_biased = true,
         .can_feedback = true,
         .default_feedback = true,
         .bits_per_value = 16},
        make<fp16::Format>},
    Row{linear("q16", "16-bit linear bins, one scale per block", 16), make<linear::Format<16>>},
    Row{linear("q8", "8-bit linear bins, one scale per block", 8), make<linear::Format<8>>},
    Row{linear("q4", "4-bit linear bins, one scale per block", 4), make<linear::Format<4>>},
};

constexpr auto kInfos = [] {
  std::array<CodecInfo, kRows.size()> infos;
  for (std::size_t i = 0; i < kRows.size(); ++i) infos[i] = kRows[i].info;
  return infos;
}();

}  // namespace

std::span<const CodecInfo> codec_list() { return kInfos; }

std::unique_ptr<Codec> make_codec(const CodecSpec& spec) {
  for (const Row& row : kRows) {
    if (row.info.name == spec.name) return row.make(spec);
  }
  throw_error(ErrorKind::internal, "no codec is called {}", spec.name);
}

std::unique_ptr<Codec> make_codec(const CodecSpec& spec, Device& device) {
  return device.kind() == DeviceKind::cpu ? make_codec(spec) : nullptr;
}

bool has_codec(const CodecSpec&, DeviceKind kind) { return kind == DeviceKind::cpu; }

}  // namespace dp
