#include "comm/exchange_path.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "comm/rate/rate_control.hpp"
#include "comm/topologies/exchange_kinds.hpp"
#include "kernels/base/random.hpp"
#include "kernels/base/setting_error.hpp"
#include "kernels/codecs/codec.hpp"

namespace dp {
namespace {

// Fills a device's own queue with copies, in place of the kernels of backward, which run while
// gradients are exchanged.
class OtherWork {
 public:
  explicit OtherWork(Device& device)
      : device_(device), from_(device.allocate(kBytes)), to_(device.allocate(kBytes)) {}
  ~OtherWork() { device_.synchronize(); }
  OtherWork(const OtherWork&) = delete;
  OtherWork& operator=(const OtherWork&) = delete;

  // Enqueues about as much as a hop takes: 16 us at 2 TB/s.
  void add() {
    for (int i = 0; i < 4; ++i) device_.copy(to_.get(), from_.get(), kBytes);
  }

 private:
  static constexpr std::size_t kBytes = 4u << 20;
  Device& device_;
  Device::Memory from_, to_;
};

// Returns the time of 20 hops of a segment on a busy device. Each hop does what the reducer's
// thread does: decode, add, encode. The values are normally distributed, because the time of codecs
// with a variable number of bits depends on them.
double seconds_of_path(bool on_device, Device& device, std::span<const Bucket> buckets,
                       std::size_t segment_bytes) {
  // Uses the codec of the largest bucket, because there may be no bucket with the codec that
  // --compress names.
  const auto largest =
      std::max_element(buckets.begin(), buckets.end(),
                       [](const Bucket& a, const Bucket& b) { return a.elements < b.elements; });
  const CodecSpec& spec = largest->codec;
  const std::unique_ptr<Codec> codec = on_device ? make_codec(spec, device) : make_codec(spec);
  const std::size_t count = std::min(segment_floats(segment_bytes, *codec), largest->elements);
  const auto memory = [&](std::size_t bytes) {
    return on_device ? device.allocate(bytes) : device.allocate_host(bytes);
  };
  const auto floats = [](const Device::Memory& of) { return reinterpret_cast<float*>(of.get()); };
  const std::size_t most = codec->max_payload_bytes(count);
  const Device::Memory values = memory(count * sizeof(float)),
                       residual = memory(count * sizeof(float)),
                       received = device.allocate_host(most), sent = device.allocate_host(most);
  const std::span<float> partial(floats(values), count);
  std::vector<float> gradient(count);
  const CounterRng rng(0, RandomStream::codec);
  for (std::size_t i = 0; i < count; ++i) gradient[i] = static_cast<float>(normal(rng, i));
  const auto reset = [&] {
    if (on_device) {
      device.upload(partial.data(), gradient.data(), partial.size_bytes());
    } else {
      std::ranges::copy(gradient, partial.begin());
    }
  };
  EncodeContext context;
  if (const auto bits = spec.settings.find("bits");
      bits != spec.settings.end() && bits->second > 0) {
    MagnitudeHistogram histogram;
    histogram.add(gradient, nullptr);
    context.quantiser_step = static_cast<float>(histogram.step_for(bits->second));
  }
  reset();
  const EncodeResult first =
      codec->encode(partial, floats(residual), {received.get(), most}, context);
  const auto hop = [&] {
    static_cast<void>(codec->decode_add_encode({received.get(), first.payload_bytes}, partial,
                                               floats(residual), {sent.get(), most}, context));
  };
  hop();
  OtherWork other(device);
  double seconds = 0.0;
  for (int i = 0; i < 20; ++i) {
    reset();
    other.add();
    const auto start = std::chrono::steady_clock::now();
    hop();
    seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  return seconds;
}

}  // namespace

bool takes_device_path(ExchangePath wanted, Device& device, std::span<const Bucket> buckets,
                       const std::string& compress, std::size_t segment_bytes, bool has_adam) {
  const bool have_codecs = std::ranges::all_of(
      buckets, [&](const Bucket& bucket) { return has_codec(bucket.codec, device.kind()); });
  const bool has_adams_steps = has_adam && std::ranges::any_of(buckets, [](const Bucket& bucket) {
                                 return bucket.velocity != Bucket::Velocity::off;
                               });
  switch (wanted) {
    case ExchangePath::host:
      return false;
    case ExchangePath::device:
      if (!have_codecs) {
        throw SettingError(
            Setting{"exchange path"}, "device",
            fmt::format("codec {} does not run on GPUs; allowed: host, auto", compress));
      }
      if (has_adams_steps) {
        throw SettingError(
            Setting{"exchange path"}, "device",
            fmt::format("codec {} with Adam does not run on GPUs; allowed: host, auto", compress));
      }
      return true;
    case ExchangePath::automatic:
      break;
  }
  if (!have_codecs || has_adams_steps) return false;
  const std::vector<std::string> paths = {"device", "host"};
  return device.tuning().choose("gradient exchange", paths, [&](std::size_t i) {
    return seconds_of_path(i == 0, device, buckets, segment_bytes);
  }) == 0;
}

}  // namespace dp
