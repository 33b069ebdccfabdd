#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "app/bench/bench_options.hpp"
#include "app/bench/benches.hpp"
#include "app/planning/check_network.hpp"
#include "app/planning/prediction.hpp"
#include "app/process/rank_main.hpp"
#include "comm/gradient_sync.hpp"
#include "comm/mpi/link_model.hpp"
#include "comm/network/link_probe.hpp"
#include "comm/topologies/topology.hpp"
#include "kernels/base/error.hpp"
#include "kernels/base/random.hpp"
#include "kernels/codecs/codec.hpp"
#include "net/backward_work.hpp"
#include "net/models/registry.hpp"
#include "net/network.hpp"

namespace dp {
namespace {

using Clock = std::chrono::steady_clock;

struct StepBenchOptions {
  std::string model = "resnet20";
  double compute_ms = 160;
  std::int64_t steps = 20;
  std::vector<std::string> topologies = {"direct"};
  BitRate throttle;
  bool has_prediction = true;
};

// The forward pass's part of a step's computation. Backward needs twice as many operations.
constexpr double kForward = 1.0 / 3.0;
constexpr std::int64_t kWarmUp = 3;  // steps that are not counted

BenchUsage usage(StepBenchOptions& options) {
  std::vector<std::string> known;
  for (const Topology& topology : topology_list()) known.emplace_back(topology.name);
  return {
      .name = "step",
      .other_words = "[CODEC...]",
      .help =
          "Times training steps whose computation is a sleep, so that the exchange of many\n"
          "hosts can be measured on few cores, beside the time that --plan predicts for it.\n"
          "Start it with mpirun. CODEC is what dptrain's --compress takes; default: none,\n"
          "q8 and ecq:bits=0.35.\n",
      .codecs = codec_help(),
      .rows = {
          name_row("model", options.model, "model", net::model_names(),
                   "the network whose gradients are exchanged (32 x 32 images)"),
          real_row("compute-ms", options.compute_ms, {.least = 0, .most = 1e6},
                   "time that each rank sleeps in a step: a third in forward and the rest in "
                   "backward, divided among layers in proportion to their arithmetic"),
          whole_row("steps", options.steps, {1, 100000}, "timed steps"),
          {.name = "topology",
           .placeholder = "NAME,...",
           .help = "topologies to measure, joined by commas",
           .allowed = joined_choices(known),
           .range = {},
           .set =
               [&options, known](std::string_view text) {
                 options.topologies = split_at_commas(text);
                 for (const std::string& name : options.topologies) {
                   if (std::ranges::find(known, name) != known.end()) continue;
                   throw_error(ErrorKind::usage, "--topology {}: must be {}, joined by commas",
                               shown(text), joined_choices(known));
                 }
               },
           .get = [&options] { return fmt::format("{}", fmt::join(options.topologies, ",")); }},
          rate_row("throttle", options.throttle, "limit each rank's sending and receiving rate"),
          on_off_row("predict", options.has_prediction, "also print the predicted time")}};
}

struct Result {
  std::string codec, topology;
  double step_s = 0, exposed_s = 0, sent_bytes = 0;
  double cpu_s = 0;  // of all ranks, for one step
  std::optional<Prediction> prediction = {};
};

std::vector<TensorSlot> slots_of(const net::Parameters& parameters) {
  std::vector<TensorSlot> slots;
  for (const net::Parameter& tensor : parameters.tensors()) {
    const std::size_t rows = tensor.shape[0];
    slots.push_back({.offset = tensor.offset,
                     .rows = rows,
                     .columns = tensor.elements / rows,
                     .is_1d = tensor.kind == net::ParameterKind::vector,
                     .name = tensor.name});
  }
  return slots;
}

// The number of ranks on this rank's machine. Host names cannot tell machines apart, because one
// machine may simulate many hosts.
std::size_t ranks_on_machine(Communicator& comm) {
  std::string machine;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> machine;
  const std::size_t mine = std::hash<std::string>()(machine);
  return static_cast<std::size_t>(std::ranges::count(comm.all_gather(mine), mine));
}

class StepBench {
 public:
  StepBench(const StepBenchOptions& options, Communicator& comm)
      : options_(options), comm_(comm), device_(make_device({.threads = 1, .tune = false})) {
    const net::Graph graph = net::make_model(options.model, {.image = {3, 32, 32}, .classes = 10});
    network_ = std::make_unique<net::Network>(*device_, net::Graph(graph), DataType::f32, 1);
    net::Parameters& parameters = network_->parameters();
    slots_ = slots_of(parameters);
    const double compute_s = 1e-3 * options.compute_ms, forward_s = kForward * compute_s;
    for (const double fraction : net::backward_fractions(graph, parameters)) {
      ready_s_.push_back(forward_s + fraction * (compute_s - forward_s));
    }
    for (std::size_t t = 0; t < ready_s_.size(); ++t) order_.push_back(t);
    std::ranges::stable_sort(order_, {}, [this](std::size_t t) { return ready_s_[t]; });
    // Gradients differ from rank to rank, and tensors have different scales, as in real training.
    values_.resize(parameters.gradients().size());
    const CounterRng rng(static_cast<std::uint64_t>(comm.rank()) + 1, RandomStream::test);
    for (const TensorSlot& slot : slots_) {
      const double scale = 1.0 / static_cast<double>(slot.columns);
      for (std::size_t i = slot.offset; i < slot.offset + slot.elements(); ++i) {
        values_[i] = static_cast<float>(scale * normal(rng, i));
      }
    }
    if (comm.size() > 1) link_ = probe_link(comm, &own_links_);
    if (const std::size_t here = ranks_on_machine(comm); here > 1) {
      shared_cores_ = static_cast<double>(std::thread::hardware_concurrency()) *
                      static_cast<double>(comm.size()) / static_cast<double>(here);
    }
  }

