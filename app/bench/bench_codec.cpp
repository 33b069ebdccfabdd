// dpbench codec: the speed of codecs on one core (bench_on_cpu) or on a GPU (bench_on_gpu).
//
// On a CPU it measures one segment in the cache, with and without a residual, and then 44.8 MB of
// segments. On a GPU it first measures one large segment and compares its speed with the speed of a
// plain copy. Then it measures segments of 256 KiB whose payloads are in host memory, as in an
// exchange.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "app/bench/bench_options.hpp"
#include "app/bench/benches.hpp"
#include "app/options/options.hpp"
#include "app/process/rank_main.hpp"
#include "kernels/base/error.hpp"
#include "kernels/base/random.hpp"
#include "kernels/codecs/codec.hpp"
#include "kernels/device.hpp"
#include "kernels/elementwise.hpp"

namespace dp {
namespace {

using Clock = std::chrono::steady_clock;

// The time of the fastest of several runs. prepare() is called before each run and is not counted.
template <class F, class Prepare>
double shortest_s(int runs, F f, Prepare prepare) {
  double best_s = 1e9;
  for (int i = 0; i < runs; ++i) {
    prepare();
    const auto start = Clock::now();
    f();
    best_s = std::min(best_s, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return best_s;
}
template <class F>
double shortest_s(int runs, F f) {
  return shortest_s(runs, f, [] {});
}

// A codec to measure: the text as the user gave it, and the spec that it stands for.
struct Entry {
  std::string text;
  CodecSpec spec;
};
using Entries = std::vector<Entry>;

int longest_text(const Entries& entries) {
  std::size_t longest = 0;
  for (const Entry& entry : entries) longest = std::max(longest, entry.text.size());
  return static_cast<int>(longest);
}

// Normal deviates times `scale`.
std::vector<float> test_gradient(std::size_t n, std::uint64_t seed, double scale = 1.0) {
  // Repeats a few thousand deviates, because drawing millions would take longer than the bench.
  const CounterRng rng(seed, RandomStream::test);
  std::vector<float> pool(8191), v(n);
  for (std::size_t i = 0; i < pool.size(); ++i)
    pool[i] = static_cast<float>(scale * normal(rng, i));
  for (std::size_t i = 0; i < n; ++i) v[i] = pool[i % pool.size()];
  return v;
}

constexpr std::size_t kSegment = 65536;  // 256 KiB

// The scale of a codec's input. A codec with a threshold (Codec::absolute_error) sends only larger
// values. For such a codec the scale is chosen so that 1 % of the values are sent: 1 % of normal
// deviates are larger than 2.576 in magnitude.
double input_scale(const Codec& codec) {
  const double least_sent = codec.absolute_error();
  return least_sent > 0.0 ? least_sent / 2.576 : 1.0;
}

// Finds, by bisection, the quantiser step with which the codec sends `values` in about
// spec().number("bits") bits each. Returns no step if the spec has no bits, because the codec then
// chooses the step itself.
EncodeContext context_of(const Codec& codec, std::span<const float> values) {
  if (!codec.takes_step() || codec.spec().number("bits") <= 0.0) return {};
  std::vector<std::byte> payload(codec.max_payload_bytes(values.size()));
  const double wanted = codec.spec().number("bits") * static_cast<double>(values.size()) / 8.0;
  double finest = 1e-6, coarsest = 1e3;
  EncodeContext context;
  for (int i = 0; i < 40; ++i) {
    const double step = std::sqrt(finest * coarsest);
    context.quantiser_step = static_cast<float>(step);
    const auto bytes =
        static_cast<double>(codec.encode(values, nullptr, payload, context).payload_bytes);
    if (std::abs(bytes - wanted) <= 0.01 * wanted) break;
    (bytes > wanted ? finest : coarsest) = step;
  }
  return context;
}

void bench_on_cpu(const Entries& entries) {
  constexpr std::size_t kLarge = 171 * kSegment;  // 44.8 MB
  constexpr int kRuns = 200, kLargeRuns = 5;
  std::vector<float> large, residual(kLarge), out(kLarge);
  double scale = 0.0;
  std::printf(
      "GB/s of fp32 on one core, in segments of 256 KiB; best of %d runs in the cache, and of %d "
      "runs over 44.8 MB\n",
      kRuns, kLargeRuns);
  const int width = std::max(9, longest_text(entries));
  std::printf("%-*s %12s %10s %14s %10s %10s   %15s %10s\n", width, "", "bits a value", "encode",
              "with feedback", "decode", "decode+add", "44.8 MB: encode", "decode+add");
  for (const Entry& entry : entries) {
    const auto codec = make_codec(entry.spec);
    if (codec == nullptr) {
      std::printf("%-*s is a whole exchange: dpbench exchange measures it\n", width,
                  entry.text.c_str());
      continue;
    }
    if (scale != input_scale(*codec)) {
      scale = input_scale(*codec);
      large = test_gradient(kLarge, 1, scale);
    }
    std::vector<std::byte> payload(codec->max_payload_bytes(kSegment));
    const std::span<float> decoded(out.data(), kSegment);
    // The residual is cleared before each run, because otherwise it would grow, and the codec would
    // send more.
    float* const r = codec->is_lossless() ? nullptr : residual.data();
    const auto renew = [&](std::size_t n) {
      if (r != nullptr) std::fill_n(r, n, 0.0f);
    };
    std::size_t bytes = 0;
    const EncodeContext context = context_of(*codec, std::span(large).first(kSegment));
    const auto encode = [&](std::size_t at, float* with) {
      const auto values = std::span(large).subspan(at, kSegment);
      bytes = codec->encode(values, with, payload, context).payload_bytes;
    };
    const auto speed = [](std::size_t n, double time_s) {
      return 4e-9 * static_cast<double>(n) / time_s;
    };
    const double plain_s = shortest_s(kRuns, [&] { encode(0, nullptr); });
    const double fed_s = shortest_s(
        kRuns, [&] { encode(0, r); }, [&] { renew(kSegment); });
    const double bits = 8.0 * static_cast<double>(bytes) / static_cast<double>(kSegment);
    const std::span<const std::byte> encoded(payload.data(), bytes);
    const double decode_s = shortest_s(kRuns, [&] { codec->decode(encoded, decoded); });
    const double add_s = shortest_s(kRuns, [&] { codec->decode_add(encoded, decoded); });
    const double large_encode_s = shortest_s(
        kLargeRuns,
        [&] {
          for (std::size_t at = 0; at < kLarge; at += kSegment) {
            encode(at, r == nullptr ? r : r + at);
          }
        },
        [&] { renew(kLarge); });
    // `bytes` is now the size of the last segment's payload, which may differ from the first one's.
    const std::span<const std::byte> last(payload.data(), bytes);
    const double large_add_s = shortest_s(kLargeRuns, [&] {
      for (std::size_t at = 0; at < kLarge; at += kSegment) {
        codec->decode_add(last, std::span(out).subspan(at, kSegment));
      }
    });
    std::printf("%-*s %12.3g %10.1f %14.1f %10.1f %10.1f   %15.1f %10.1f\n", width,
                entry.text.c_str(), bits, speed(kSegment, plain_s), speed(kSegment, fed_s),
                speed(kSegment, decode_s), speed(kSegment, add_s), speed(kLarge, large_encode_s),
                speed(kLarge, large_add_s));
    // The next codec must not start with the sums of this one.
    std::fill(out.begin(), out.end(), 0.0f);
  }
}

// ---- a GPU --------------------------------------------------------------------------------------

// Bytes that a GPU's kernels read and write per float, besides the payload (cuda_driver.cuh).
// Encoding reads each float twice.
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

  // The bandwidth of a plain copy, reads and writes together, in bytes/s.
  double copy_bandwidth() {
    const TensorDesc desc = TensorDesc::nhwc({n_, 1, 1, 1});
    return 2.0 * static_cast<double>(n_ * sizeof(float)) / shortest_s(kRuns, [&] {
             copy(device_, {desc, values_.get()}, {desc, out_.get()});
             device_.synchronize();
           });
  }

  // The time of each call on a segment of n floats, with payloads in the device's memory or in the
  // host's.
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
    // Clears the sums, which would not stay finite if the same values were added again and again.
    const auto renew = [&] {
      device_.fill_zero(out_.get(), n * sizeof(float));
      device_.synchronize();
    };
    // The step size that suits the codec's bits, found on the host.
    EncodeContext context;
    if (codec.takes_step()) {
      std::vector<float> some(n);
      device_.download(some.data(), values_.get(), n * sizeof(float));
      context = context_of(*make_codec(codec.spec()), some);
    }
    std::size_t bytes = 0;
    const auto encode = [&](float* with) {
      const EncodeResult result = codec.encode(values, with, payload, context);
      check(result);
      bytes = result.payload_bytes;
    };
    // As on the CPU: the residual would grow, and a codec with feedback would send more.
    const auto forget = [&] {
      if (residual != nullptr && codec.takes_step()) {
        device_.fill_zero(residual_.get(), n * sizeof(float));
        device_.synchronize();
      }
    };
    Times times{};
    times.encode_s = shortest_s(runs, [&] { encode(nullptr); });
    times.feedback_s = shortest_s(
        runs, [&] { encode(residual); }, forget);
    const std::span<const std::byte> encoded(payload.data(), bytes);
    times.decode_s = shortest_s(runs, [&] { codec.decode(encoded, out); });
    times.decode_add_s = shortest_s(runs, [&] { codec.decode_add(encoded, out); });
    renew();
    times.pass_on_s = shortest_s(
        runs, [&] { check(codec.decode_add_encode(encoded, out, residual, onward, context)); },
        forget);
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

void print_head(int width, const char* unit) {
  std::printf("%-*s %17s %17s %17s %17s %17s\n", width, "", "encode", "with feedback", "decode",
              "decode+add", "add and encode");
  std::printf("%-*s", width, "");
  for (int i = 0; i < 5; ++i) std::printf(" %17s", unit);
  std::printf("\n");
}

void bench_on_gpu(const Entries& entries, double size_mb) {
  constexpr int kRuns = 200, kLargeRuns = 10;
  const auto device = make_device({.kind = DeviceKind::cuda});
  const auto n = std::max(kSegment, static_cast<std::size_t>(size_mb * 1e6 / sizeof(float)));
  GpuBench bench(*device, n);
  const double bandwidth = bench.copy_bandwidth();
  std::printf("%s\na copy of %.0f MB reads and writes %.0f GB/s\n\n", device->description().c_str(),
              static_cast<double>(n) * 4e-6, bandwidth / 1e9);
  std::vector<std::pair<std::string, std::unique_ptr<Codec>>> codecs;
  const int width = std::max(6, longest_text(entries));
  for (const Entry& entry : entries) {
    auto codec = make_codec(entry.spec, *device);
    if (codec != nullptr) {
      codecs.emplace_back(entry.text, std::move(codec));
    } else if (find_codec(entry.spec.name)->is_exchange) {
      std::printf("%-*s is a whole exchange: dpbench exchange measures it\n", width,
                  entry.text.c_str());
    } else {
      std::printf("%-*s does not run on a GPU\n", width, entry.text.c_str());
    }
  }
  if (codecs.empty()) return;

  std::printf(
      "one segment of %.0f MB, its payload on the GPU; GB/s of float, and its kernels' memory "
      "traffic\n"
      "in per cent of the copy's bandwidth; best of %d\n",
      static_cast<double>(n) * 4e-6, kLargeRuns);
  print_head(width, "GB/s     of copy");
  for (const auto& [name, codec] : codecs) {
    if (codec->needs_host_payload()) continue;
    const GpuBench::Times times = bench.measure(*codec, n, false, kLargeRuns);
    const double code = static_cast<double>(codec->max_payload_bytes(n)) / static_cast<double>(n);
    // A lossless codec has no residual, so 12 bytes per float are neither read nor written.
    const double with = codec->is_lossless() ? 12.0 : 0.0;
    std::printf("%-*s", width, name.c_str());
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
      "\nsegments of 256 KiB, their payloads in host memory, including launches and waits; best "
      "of %d\n",
      kRuns);
  print_head(width, "GB/s          us");
  for (const auto& [name, codec] : codecs) {
    const GpuBench::Times times = bench.measure(*codec, kSegment, true, kRuns);
    std::printf("%-*s", width, name.c_str());
    for (const double time_s :
         {times.encode_s, times.feedback_s, times.decode_s, times.decode_add_s, times.pass_on_s}) {
      std::printf(" %9.1f %7.1f", static_cast<double>(kSegment) * 4e-9 / time_s, time_s * 1e6);
    }
    std::printf("\n");
  }
}

struct CodecBenchOptions {
  Options::Device device = Options::Device::cpu;
  double size_mb = 256;
  bool has_size = false;  // whether --mb was given
};

BenchUsage usage(CodecBenchOptions& options) {
  OptionRow size = real_row("mb", options.size_mb, {.least = 0, .most = 16000},
                            "size of the large segment on a GPU, in 10^6 bytes");
  size.set = [set = size.set, &options](std::string_view text) {
    set(text);
    options.has_size = true;
  };
  return {.name = "codec",
          .other_words = "[SPEC...]",
          .help =
              "Measures how fast codecs are, in GB/s of fp32, on one core or on a GPU. SPEC is\n"
              "a codec as dptrain's --compress takes it, such as q8 or q4:block=256; by\n"
              "default, all codecs are measured, those with bits= also at several bits.\n"
              "\n"
              "The input is normally distributed. Codecs that send values above a threshold get\n"
              "it scaled so that they send one value in a hundred; a codec with bits= rounds as\n"
              "coarsely as the bits need.\n",
          .codecs = codec_help(),
          .rows = {choice_row("device", options.device, {"auto", "cpu", "cuda"},
                              "the device; auto: a GPU if there is one"),
                   std::move(size)}};
}

Entries entries_of(const std::vector<std::string>& specs) {
  Entries entries;
  for (const std::string& spec : specs.empty() ? codec_samples() : specs) {
    entries.push_back({spec, parse_codec_spec(spec)});
  }
  return entries;
}

}  // namespace

std::string bench_codec_help() {
  CodecBenchOptions options;
  return bench_help(usage(options));
}

void bench_codec(const std::vector<std::string>& arguments, Communicator& comm) {
  using Where = Options::Device;
  CodecBenchOptions options;
  const auto specs = read_bench_options(usage(options), arguments, comm);
  Entries entries;
  together(comm, kDpbenchNames, [&] {
    if (options.has_size && options.device == Where::cpu) {
      throw_error(ErrorKind::usage, "--mb {}: only with --device cuda or auto", options.size_mb);
    }
    entries = entries_of(specs);
  });
  // One core or one GPU is enough; the other ranks have nothing to do.
  if (comm.rank() != 0) return;
  const bool is_cpu =
      options.device == Where::cpu || (options.device == Where::automatic && count_gpus() == 0);
  if (is_cpu) {
    bench_on_cpu(entries);
  } else {
    bench_on_gpu(entries, options.size_mb);
  }
}

}  // namespace dp
