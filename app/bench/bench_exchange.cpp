#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/ranges.h>

#include "app/bench/bench_options.hpp"
#include "app/bench/benches.hpp"
#include "app/process/rank_main.hpp"
#include "comm/mpi/mpi_check.hpp"
#include "comm/reducer/reducer.hpp"
#include "comm/replica_hash.hpp"
#include "comm/topologies/topology.hpp"
#include "kernels/codecs/codec.hpp"

namespace dp {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point t) {
  return std::chrono::duration<double>(Clock::now() - t).count();
}

struct ExchangeBenchOptions {
  std::vector<double> sizes_mb = {44.7};  // 10^6 bytes of fp32; ResNet-18's gradient
  std::vector<std::string> topologies = {"ring"};
  std::vector<CodecSpec> codecs = {};
  double bucket_mb = 0.0;
  std::int64_t repeats = 5;
  std::int64_t ranks_per_host = 0;
  BitRate throttle;
  bool has_allreduce = true;
  // The defaults are the reducer's.
  std::int64_t segment_kb = static_cast<std::int64_t>(ReducerOptions().segment_bytes / 1024);
  std::int64_t window = static_cast<std::int64_t>(ReducerOptions().window);
  std::int64_t buckets_in_flight = static_cast<std::int64_t>(ReducerOptions().buckets_in_flight);
  std::int64_t sleep_us = ReducerOptions().sleep_us;
  std::int64_t codec_threads = static_cast<std::int64_t>(ReducerOptions().codec_threads);

  [[nodiscard]] ReducerOptions reducer() const {
    ReducerOptions options;
    options.segment_bytes = checked_cast<std::size_t>(segment_kb) * 1024;
    options.window = checked_cast<std::size_t>(window);
    options.buckets_in_flight = checked_cast<std::size_t>(buckets_in_flight);
    options.throttle_bits_per_s = throttle.bit_per_s;
    options.sleep_us = checked_cast<int>(sleep_us);
    options.codec_threads = checked_cast<std::size_t>(codec_threads);
    return options;
  }
};

constexpr RealRange kSizes = {.least = 0, .most = 4000};

OptionRow sizes_row(std::vector<double>& sizes_mb) {
  const std::string allowed = "numbers joined by commas, each from " + kSizes.text();
  return {.name = "mb",
          .placeholder = "X,...",
          .help = "sizes of the gradient in 10^6 bytes of fp32, joined by commas",
          .allowed = allowed,
          .range = kSizes.text(),
          .set =
              [&sizes_mb, allowed](std::string_view text) {
                try {
                  sizes_mb.clear();
                  for (const std::string& size : split_at_commas(text)) {
                    sizes_mb.push_back(parse_real("--mb", size, kSizes));
                  }
                } catch (const Error&) {
                  throw_error(ErrorKind::usage, "--mb {}: must be {}", shown(text), allowed);
                }
              },
          .get = [&sizes_mb] { return fmt::format("{}", fmt::join(sizes_mb, ",")); }};
}

OptionRow topologies_row(std::vector<std::string>& topologies) {
  std::vector<std::string> known;
  for (const Topology& topology : topology_list()) known.emplace_back(topology.name);
  const std::string allowed =
      fmt::format("all, or one or more of {} joined by commas", fmt::join(known, ", "));
  return {.name = "topology",
          .placeholder = "NAME,...",
          .help = "topologies to measure: " + allowed,
          .allowed = allowed,
          .set =
              [&topologies, known, allowed](std::string_view text) {
                topologies = text == "all" ? known : split_at_commas(text);
                for (const std::string& name : topologies) {
                  if (std::find(known.begin(), known.end(), name) != known.end()) continue;
                  const std::string near = nearest(name, known);
                  throw_error(ErrorKind::usage, "--topology {}: must be {}{}", shown(text), allowed,
                              near.empty() ? "" : fmt::format("; did you mean {}?", near));
                }
              },
          .get = [&topologies] { return fmt::format("{}", fmt::join(topologies, ",")); }};
}

BenchUsage usage(ExchangeBenchOptions& options) {
  return {
      .name = "exchange",
      .other_words = "[CODEC...]",
      .help =
          "Exchanges a gradient of known values with each topology, codec and size, taking\n"
          "turns with MPI_Allreduce. The table shows the slowest rank's time, bandwidths,\n"
          "bytes and errors. Start it with mpirun. CODEC is a codec as dptrain's --compress\n"
          "takes it, such as q8 or topk:ratio=0.01; by default, all codecs are measured.\n",
      .codecs = codec_help(),
      .rows = {
          topologies_row(options.topologies), sizes_row(options.sizes_mb),
          real_row("bucket-mb", options.bucket_mb, kSizes,
                   "bucket size in 10^6 bytes of fp32; 0: the whole gradient"),
          whole_row("repeats", options.repeats, {1, 10000}, "measurements, of two exchanges each"),
          rate_row("throttle", options.throttle,
                   "limit each rank's sending and receiving rate; off: no limit"),
          whole_row("ranks-per-host", options.ranks_per_host, {0, 100000},
                    "treat every N ranks as one host (hierarchical); 0: the real hosts"),
          on_off_row("allreduce", options.has_allreduce, "also measure MPI_Allreduce"),
          whole_row("segment-kb", options.segment_kb, {1, 65536},
                    "size of a segment, the pipelined part of a chunk, in KiB of fp32"),
          whole_row("window", options.window, {1, 1024},
                    "segments of a bucket in flight at the same time"),
          whole_row("buckets-in-flight", options.buckets_in_flight, {1, 1024},
                    "buckets exchanged at the same time"),
          whole_row("sleep-us", options.sleep_us, {0, 100000},
                    "the reducer's pause between polls, in microseconds; 0: adapts to the traffic"),
          whole_row("codec-threads", options.codec_threads, {0, CodecThreads::kMost},
                    "encoding threads per rank; 0: a quarter of its cores")}};
}