  Result run(const CompressChoice& compress, const std::string& topology) {
    GradientSyncOptions options;
    options.compress = compress;
    options.ranks = static_cast<std::size_t>(comm_.size());
    options.link_bytes_per_s = link_.bytes_per_s;
    options.link_latency_s = link_.latency_s;
    options.reducer.topology = topology;
    options.reducer.throttle_bits_per_s = options_.throttle.bit_per_s;
    options.choose_bucket_bytes = [&](std::span<const TensorSlot> tensors, const CodecSpec& codec) {
      return choose_bucket_bytes(link(), options.ranks, codec, tensors);
    };
    if (link_.bytes_per_s > 0) {
      options.reducer.window = choose_window(link(), compress.codec, options.reducer.segment_bytes);
    }
    const std::span<float> gradient = network_->parameters().gradients();
    GradientSync sync(device_.get(), gradient, slots_, options);
    sync.connect(comm_);
    Result result = {.codec = compress.text, .topology = topology};
    if (options_.has_prediction) result.prediction = predict(sync, compress, topology);
    measure(sync, result);
    return result;
  }

 private:
  // The link that the exchange sees: the measured link, or less if --throttle limits it.
  [[nodiscard]] LinkProbe link() const {
    LinkProbe link = link_;
    const double most = LinkModel::goodput(options_.throttle.bit_per_s);
    if (options_.throttle.bit_per_s > 0) link.bytes_per_s = std::min(link.bytes_per_s, most);
    return link;
  }

  void measure(GradientSync& sync, Result& result) {
    const std::span<float> gradient = network_->parameters().gradients();
    Clock::time_point begin;
    double exposed_s = 0, cpu_s = 0;
    std::uint64_t sent = 0;
    for (std::int64_t step = 0; step < options_.steps + kWarmUp; ++step) {
      if (step == kWarmUp) {
        sync.reducer().run([](Communicator& c) { c.barrier(); });
        (void)sync.reducer().take_times();
        begin = Clock::now();
        exposed_s = 0;
        cpu_s = cpu_seconds();
      }
      std::ranges::copy(values_, gradient.begin());
      const Clock::time_point start = Clock::now();
      sync.begin_step(static_cast<std::uint64_t>(step), -1.0);
      for (const std::size_t tensor : order_) {
        sleep_until(start, ready_s_[tensor]);
        sync.tensor_final(tensor);
      }
      const Clock::time_point computed = Clock::now();
      (void)sync.finish_step();
      exposed_s += std::chrono::duration<double>(Clock::now() - computed).count();
    }
    const auto steps = static_cast<double>(options_.steps);
    result.step_s = std::chrono::duration<double>(Clock::now() - begin).count() / steps;
    result.cpu_s = (cpu_seconds() - cpu_s) / steps;
    sent = sync.reducer().take_times().total.sent_bytes;
    std::vector<double> sums = {exposed_s / steps, static_cast<double>(sent) / steps, result.cpu_s};
    sync.reducer().run([&](Communicator& c) { c.all_sum(sums); });
    const auto ranks = static_cast<double>(comm_.size());
    result.exposed_s = sums[0] / ranks;
    result.sent_bytes = sums[1] / ranks;
    result.cpu_s = sums[2];
  }

