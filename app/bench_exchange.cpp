#include "app/bench_exchange.hpp"

#include <mpi.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "app/options_values.hpp"
#include "comm/check.hpp"
#include "comm/mpi_runtime.hpp"
#include "comm/reducer.hpp"
#include "comm/replica_hash.hpp"
#include "comm/topology.hpp"
#include "kernels/codecs/codec.hpp"

namespace dp {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point t) {
  return std::chrono::duration<double>(Clock::now() - t).count();
}

// Of this process, all threads.
double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

struct Settings {
  std::vector<double> sizes_mb = {44.7};  // 10^6 bytes of fp32; ResNet-18's gradient
  double bucket_mb = 0.0;                 // 0: all in one bucket
  std::size_t repeats = 5;
  std::size_t ranks_per_host = 0;  // 0: as it is
  bool has_allreduce = true;       // MPI's own beside ours
  bool wants_help = false;
  ReducerOptions reducer;
  std::vector<std::string> codecs, topologies;
};

constexpr const char* kUsage =
    "mpirun -np P dpbench exchange [options] [CODEC...]\n"
    "\n"
    "Exchanges a gradient of known values with every topology, codec and size, beside\n"
    "MPI_Allreduce: the slowest rank's time, bandwidths, bytes, and what came out.\n"
    "\n"
    "  CODEC...               as for dptrain --compress [all]\n"
    "  --topology NAME,...    or all [ring]\n"
    "  --mb X,...             sizes in 10^6 bytes of fp32 (0 to 4000) [44.7]\n"
    "  --bucket-mb X          cut into buckets of that size; 0: one [0]\n"
    "  --repeats N            of two exchanges each (1 to 10000) [5]\n"
    "  --throttle RATE        as over a link of 100mbit or 1gbit [off]\n"
    "  --ranks-per-host N     for the hierarchical topology: pretend such hosts (1 to\n"
    "                         100000) [as it is]\n"
    "  --allreduce on|off     MPI_Allreduce, too [on]\n"
    "  --segment-kb N, --window N, --buckets-in-flight N, --sleep-us N\n"
    "                         the reducer's own settings\n";

std::vector<std::string_view> split(std::string_view list) {
  std::vector<std::string_view> words;
  for (;;) {
    const std::size_t end = std::min(list.find(','), list.size());
    words.push_back(list.substr(0, end));
    if (end == list.size()) return words;
    list.remove_prefix(end + 1);
  }
}

// "ring,direct" or "all".
void add_topologies(std::string_view list, std::vector<std::string>& names) {
  std::vector<std::string> known;
  for (const Topology& topology : topology_list()) known.emplace_back(topology.name);
  if (list == "all") {
    names = known;
    return;
  }
  for (const std::string_view name : split(list)) {
    names.push_back(known[parse_choice("--topology", name, known)]);
  }
}

// The value of an option, which is not codec nor help.
void set(Settings& settings, std::string_view option, std::string_view value) {
  constexpr RealRange kSize = {.least = 0, .most = 4000};
  const auto whole = [&](std::int64_t least, std::int64_t most) {
    return static_cast<std::size_t>(parse_whole(option, value, {least, most}));
  };
  if (option == "--mb") {
    settings.sizes_mb.clear();
    for (const std::string_view size : split(value)) {
      settings.sizes_mb.push_back(parse_real(option, size, kSize));
    }
  } else if (option == "--bucket-mb") {
    settings.bucket_mb = parse_real(option, value, kSize);
  } else if (option == "--repeats") {
    settings.repeats = whole(1, 10000);
  } else if (option == "--ranks-per-host") {
    settings.ranks_per_host = whole(1, 100000);
  } else if (option == "--segment-kb") {
    settings.reducer.segment_bytes = whole(1, 65536) * 1024;
  } else if (option == "--window") {
    settings.reducer.window = whole(1, 1024);
  } else if (option == "--buckets-in-flight") {
    settings.reducer.buckets_in_flight = whole(1, 1024);
  } else if (option == "--topology") {
    add_topologies(value, settings.topologies);
  } else if (option == "--allreduce") {
    settings.has_allreduce = parse_choice(option, value, {"on", "off"}) == 0;
  } else if (option == "--throttle") {
    settings.reducer.throttle_bits_per_s = parse_bit_rate(option, value);
  } else if (option == "--sleep-us") {
    settings.reducer.sleep_us = static_cast<int>(whole(0, 100000));
  } else {
    throw_error(ErrorKind::usage, "{}: unknown option; see dpbench exchange --help", shown(option));
  }
}

Settings parse(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--help") {
      settings.wants_help = true;
      return settings;
    }
    if (!word.starts_with("--")) {
      settings.codecs.push_back(parse_codec_spec(word).text());
      continue;
    }
    if (i + 1 == argc) throw_error(ErrorKind::usage, "{}: needs a value", shown(word));
    set(settings, word, argv[++i]);
  }
  if (settings.topologies.empty()) settings.topologies = {"ring"};
  if (settings.codecs.empty()) {
    for (const CodecInfo& info : codec_list()) {
      settings.codecs.push_back(parse_codec_spec(info.name).text());
    }
  }
  return settings;
}

constexpr std::size_t kRows = 512;  // of the matrices that the gradient is made of

