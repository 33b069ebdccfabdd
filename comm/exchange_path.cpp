#include "comm/exchange_path.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "comm/topologies/exchange_kinds.hpp"
#include "kernels/base/setting_error.hpp"
#include "kernels/codecs/codec.hpp"

namespace dp {
namespace {

// Returns the time of 20 hops of a segment. Each hop does what the reducer's thread does: decode,
// add, encode.
double seconds_of_path(bool on_device, Device& device, std::span<const Bucket> buckets,
                       std::size_t segment_bytes) {
  // Uses the codec of the largest bucket, because there may be no bucket with the codec that
  // --compress names.
  const auto largest =
      std::max_element(buckets.begin(), buckets.end(),
                       [](const Bucket& a, const Bucket& b) { return a.elements < b.elements; });
  const CodecSpec& spec = largest->codec;
  const std::unique_ptr<Codec> codec = on_device ? make_codec(spec, device) : make_codec(spec);
  const std::size_t count = segment_floats(segment_bytes, *codec);
  const auto memory = [&](std::size_t bytes) {
    return on_device ? device.allocate(bytes) : device.allocate_host(bytes);
  };
  const auto floats = [](const Device::Memory& of) { return reinterpret_cast<float*>(of.get()); };
  const std::size_t most = codec->max_payload_bytes(count);
  const Device::Memory values = memory(count * sizeof(float)),
                       residual = memory(count * sizeof(float)),
                       received = device.allocate_host(most), sent = device.allocate_host(most);
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

}  // namespace

bool takes_device_path(ExchangePath wanted, Device& device, std::span<const Bucket> buckets,
                       const std::string& compress, std::size_t segment_bytes) {
  const auto has_device_form = [&] {
    return std::all_of(buckets.begin(), buckets.end(), [&](const Bucket& bucket) {
      return has_codec(bucket.codec, device.kind());
    });
  };
  switch (wanted) {
    case ExchangePath::host:
      return false;
    case ExchangePath::device:
      if (!has_device_form()) {
        throw SettingError(
            Setting{"exchange path"}, "device",
            fmt::format("codec {} does not run on GPUs; allowed: host, auto", compress));
      }
      return true;
    case ExchangePath::automatic:
      break;
  }
  if (!has_device_form()) return false;
  const std::vector<std::string> paths = {"device", "host"};
  return device.tuning().choose("gradient exchange", paths, [&](std::size_t i) {
    return seconds_of_path(i == 0, device, buckets, segment_bytes);
  }) == 0;
}

}  // namespace dp
