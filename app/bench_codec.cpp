#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "app/bench_exchange.hpp"
#include "kernels/base/error.hpp"
#include "kernels/base/random.hpp"
#include "kernels/codecs/codec.hpp"
#include "kernels/device.hpp"
#include "kernels/elementwise.hpp"

namespace dp {
namespace {

using Clock = std::chrono::steady_clock;

// The best of some runs, in seconds.
template <class F>
double shortest_s(int runs, F f) {
  double best_s = 1e9;
  for (int i = 0; i < runs; ++i) {
    const auto start = Clock::now();
    f();
    best_s = std::min(best_s, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return best_s;
}
// Likewise over `bytes`, in GB/s.
template <class F>
double speed(std::size_t bytes, int runs, F f) {
  return static_cast<double>(bytes) / shortest_s(runs, f) / 1e9;
}

std::vector<float> test_gradient(std::size_t n, std::uint64_t seed) {
  // Normal deviates of a few thousand positions, repeated: drawing millions takes longer than the
  // bench.
  const CounterRng rng(seed, RandomStream::test);
  std::vector<float> pool(8191), v(n);
  for (std::size_t i = 0; i < pool.size(); ++i) pool[i] = static_cast<float>(normal(rng, i));
  for (std::size_t i = 0; i < n; ++i) v[i] = pool[i % pool.size()];
  return v;
}

constexpr std::size_t kSegment = 65536;  // 256 KiB

void bench_on_cpu() {
  constexpr std::size_t kLarge = 171 * kSegment;  // 44.8 MB
  constexpr int kRuns = 200, kLargeRuns = 5;
  const auto large = test_gradient(kLarge, 1);
  std::vector<float> residual(kLarge), out(kLarge);
  std::printf(
      "GB/s of float, one core, segments of 256 KiB; best of %d runs in cache, of %d over 44.8 "
      "MB\n",
      kRuns, kLargeRuns);
  std::printf("%-9s %10s %14s %10s %10s   %14s %10s\n", "", "encode", "with feedback", "decode",
              "decode+add", "44.8 MB: encode", "decode+add");
  for (const CodecInfo& info : codec_list()) {
    const auto codec = make_codec(parse_codec_spec(info.name));
    if (codec == nullptr) continue;  // an exchange of its own
    const bool has_residual = info.can_feedback();
    std::vector<std::byte> payload(codec->max_payload_bytes(kSegment));
    const std::span<const float> segment(large.data(), kSegment);
    const std::span<float> decoded(out.data(), kSegment);
    float* r = has_residual ? residual.data() : nullptr;
    std::size_t bytes = 0;
    const auto encode = [&](std::size_t at, float* with) {
      bytes =
          codec->encode(std::span(large).subspan(at, kSegment), with, payload, {}).payload_bytes;
    };
    const double plain = speed(kSegment * 4, kRuns, [&] { encode(0, nullptr); });
    const double fed = speed(kSegment * 4, kRuns, [&] { encode(0, r); });
    const std::span<const std::byte> encoded(payload.data(), bytes);
    const double dec = speed(kSegment * 4, kRuns, [&] { codec->decode(encoded, decoded); });
    const double add = speed(kSegment * 4, kRuns, [&] { codec->decode_add(encoded, decoded); });
    const double large_encode = speed(kLarge * 4, kLargeRuns, [&] {
      for (std::size_t at = 0; at < kLarge; at += kSegment) encode(at, r == nullptr ? r : r + at);
    });
    // The last segment's, which need not be as long as the first's.
    const std::span<const std::byte> last(payload.data(), bytes);
    const double large_add = speed(kLarge * 4, kLargeRuns, [&] {
      for (std::size_t at = 0; at < kLarge; at += kSegment) {
        codec->decode_add(last, std::span(out).subspan(at, kSegment));
      }
    });
    std::printf("%-9.*s %10.1f %14.1f %10.1f %10.1f   %14.1f %10.1f\n",
                static_cast<int>(info.name.size()), info.name.data(), plain, fed, dec, add,
                large_encode, large_add);
  }
}

// ---- a GPU --------------------------------------------------------------------------------------

// What a GPU's kernels read and write for a float, in bytes, apart from its code (cuda_driver.cuh):
// encoding reads twice.
struct Traffic {
  double encode = 8, feedback = 20, decode = 4, decode_add = 8, pass_on = 24;
};
constexpr Traffic kTraffic;

class GpuBench {
 public:
  GpuBench(Device& device, std::size_t n)
      : device_(device),
        n_(n),
        values_(device.allocate(n * sizeof(float))),
        residual_(device.allocate(n * sizeof(float))),
        out_(device.allocate(n * sizeof(float))) {
    device.upload(values_.get(), test_gradient(n, 1).data(), n * sizeof(float));
  }

  // Of a plain copy, reads and writes, in bytes/s.
  double copy_bandwidth() {
    const TensorDesc desc = TensorDesc::nhwc({n_, 1, 1, 1});
    return 2.0 * static_cast<double>(n_ * sizeof(float)) / shortest_s(kRuns, [&] {
             copy(device_, {desc, values_.get()}, {desc, out_.get()});
             device_.synchronize();
           });
  }

  // Seconds of every call on a segment of n floats, with its payloads in memory of the device or of
  // the host.
  struct Times {
    double encode_s, feedback_s, decode_s, decode_add_s, pass_on_s;
  };
  Times measure(const Codec& codec, std::size_t n, bool is_host, int runs) {
    const std::size_t most = codec.max_payload_bytes(n);
    const Device::Memory memory[] = {
        is_host ? device_.allocate_host(most) : device_.allocate(most),
        is_host ? device_.allocate_host(most) : device_.allocate(most)};
    const std::span<std::byte> payload(memory[0].get(), most), onward(memory[1].get(), most);
    const std::span<const float> values(floats(values_), n);
    const std::span<float> out(floats(out_), n);
    device_.fill_zero(residual_.get(), n * sizeof(float));
    device_.fill_zero(out_.get(), n * sizeof(float));
    device_.synchronize();
    float* residual = codec.is_lossless() ? nullptr : floats(residual_);
    const auto check = [](const EncodeResult& result) {
      DP_ASSERT(result.finite, "the bench's input is not finite");
    };
    // Adding the same values again and again would not stay finite for ever.
    const auto renew = [&] {
      device_.fill_zero(out_.get(), n * sizeof(float));
      device_.synchronize();
    };
    Times times{};
    times.encode_s = shortest_s(runs, [&] { check(codec.encode(values, nullptr, payload, {})); });
    times.feedback_s =
        shortest_s(runs, [&] { check(codec.encode(values, residual, payload, {})); });
    times.decode_s = shortest_s(runs, [&] { codec.decode(payload, out); });
    times.decode_add_s = shortest_s(runs, [&] { codec.decode_add(payload, out); });
    renew();
    times.pass_on_s = shortest_s(
        runs, [&] { check(codec.decode_add_encode(payload, out, residual, onward, {})); });
    return times;
  }

 private:
  static constexpr int kRuns = 10;
  static float* floats(const Device::Memory& memory) {
    return reinterpret_cast<float*>(memory.get());
  }

  Device& device_;
  std::size_t n_;
  Device::Memory values_, residual_, out_;
};

void print_head(const char* unit) {
  std::printf("%-6s %17s %17s %17s %17s %17s\n", "", "encode", "with feedback", "decode",
              "decode+add", "add and encode");
  std::printf("%-6s", "");
  for (int i = 0; i < 5; ++i) std::printf(" %17s", unit);
  std::printf("\n");
}

void bench_on_gpu(double size_mb) {
  constexpr int kRuns = 200, kLargeRuns = 10;
  const auto device = make_device({.kind = DeviceKind::cuda});
  const auto n = std::max(kSegment, static_cast<std::size_t>(size_mb * 1e6 / sizeof(float)));
  GpuBench bench(*device, n);
  const double bandwidth = bench.copy_bandwidth();
  std::printf("%s\na copy of %.0f MB reads and writes %.0f GB/s\n\n", device->description().c_str(),
              static_cast<double>(n) * 4e-6, bandwidth / 1e9);
  std::vector<std::pair<std::string_view, std::unique_ptr<Codec>>> codecs;
  for (const CodecInfo& info : codec_list()) {
    auto codec = make_codec(parse_codec_spec(info.name), *device);
    if (codec != nullptr) {
      codecs.emplace_back(info.name, std::move(codec));
    } else {
      std::printf("%s has no form for a GPU\n", std::string(info.name).c_str());
    }
  }

  std::printf(
      "one segment of %.0f MB, its payload on the GPU; GB/s of float, and what its kernels read "
      "and\n"
      "write of the copy's bandwidth; best of %d\n",
      static_cast<double>(n) * 4e-6, kLargeRuns);
  print_head("GB/s     of copy");
  for (const auto& [name, codec] : codecs) {
    const GpuBench::Times times = bench.measure(*codec, n, false, kLargeRuns);
    const double code = static_cast<double>(codec->max_payload_bytes(n)) / static_cast<double>(n);
    // Without a residual its 8 or 12 bytes do not move.
    const double with = codec->is_lossless() ? 12.0 : 0.0;
    std::printf("%-6.*s", static_cast<int>(name.size()), name.data());
    const auto print = [&](double time_s, double traffic) {
      const auto floats = static_cast<double>(n);
      std::printf(" %9.0f %6.1f%%", floats * 4e-9 / time_s,
                  100.0 * floats * traffic / time_s / bandwidth);
    };
    print(times.encode_s, kTraffic.encode + code);
    print(times.feedback_s, kTraffic.feedback - with + code);
    print(times.decode_s, kTraffic.decode + code);
    print(times.decode_add_s, kTraffic.decode_add + code);
    print(times.pass_on_s, kTraffic.pass_on - with + 2 * code);
    std::printf("\n");
  }

  std::printf(
      "\nsegments of 256 KiB, their payloads in host memory, with starting and waiting; best of "
      "%d\n",
      kRuns);
  print_head("GB/s          us");
  for (const auto& [name, codec] : codecs) {
    const GpuBench::Times times = bench.measure(*codec, kSegment, true, kRuns);
    std::printf("%-6.*s", static_cast<int>(name.size()), name.data());
    for (const double time_s :
         {times.encode_s, times.feedback_s, times.decode_s, times.decode_add_s, times.pass_on_s}) {
      std::printf(" %9.1f %7.1f", static_cast<double>(kSegment) * 4e-9 / time_s, time_s * 1e6);
    }
    std::printf("\n");
  }
}

constexpr const char* kUsage = "usage: dpbench codec [--device auto|cpu|cuda] [--mb X]\n";

}  // namespace

int bench_codec(int argc, char** argv) {
  std::string_view device = "cpu";
  double size_mb = 256.0;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (i + 1 == argc) throw_error(ErrorKind::usage, "{}: needs a value\n{}", word, kUsage);
    const std::string_view value = argv[++i];
    if (word == "--device") {
      if (value != "auto" && value != "cpu" && value != "cuda") {
        throw_error(ErrorKind::usage, "--device {}: must be auto, cpu or cuda", value);
      }
      device = value;
    } else if (word == "--mb") {
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), size_mb);
      if (error != std::errc() || end != value.data() + value.size() ||
          !(size_mb >= 0.0 && size_mb <= 16'000.0)) {
        throw_error(ErrorKind::usage, "--mb {}: must be a number from 0 to 16000", value);
      }
    } else {
      throw_error(ErrorKind::usage, "{}: unknown option\n{}", word, kUsage);
    }
  }
  if (device == "cpu" || (device == "auto" && count_gpus() == 0)) {
    bench_on_cpu();
  } else {
    bench_on_gpu(size_mb);
  }
  return 0;
}

}  // namespace dp