// The named codecs, or all.
std::vector<CodecSpec> codecs_of(const std::vector<std::string>& specs) {
  std::vector<CodecSpec> codecs;
  for (const std::string& spec : specs) codecs.push_back(parse_codec_spec(spec));
  if (!codecs.empty()) return codecs;
  for (const CodecInfo& info : codec_list()) codecs.push_back(parse_codec_spec(info.name));
  return codecs;
}

constexpr std::size_t kRows = 512;  // the rows of each matrix in the gradient

struct Row {
  std::size_t elements;
  std::string topology;  // empty: MPI_Allreduce
  CodecSpec codec = {};
  double encode_s = 0.0, decode_s = 0.0;  // of this rank, in one exchange
  std::vector<double> times_s = {};       // the slowest rank's time in each exchange
  double cpu_s = 0.0;                     // processor time of this rank in one exchange
  std::uint64_t wire_bytes = 0;           // of all ranks, in one exchange
  std::int64_t wrong = 0;
  double relative_error = 0.0;
};

// The values are whole numbers, so that fp32 sums are exact. They differ from rank to rank and from
// element to element.
float input(int rank, std::size_t i) {
  return static_cast<float>(static_cast<int>((i * 7 + static_cast<std::size_t>(rank) * 13) % 251) -
                            125);
}
void fill(std::vector<float>& gradient, int rank) {
  for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = input(rank, i);
}

// Counts the values that differ from the exact sum, and computes the relative error of the whole
// gradient.
void check(const std::vector<float>& gradient, int ranks, Row& row) {
  row.wrong = 0;
  double error = 0.0, norm = 0.0;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    float exact = 0.0f;
    for (int rank = 0; rank < ranks; ++rank) exact += input(rank, i);
    row.wrong += gradient[i] != exact ? 1 : 0;
    const double e = static_cast<double>(gradient[i]) - static_cast<double>(exact);
    error += e * e;
    norm += static_cast<double>(exact) * static_cast<double>(exact);
  }
  row.relative_error = norm > 0.0 ? std::sqrt(error / norm) : 0.0;
}

double slowest(Communicator& c, double time_s) {
  const auto all = c.all_gather(time_s);
  return *std::max_element(all.begin(), all.end());
}

void bench_reducer(Communicator& communicator, const ExchangeBenchOptions& settings, Row& row) {
  std::vector<float> gradient(row.elements);
  constexpr int kRuns = 3;  // the first warms up
  std::vector<TensorSlot> tensors;
  const auto bucket =
      settings.bucket_mb > 0.0
          ? std::max<std::size_t>(
                static_cast<std::size_t>(settings.bucket_mb * 1e6 / sizeof(float)), 1)
          : std::max<std::size_t>(gradient.size(), 1);
  for (std::size_t at = 0; at < gradient.size(); at += bucket) {
    // The tensors are matrices, because some codecs factor matrices.
    const std::size_t count = std::min(bucket, gradient.size() - at);
    const std::size_t rows = count % kRows == 0 ? kRows : 1;
    tensors.push_back({.offset = at, .rows = rows, .columns = count / rows});
  }
  ReducerOptions options = settings.reducer();
  options.topology = row.topology;
  if (settings.ranks_per_host > 0) {
    for (int rank = 0; rank < communicator.size(); ++rank) {
      options.hosts.push_back(rank / checked_cast<int>(settings.ranks_per_host));
    }
  }
  const std::vector<Bucket> buckets =
      plan_buckets(tensors, {.bucket_bytes = 1, .codec = row.codec, .min_compress_bytes = 0});
  together(communicator, kDpbenchNames, [&] { check_streams(buckets.size()); });
  Reducer reducer(communicator, gradient, buckets, options);
  for (int i = 0; i < kRuns; ++i) {
    fill(gradient, communicator.rank());
    std::fill(reducer.residual().begin(), reducer.residual().end(), 0.0f);
    reducer.run([](Communicator& c) { c.barrier(); });
    (void)reducer.take_times();
    const auto start = Clock::now();
    const double cpu_start_s = cpu_seconds();
    reducer.begin_step(static_cast<std::uint64_t>(i));
    for (std::size_t b = 0; b < reducer.buckets().size(); ++b) reducer.bucket_ready(b);
    (void)reducer.wait_step();
    const double time_s = seconds_since(start);
    row.cpu_s = cpu_seconds() - cpu_start_s;
    reducer.run([&](Communicator& c) {
      const double most_s = slowest(c, time_s);
      if (i > 0) row.times_s.push_back(most_s);
    });
  }
  const CommCost cost = reducer.take_times().total;
  const auto sent = static_cast<std::int64_t>(cost.sent_bytes);
  row.encode_s = cost.encode_s;
  row.decode_s = cost.decode_s;
  reducer.run([&](Communicator& c) {
    row.wire_bytes = static_cast<std::uint64_t>(c.all_sum(sent));
    agree_on_hash(c, gradient);
  });
  check(gradient, communicator.size(), row);
}

