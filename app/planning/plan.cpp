// dptrain --plan first rehearses a few steps of the run without an exchange, measures the codecs on
// the run's gradient, and measures the network, unless rates= describes it (plan_run). Then, for
// each number of ranks, batch and network, it predicts a step with every codec, topology and length
// of rounds, and prints the ranked table (print_plans). Rank 0 alone predicts and prints.
#include "app/planning/plan.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <utility>

#include "app/output/progress.hpp"
#include "app/output/recorder.hpp"
#include "app/planning/check_network.hpp"
#include "app/planning/plan_choices.hpp"
#include "app/planning/plan_table.hpp"
#include "app/planning/prediction.hpp"
#include "app/process/rank_main.hpp"
#include "app/training/setup/run_batches.hpp"
#include "app/training/setup/run_options.hpp"
#include "app/training/setup/run_setup.hpp"
#include "comm/mpi/link_model.hpp"
#include "comm/rate/compress_choice.hpp"
#include "comm/rate/rate_budget.hpp"
#include "comm/topologies/hierarchical.hpp"
#include "comm/topologies/owner_weights.hpp"
#include "io/files/text_table.hpp"
#include "kernels/base/error.hpp"
#include "net/optimizer.hpp"

namespace dp {
namespace {

// The codec that "auto" uses for large tensors, without the limits of "auto". It is for the line
// `rate:`.
CompressChoice rated_choice() { return {.codec = parse_compress("auto").codec}; }

Options rehearsal_options(const Options& options) {
  Options trial = options;
  trial.exchange = false;
  trial.shares = ShareChoice::even();
  trial.sync_every = {};
  trial.log = trial.trace = trial.export_file = trial.init = trial.checkpoint = "none";
  trial.tensorboard = "none";
  trial.resume = false;
  trial.quiet = true;
  trial.epochs = std::max<std::int64_t>(1, options.epochs);
  return trial;
}

// A network between ranks.
struct Network {
  std::string name;
  NetworkPorts ports;      // by host
  std::vector<int> hosts;  // by rank
  LinkProbe slowest;
  std::vector<std::uint32_t> owner_weights;  // by rank, for topology "direct"; empty: all alike
};

// The network as it was measured.
struct MeasuredNetwork {
  LinkProbe ring;      // measured while all ranks send at the same time
  NetworkPorts ports;  // by host
  std::vector<int> hosts;
  std::vector<std::uint32_t> owner_weights;
};

MeasuredNetwork measure(const Options& options, Communicator& comm) {
  MeasuredNetwork measured;
  measured.hosts = host_numbers(comm.hosts());
  comm.set_activity("the measurement of the network");
  if (comm.size() > 1) {
    std::vector<double> own_bytes_per_s;
    measured.ring = probe_link(comm, &own_bytes_per_s);
    measured.owner_weights = planned_owners(options, std::move(own_bytes_per_s));
  }
  measured.ports = measure_ports(comm, measured.ring, measured.hosts);
  comm.set_activity("the end of the plan");
  return measured;
}

// The network of the ranks that were started.
Network as_measured(const MeasuredNetwork& measured) {
  const std::string rate = format_bit_rate(8 * measured.ring.bytes_per_s);
  const bool is_one_host = measured.ports.send_bytes_per_s.size() == 1;
  return {.name = is_one_host ? fmt::format("one host, {} measured", rate)
                              : fmt::format("{} and {} one way, as measured", rate,
                                            format_seconds(measured.ring.latency_s)),
          .ports = measured.ports,
          .hosts = measured.hosts,
          .slowest = measured.ring,
          .owner_weights = measured.owner_weights};
}

// A network in which every rank is on a host of its own, and all links are alike.
Network alike(std::string name, std::size_t ranks, double bytes_per_s, double latency_s) {
  Network network;
  network.name = std::move(name);
  network.ports = NetworkPorts::alike(ranks, bytes_per_s, latency_s);
  network.hosts.resize(ranks);
  std::iota(network.hosts.begin(), network.hosts.end(), 0);
  network.slowest = {.bytes_per_s = bytes_per_s, .latency_s = latency_s, .uncertainty = 0.0};
  return network;
}

std::vector<Network> networks_for(const Options& options, const MeasuredNetwork& measured,
                                  std::size_t ranks) {
  if (options.plan.rates.empty()) {
    if (ranks == measured.hosts.size()) return {as_measured(measured)};
    Network network =
        alike(fmt::format("{} and {} one way, as measured between {} ranks",
                          format_bit_rate(8 * measured.ring.bytes_per_s),
                          format_seconds(measured.ring.latency_s), measured.hosts.size()),
              ranks, measured.ring.bytes_per_s, measured.ring.latency_s);
    network.ports.burst_bytes = measured.ports.burst_bytes;
    return {network};
  }
  std::vector<Network> networks;
  for (const BitRate& rate : options.plan.rates) {
    const double latency_s = 1e-3 * options.plan.delay_ms;
    // The headers of TCP over Ethernet take a part of the nominal bandwidth.
    const double bytes_per_s =
        rate.bit_per_s / 8 / (1.0 + LinkModel::kFrameOverheadBytes / LinkModel::kFrameBytes);
    networks.push_back(alike(
        latency_s > 0 ? fmt::format("{} and {} one way", rate.given, format_seconds(latency_s))
                      : rate.given,
        ranks, bytes_per_s, latency_s));
  }
  return networks;
}

// sync_every: the steps between two exchanges.
void set_rounds(const Options& options, std::size_t sync_every, StepChoice& choice) {
  if (sync_every == 1) return;
  choice.round_steps = static_cast<double>(sync_every);
  const double longest = choice.round_steps - 1;
  choice.round_delay = options.sync_every.is_auto()
                           ? longest
                           : std::min(static_cast<double>(options.sync_delay), longest);
}

StepChoice choice_for(const Options& options, const Calibration& calibration,
                      const Network& network, const std::string& topology,
                      const CompressChoice& compress, std::size_t sync_every) {
  StepChoice choice;
  choice.owner_weights = network.owner_weights;
  choice.limits = compress.limits;
  choice.topology = topology;
  choice.ports = network.ports;
  choice.hosts = network.hosts;
  choice.overlaps = options.overlap;
  set_rounds(options, sync_every, choice);
  choice.window = choose_window(network.slowest, compress.codec, choice.segment_bytes);
  const std::size_t bucket_bytes = options.bucket_mb > 0
                                       ? static_cast<std::size_t>(options.bucket_mb * 1e6)
                                       : choose_bucket_bytes(network.slowest, network.hosts.size(),
                                                             compress.codec, calibration.tensors);
  choice.buckets =
      plan_buckets(calibration.tensors,
                   {.bucket_bytes = bucket_bytes,
                    .codec = compress.codec,
                    .optimizer_normalizes = net::can_leave_step(optimizer_options(options).kind)});
  return choice;
}

// The bits per value that would hide behind backward if all buckets of matrices had the same bits.
std::string hidden_bits(const Calibration& calibration, const StepChoice& choice) {
  const RateBudget budget = hidden_budget(calibration, choice);
  if (!budget.binding) return {};
  if (budget.bits_per_value == 0.0) {
    return "with any number of bits, the exchange takes longer than the backward pass: the fp32 "
           "buckets and the latency alone take longer";
  }
  return fmt::format(
      "{:.2g} bits per value would hide behind the backward pass with the topology direct (limited "
      "by bucket {} of {})",
      budget.bits_per_value, *budget.binding + 1, choice.buckets.size());
}

PlanRow row_of(const std::string& codec, std::size_t sync_every, const StepChoice& choice,
               const Prediction& predicted) {
  const StepForecast& step = predicted.step;
  PlanRow row = {.topology = choice.topology,
                 .codec = codec,
                 .sync_every = sync_every,
                 .step_s = step.step_s,
                 .exposed_s = step.exposed_s,
                 .compute_s = step.step_s - step.exposed_s,
                 .sent_bytes = step.most_sent_bytes};
  if (choice.limits && !std::isnan(predicted.bits)) row.bits = predicted.bits;
  return row;
}

// The training images of the planned runs.
struct TrainingImages {
  std::size_t count = 0;
  std::vector<std::string> layers;  // norms_of_single_values()
};

// Checks these options for layers that would normalise single values. Throws or warns as a run with
// these options would.
void report_single_values(const Options& options, const TrainingImages& images,
                          const Communicator& comm) {
  const auto ranks = static_cast<std::size_t>(comm.size());
  const auto found = find_single_values(
      images.layers,
      {.options = options,
       .samples = images.count,
       .ranks = ranks,
       .global_batch = static_cast<std::size_t>(options.global_batch_of(comm.size()))});
  if (!found) return;
  if (found->is_error) throw AgreedError(ErrorKind::usage, found->text);
  if (comm.rank() == 0) std::fprintf(stderr, "dptrain: %s\n", found->text.c_str());
}

// The same for a planned run with another number of ranks or images. Returns a text to print as a
// note, even if that run would end with an error.
std::string note_single_values(const Options& options, const TrainingImages& images,
                               std::int64_t ranks, std::int64_t batch) {
  Options planned = options;
  planned.batch_size = std::max<std::int64_t>(1, batch / options.accumulate);
  planned.global_batch = 0;
  planned.batch_schedule = {};
  const auto found =
      find_single_values(images.layers, {.options = planned,
                                         .samples = images.count,
                                         .ranks = static_cast<std::size_t>(ranks),
                                         .global_batch = static_cast<std::size_t>(ranks * batch)});
  return found ? found->text : std::string();
}

// "images of the ranks: 44 44 26 14", and each rank's part of the buckets if links differ.
std::string division_text(const std::vector<std::size_t>& images, const Network& network) {
  std::string text;
  if (!images.empty()) text += fmt::format("images of the ranks: {}\n", fmt::join(images, " "));
  if (!network.owner_weights.empty()) {
    text += fmt::format("the ranks own {} of each bucket (topology direct)\n",
                        owner_percentages(network.owner_weights));
  }
  return text;
}

void print_plans(const Options& options, const Calibration& calibration, const ShareFacts& facts,
                 const MeasuredNetwork& measured, const TrainingImages& training) {
  const std::size_t most_of_auto = most_steps_of_auto(options);
  std::vector<std::int64_t> all_ranks = options.plan.ranks, batches = options.plan.batches;
  const double images = static_cast<double>(options.global_batch_of(
                            static_cast<std::int64_t>(measured.hosts.size()))) /
                        static_cast<double>(measured.hosts.size());
  if (all_ranks.empty()) all_ranks = {static_cast<std::int64_t>(measured.hosts.size())};
  if (batches.empty()) batches = {static_cast<std::int64_t>(images)};
  for (const std::int64_t ranks : all_ranks) {
    for (const std::int64_t batch : batches) {
      const bool is_other = !options.plan.ranks.empty() || !options.plan.batches.empty();
      const std::string note =
          is_other ? note_single_values(options, training, ranks, batch) : std::string();
      for (const Network& network :
           networks_for(options, measured, static_cast<std::size_t>(ranks))) {
        std::vector<PlanRow> rows, chosen;
        const double factor = static_cast<double>(batch) / images;
        const std::vector<std::size_t> divided =
            planned_images(options, calibration, facts, static_cast<std::size_t>(ranks),
                           static_cast<std::size_t>(ranks * batch), factor);
        std::vector<double> image_factors;
        for (const std::size_t of_rank : divided) {
          image_factors.push_back(static_cast<double>(of_rank) / static_cast<double>(batch));
        }
        std::string hidden;
        for (const std::size_t length : sync_lengths(options)) {
          for (const CompressChoice& compress : codecs_of(options)) {
            for (const std::string& topology :
                 topologies_of(options, static_cast<std::size_t>(ranks))) {
              if (!can_run(compress.codec, topology, length)) continue;
              StepChoice choice =
                  choice_for(options, calibration, network, topology, compress, length);
              choice.batch_factor = factor;
              // Rounds have even shares.
              if (length == 1) choice.image_factors = image_factors;
              const Prediction predicted = predict_step(calibration, choice);
              rows.push_back(row_of(compress.text, length, choice, predicted));
              const std::size_t steps = most_of_auto > 0 && can_be_in_rounds(compress.codec)
                                            ? chosen_steps(predicted.step, most_of_auto)
                                            : 1;
              if (steps == 1) continue;
              set_rounds(options, steps, choice);
              choice.image_factors.clear();
              chosen.push_back(
                  row_of(compress.text, steps, choice, predict_step(calibration, choice)));
              chosen.back().is_chosen = true;
            }
          }
        }
        rows.insert(rows.end(), chosen.begin(), chosen.end());
        rank_rows(rows);
        // The line `rate:` is for an exchange at every step, because in rounds no exchange runs
        // behind backward.
        if (ranks > 1 && std::ranges::count(sync_lengths(options), 1u) > 0) {
          StepChoice choice =
              choice_for(options, calibration, network, "direct", rated_choice(), 1);
          choice.batch_factor = factor;
          choice.image_factors = image_factors;
          hidden = hidden_bits(calibration, choice);
        }
        std::printf("\n%lld rank%s x %lld images, %s\n%s%s", static_cast<long long>(ranks),
                    ranks == 1 ? "" : "s", static_cast<long long>(batch), network.name.c_str(),
                    division_text(divided, network).c_str(),
                    format_table(table_of(rows), 2).c_str());
        std::printf("quickest: %s\n", quickest_text(rows).c_str());
        if (!hidden.empty()) std::printf("rate: %s\n", hidden.c_str());
        if (!note.empty()) std::printf("note: %s\n", note.c_str());
      }
    }
  }
}

}  // namespace

void plan_run(const Options& options, Communicator& comm) {
  if (comm.size() == 1 && options.plan.rates.empty()) {
    throw AgreedError(ErrorKind::usage,
                      "--plan: one rank has no network to measure; start several ranks, or give "
                      "rates= and ranks=");
  }
  together(comm, kDptrainNames, [&] {
    static_cast<void>(left_out(options));
    if (!options.plan.ranks.empty()) return;  // --shares has a weight for each planned rank
    const auto ranks = static_cast<std::size_t>(comm.size());
    static_cast<void>(first_shares(
        options, static_cast<std::size_t>(options.global_batch_of(comm.size())), ranks, false));
  });
  Calibration calibration;
  TrainingImages images;
  ShareFacts facts;
  {
    const Options trial = rehearsal_options(options);
    const std::unique_ptr<RunSink> progress = make_progress(trial);
    Run run(trial, comm, *progress, Run::Purpose::rehearsal);
    images = {.count = run.data.train->count(),
              .layers = norms_of_single_values(trial, *run.data.train)};
    report_single_values(options, images, comm);
    calibration.shares_processor = run.machine.device->kind() == DeviceKind::cpu;
    calibration.tensors = run.replica->tensor_slots();
    calibration.steps =
        rehearse_steps(*run.replica, *run.train_loader, {.steps = 8, .seconds = 10.0});
    calibration.cores_per_rank = run.machine.share.cores_per_rank;
    facts = gather_share_facts(run);
    // Collects the codecs of all buckets, because small tensors may have another codec than large
    // ones.
    std::vector<CodecSpec> codecs = {CodecSpec::exact()};
    std::vector<CompressChoice> choices = codecs_of(options);
    choices.push_back(rated_choice());
    bool has_dense = false;
    for (const CompressChoice& compress : choices) {
      has_dense = has_dense || (compress.limits && compress.limits->allows_dense);
      for (const Bucket& bucket : plan_buckets(calibration.tensors, {.codec = compress.codec})) {
        codecs.push_back(bucket.codec);
      }
    }
    measure_codecs(*run.replica, comm.rank(), codecs, has_dense, calibration);
  }
  // From here on, the main thread owns the communicator again.
  MeasuredNetwork measured;
  measured.hosts = host_numbers(comm.hosts());
  if (options.plan.rates.empty()) measured = measure(options, comm);
  comm.busy([&] {
    if (comm.rank() != 0) return;
    std::printf(
        "dptrain %s --plan: %s on %s, from %zu step%s of %d rank%s, which compute%s %s per step\n",
        DP_VERSION, options.model.c_str(), options.dataset.c_str(), calibration.steps.size(),
        calibration.steps.size() == 1 ? "" : "s", comm.size(), comm.size() == 1 ? "" : "s",
        comm.size() == 1 ? "s" : "", format_seconds(calibration.compute_s()).c_str());
    if (options.sync_every.has_rounds()) {
      std::printf("exchange %s\n", options.sync_every.text().c_str());
    }
    if (most_steps_of_auto(options) > 0) {
      std::printf(
          "(auto): the rounds that the run would choose after an epoch with an exchange "
          "at every step\n");
    }
    std::fputs(left_out(options).c_str(), stdout);
    print_plans(options, calibration, facts, measured, images);
    std::printf(
        "\naccuracy: not predicted; experiments/README.md has the studies' losses by codec, and "
        "dpreport shows your runs' losses\n");
  });
}

}  // namespace dp
