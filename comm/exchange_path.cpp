// Chooses where a GPU's gradients are encoded: on the GPU or by the host's processor, whichever is
// faster.
#include <algorithm>
#include <chrono>

#include "comm/gradient_sync.hpp"
#include "kernels/base/setting_error.hpp"
#include "kernels/codecs/codec.hpp"

namespace dp {

void GradientSync::choose_path() {
  const auto has_device_form = [&] {
    return std::all_of(buckets_.begin(), buckets_.end(), [&](const Bucket& bucket) {
      return has_codec(parse_codec_spec(bucket.codec), device_->kind());
    });
  };
  switch (options_.path) {
    case ExchangePath::host:
      return;
    case ExchangePath::device:
      if (!has_device_form()) {
        throw SettingError(
            Setting::exchange_path, "device",
            fmt::format("codec {} has no form for GPUs; allowed: host, auto", options_.compress));
      }
      is_on_device_ = true;
      return;
    case ExchangePath::automatic:
      break;
  }
  if (!has_device_form()) return;
  const std::vector<std::string> paths = {"device", "host"};
  is_on_device_ = device_->tuning().choose("gradient exchange", paths, [&](std::size_t i) {
    return seconds_of_path(i == 0);
  }) == 0;
}

// Does what the reducer's thread does for a segment on one hop: decode, add, encode.
double GradientSync::seconds_of_path(bool on_device) {
  // The codec of most values, because --compress may apply to none of them.
  const auto largest =
      std::max_element(buckets_.begin(), buckets_.end(),
                       [](const Bucket& a, const Bucket& b) { return a.elements < b.elements; });
  const CodecSpec spec = parse_codec_spec(largest->codec);
  const std::unique_ptr<Codec> codec = on_device ? make_codec(spec, *device_) : make_codec(spec);
  const std::size_t count = segment_floats(options_.reducer.segment_bytes, *codec);
  const auto memory = [&](std::size_t bytes) {
    return on_device ? device_->allocate(bytes) : device_->allocate_host(bytes);
  };
  const auto floats = [](const Device::Memory& of) { return reinterpret_cast<float*>(of.get()); };
  const std::size_t most = codec->max_payload_bytes(count);
  const Device::Memory values = memory(count * sizeof(float)),
                       residual = memory(count * sizeof(float)),
                       received = device_->allocate_host(most), sent = device_->allocate_host(most);
  const std::span<float> partial(floats(values), count);
  const EncodeResult first =
      codec->encode(partial, floats(residual), {received.get(), most}, EncodeContext{});
  const auto hop = [&] {
    static_cast<void>(codec->decode_add_encode({received.get(), first.payload_bytes}, partial,
                                               floats(residual), {sent.get(), most},
                                               EncodeContext{}));
  };
  hop();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 20; ++i) hop();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace dp