  static void sleep_until(Clock::time_point start, double seconds) {
    std::this_thread::sleep_until(start + std::chrono::duration_cast<Clock::duration>(
                                              std::chrono::duration<double>(seconds)));
  }

  std::optional<Prediction> predict(GradientSync& sync, const CompressChoice& compress,
                                    const std::string& topology) {
    const auto ranks = static_cast<std::size_t>(comm_.size());
    if (ranks < 2) return std::nullopt;
    Calibration calibration;
    calibration.tensors = slots_;
    calibration.shares_processor = false;  // a sleep needs no processor
    calibration.shared_cores = shared_cores_;
    const RehearsedStep step = {
        .ready_s = ready_s_, .backward_end_s = 1e-3 * options_.compute_ms, .update_s = 0};
    calibration.steps = {std::vector<RehearsedStep>(ranks, step)};
    std::ranges::copy(values_, network_->parameters().gradients().begin());
    std::vector<CodecSpec> codecs = {CodecSpec::exact()};
    for (const Bucket& bucket : sync.buckets()) codecs.push_back(bucket.codec);
    measure_codecs(sync.reducer(), values_, comm_.rank(), codecs,
                   compress.limits && compress.limits->allows_dense, calibration);
    StepChoice choice;
    choice.buckets = sync.buckets();
    choice.limits = sync.compress().limits;
    choice.topology = topology;
    choice.hosts.resize(ranks);
    std::iota(choice.hosts.begin(), choice.hosts.end(), 0);
    choice.ports = NetworkPorts::alike(ranks, link().bytes_per_s, link_.latency_s);
    choice.window = sync.reducer().window();
    if (comm_.rank() != 0) return std::nullopt;
    return predict_step(calibration, choice);
  }

  const StepBenchOptions& options_;
  Communicator& comm_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<net::Network> network_;
  std::vector<TensorSlot> slots_;
  std::vector<double> ready_s_;     // by tensor, since the beginning of the step
  std::vector<std::size_t> order_;  // tensors in the order in which they become final
  std::vector<float> values_;
  LinkProbe link_;
  std::vector<double> own_links_;
  double shared_cores_ = 0;  // of all machines; 0: each rank has a machine of its own
};

}  // namespace

std::string bench_step_help() {
  StepBenchOptions settings;
  return bench_help(usage(settings));
}

void bench_step(const std::vector<std::string>& arguments, Communicator& comm) {
  StepBenchOptions settings;
  std::vector<std::string> specs = read_bench_options(usage(settings), arguments, comm);
  if (specs.empty()) specs = {"none", "q8", "ecq:bits=0.35"};
  std::vector<CompressChoice> choices;
  together(comm, kDpbenchNames, [&] {
    for (const std::string& spec : specs) choices.push_back(parse_compress(spec));
  });
  StepBench bench(settings, comm);
  if (comm.rank() == 0) {
    std::printf("%s, %d ranks, %g ms of computation a step, %lld steps\n", settings.model.c_str(),
                comm.size(), settings.compute_ms, static_cast<long long>(settings.steps));
    std::printf("%-14s %-28s %9s %9s %11s %11s %8s\n", "topology", "codec", "step ms", "exposed",
                "predicted", "sent, kB", "cpu, %");
  }
  for (const CompressChoice& choice : choices) {
    for (const std::string& topology : settings.topologies) {
      const Result result = bench.run(choice, topology);
      if (comm.rank() != 0) continue;
      const std::string predicted =
          result.prediction ? fmt::format("{:.1f}", 1e3 * result.prediction->step.step_s) : "-";
      std::printf("%-14s %-28s %9.1f %9.1f %11s %11.1f %8.0f\n", result.topology.c_str(),
                  result.codec.c_str(), 1e3 * result.step_s, 1e3 * result.exposed_s,
                  predicted.c_str(), 1e-3 * result.sent_bytes,
                  100.0 * result.cpu_s / result.step_s);
      std::fflush(stdout);
    }
  }
}

}  // namespace dp
