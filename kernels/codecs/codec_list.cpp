// The list of codecs, on the CPU and for all devices.
#include <array>
#include <type_traits>

#include "kernels/base/error.hpp"
#include "kernels/codecs/codec_rows.hpp"
#include "kernels/codecs/cpu_driver.hpp"

#ifdef DP_HAVE_CUDA
#include "kernels/codecs/cuda_codecs.hpp"
#endif

namespace dp {
namespace {

constexpr auto kInfos = std::apply(
    [](const auto&... row) { return std::array<CodecInfo, sizeof...(row)>{row.info...}; },
    kCodecRows);

[[noreturn]] void throw_unknown(const CodecSpec& spec) {
  throw_error(ErrorKind::internal, "no codec is called {}", spec.name);
}

}  // namespace

std::span<const CodecInfo> codec_list() { return kInfos; }

std::unique_ptr<Codec> make_codec(const CodecSpec& spec) {
  std::unique_ptr<Codec> made;
  const bool is_known = with_codec_row(spec.name, [&]<class Row>(const Row&) {
    if constexpr (!std::is_void_v<typename Row::HostCodec>) {
      made = std::make_unique<typename Row::HostCodec>(spec);
    }
  });
  if (!is_known) throw_unknown(spec);
  return made;
}

std::unique_ptr<Codec> make_codec(const CodecSpec& spec, Device& device) {
  if (device.kind() == DeviceKind::cpu) return make_codec(spec);
#ifdef DP_HAVE_CUDA
  return cuda::make_codec(spec, cuda::as_cuda(device));
#else
  return nullptr;
#endif
}

bool has_codec(const CodecSpec& spec, DeviceKind kind) {
  bool has = false;
  const bool is_known = with_codec_row(spec.name, [&]<class Row>(const Row&) {
    has = kind == DeviceKind::cpu ? !std::is_void_v<typename Row::HostCodec> : Row::kOnGpu;
  });
  if (!is_known) throw_unknown(spec);
  return has;
}

}  // namespace dp