struct Row {
  std::size_t elements;
  std::string topology, codec;            // no topology: MPI_Allreduce
  double encode_s = 0.0, decode_s = 0.0;  // of this rank, one exchange
  std::vector<double> times_s = {};       // the slowest rank's
  double cpu_s = 0.0;                     // of the process of this rank, one exchange
  std::uint64_t wire_bytes = 0;           // of all ranks, one exchange
  std::int64_t wrong = 0;
  double relative_error = 0.0;
};

// Whole numbers, so that fp32 sums are exact: every rank's value of every element differs.
float input(int rank, std::size_t i) {
  return static_cast<float>(static_cast<int>((i * 7 + static_cast<std::size_t>(rank) * 13) % 251) -
                            125);
}
void fill(std::vector<float>& gradient, int rank) {
  for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = input(rank, i);
}

// Values that are not the exact sum, and how far the whole is from it.
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

void bench_reducer(Communicator& communicator, const Settings& settings, Row& row) {
  std::vector<float> gradient(row.elements);
  constexpr int kRuns = 3;  // the first warms up
  std::vector<TensorSlot> tensors;
  const auto bucket =
      settings.bucket_mb > 0.0
          ? std::max<std::size_t>(
                static_cast<std::size_t>(settings.bucket_mb * 1e6 / sizeof(float)), 1)
          : std::max<std::size_t>(gradient.size(), 1);
  for (std::size_t at = 0; at < gradient.size(); at += bucket) {
    // As matrices, for codecs that factor them.
    const std::size_t count = std::min(bucket, gradient.size() - at);
    const std::size_t rows = count % kRows == 0 ? kRows : 1;
    tensors.push_back({.offset = at, .rows = rows, .columns = count / rows});
  }
  ReducerOptions options = settings.reducer;
  options.topology = row.topology;
  if (settings.ranks_per_host > 0) {
    for (int rank = 0; rank < communicator.size(); ++rank) {
      options.hosts.push_back(rank / checked_cast<int>(settings.ranks_per_host));
    }
  }
  const std::vector<Bucket> buckets =
      plan_buckets(tensors, {.bucket_bytes = 1, .codec = row.codec, .min_compress_bytes = 0});
  communicator.together([&] { check_streams(buckets.size()); });
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

void run_exchange(int argc, char** argv) {
  Communicator communicator;
  Settings settings;
  communicator.together([&] { settings = parse(argc, argv); });
  if (settings.wants_help) {
    if (communicator.rank() == 0) std::fputs(kUsage, stdout);
    return;
  }
  const int p = communicator.size();
  std::vector<Row> rows;
  for (const double size_mb : settings.sizes_mb) {
    const auto wanted = static_cast<std::size_t>(size_mb * 1e6 / sizeof(float));
    const std::size_t n = wanted < kRows ? wanted : wanted / kRows * kRows;
    for (const std::string& topology : settings.topologies) {
      for (const std::string& codec : settings.codecs) {
        rows.push_back({.elements = n, .topology = topology, .codec = codec});
      }
    }
    if (settings.has_allreduce) {
      rows.push_back({.elements = n, .topology = "", .codec = "MPI_Allreduce"});
    }
  }
  for (std::size_t repeat = 0; repeat < settings.repeats; ++repeat) {
    for (Row& row : rows) {
      if (row.topology.empty()) {
        bench_allreduce(communicator, row);
      } else {
        bench_reducer(communicator, settings, row);
      }
    }
  }
  if (communicator.rank() != 0) return;
  std::printf("%d ranks, segments of %zu KiB, %zu repeats of 2, the slowest rank's time\n", p,
              settings.reducer.segment_bytes / 1024, settings.repeats);
  std::printf("%8s %-12s %-40s %9s %8s %8s %8s %9s %6s %7s %7s %9s %10s\n", "size", "topology",
              "codec", "median", "min", "algbw", "busbw", "wire MB", "cpu", "encode", "decode",
              "wrong", "relative");
  std::printf("%8s %-12s %-40s %9s %8s %8s %8s %9s %6s %7s %7s %9s %10s\n", "MB", "", "", "ms",
              "ms", "MB/s", "MB/s", "all ranks", "%", "GB/s", "GB/s", "values", "error");
  for (const Row& row : rows) {
    const double bytes = static_cast<double>(row.elements) * 4.0, time_s = median(row.times_s);
    const double algbw = bytes * 1e-6 / time_s;
    // Of gradient, not of what passes the codec: a ring encodes every value once on every rank.
    const auto rate = [&](double codec_s) {
      return codec_s > 0.0 ? fmt::format("{:.1f}", bytes * 1e-9 / codec_s) : std::string("-");
    };
    std::printf("%8.2f %-12s %-40s %9.2f %8.2f %8.1f %8.1f %9.2f %6.1f %7s %7s %9lld %10.2e\n",
                bytes * 1e-6, row.topology.c_str(), row.codec.c_str(), 1e3 * time_s,
                1e3 * *std::min_element(row.times_s.begin(), row.times_s.end()), algbw,
                algbw * 2.0 * (p - 1) / p, static_cast<double>(row.wire_bytes) * 1e-6,
                100.0 * row.cpu_s / row.times_s.back(), rate(row.encode_s).c_str(),
                rate(row.decode_s).c_str(), static_cast<long long>(row.wrong), row.relative_error);
  }
}

}  // namespace

int bench_exchange(int argc, char** argv) {
  MpiRuntime mpi(&argc, &argv);
  try {
    run_exchange(argc, argv);
    return 0;
  } catch (...) {
    return mpi.end_with_error("dpbench");
  }
}

}  // namespace dp