void bench_allreduce(Communicator& communicator, Row& row) {
  std::vector<float> gradient(row.elements);
  constexpr int kRuns = 3;
  for (int i = 0; i < kRuns; ++i) {
    fill(gradient, communicator.rank());
    communicator.barrier();
    const auto start = Clock::now();
    const double cpu_start_s = cpu_seconds();
    DP_CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, gradient.data(), checked_cast<int>(gradient.size()),
                               MPI_FLOAT, MPI_SUM, communicator.handle()));
    const double time_s = seconds_since(start);
    row.cpu_s = cpu_seconds() - cpu_start_s;
    const double most_s = slowest(communicator, time_s);
    if (i > 0) row.times_s.push_back(most_s);
  }
  check(gradient, communicator.size(), row);
}

}  // namespace

std::string bench_exchange_help() {
  ExchangeBenchOptions settings;
  return bench_help(usage(settings));
}

void bench_exchange(const std::vector<std::string>& arguments, Communicator& communicator) {
  ExchangeBenchOptions settings;
  const auto specs = read_bench_options(usage(settings), arguments, communicator);
  together(communicator, kDpbenchNames, [&] { settings.codecs = codecs_of(specs); });
  const int p = communicator.size();
  std::vector<Row> rows;
  for (const double size_mb : settings.sizes_mb) {
    const auto wanted = static_cast<std::size_t>(size_mb * 1e6 / sizeof(float));
    const std::size_t n = wanted < kRows ? wanted : wanted / kRows * kRows;
    for (const std::string& topology : settings.topologies) {
      for (const CodecSpec& codec : settings.codecs) {
        rows.push_back({.elements = n, .topology = topology, .codec = codec});
      }
    }
    if (settings.has_allreduce) rows.push_back({.elements = n, .topology = ""});
  }
  for (std::int64_t repeat = 0; repeat < settings.repeats; ++repeat) {
    const auto start = Clock::now();
    for (Row& row : rows) {
      if (row.topology.empty()) {
        bench_allreduce(communicator, row);
      } else {
        bench_reducer(communicator, settings, row);
      }
    }
    if (communicator.rank() == 0 && settings.repeats > 1) {
      std::fprintf(
          stderr,
          "dpbench: %lld of %lld repeats of %zu rows are done; the last repeat took %.1f s\n",
          static_cast<long long>(repeat + 1), static_cast<long long>(settings.repeats), rows.size(),
          seconds_since(start));
    }
  }
  if (communicator.rank() != 0) return;
  std::printf(
      "%d ranks, segments of %lld KiB, %lld repeats of 2 exchanges, times of the slowest rank\n", p,
      static_cast<long long>(settings.segment_kb), static_cast<long long>(settings.repeats));
  std::printf("%8s %-12s %-40s %9s %8s %8s %8s %9s %6s %7s %7s %9s %10s\n", "size", "topology",
              "codec", "median", "min", "algbw", "busbw", "wire MB", "cpu", "encode", "decode",
              "wrong", "relative");
  std::printf("%8s %-12s %-40s %9s %8s %8s %8s %9s %6s %7s %7s %9s %10s\n", "MB", "", "", "ms",
              "ms", "MB/s", "MB/s", "all ranks", "%", "GB/s", "GB/s", "values", "error");
  for (const Row& row : rows) {
    const double bytes = static_cast<double>(row.elements) * 4.0, time_s = median(row.times_s);
    const double algbw = bytes * 1e-6 / time_s;
    // The speed counts each byte of the gradient once, although a ring encodes every value once per
    // rank.
    const auto rate = [&](double codec_s) {
      return codec_s > 0.0 ? fmt::format("{:.1f}", bytes * 1e-9 / codec_s) : std::string("-");
    };
    std::printf("%8.2f %-12s %-40s %9.2f %8.2f %8.1f %8.1f %9.2f %6.1f %7s %7s %9lld %10.2e\n",
                bytes * 1e-6, row.topology.c_str(),
                row.topology.empty() ? "MPI_Allreduce" : row.codec.text().c_str(), 1e3 * time_s,
                1e3 * *std::min_element(row.times_s.begin(), row.times_s.end()), algbw,
                algbw * 2.0 * (p - 1) / p, static_cast<double>(row.wire_bytes) * 1e-6,
                100.0 * row.cpu_s / row.times_s.back(), rate(row.encode_s).c_str(),
                rate(row.decode_s).c_str(), static_cast<long long>(row.wrong), row.relative_error);
  }
}

}  // namespace dp
