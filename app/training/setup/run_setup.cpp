// Run's constructor, at the end of this file, makes the parts of a run in this order: checkpoint to
// resume from, data, choices of an earlier run, measured links, owners of buckets, replica, parts
// of a step, loaders, initial weights, algorithms for all batch sizes, recorder with the log, and
// the connection of the reducer. The functions before the constructor make single parts.
#include "app/training/setup/run_setup.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "app/options/options_values.hpp"
#include "app/process/rank_main.hpp"
#include "app/process/stop_notice.hpp"
#include "app/process/together_on_hosts.hpp"
#include "app/training/setup/earlier_choices.hpp"
#include "app/training/setup/initial_values.hpp"
#include "app/training/setup/run_batches.hpp"
#include "app/training/setup/run_options.hpp"
#include "comm/topologies/owner_weights.hpp"
#include "io/images/augment.hpp"
#include "io/images/sampler.hpp"
#include "kernels/base/error.hpp"
#include "kernels/codecs/codec.hpp"
#include "net/models/registry.hpp"

namespace dp {
namespace {

std::size_t to_size(std::int64_t value) { return checked_cast<std::size_t>(value); }

// ---- the parts, in this order -------------------------------------------------------------------

std::optional<std::array<float, kColours>> colours_of(const std::vector<double>& values) {
  if (values.empty()) return {};
  std::array<float, kColours> colours{};
  std::transform(values.begin(), values.end(), colours.begin(),
                 [](double value) { return static_cast<float>(value); });
  return colours;
}

DatasetRequest data_request(const Options& options, int threads) {
  constexpr CropKind kCrops[] = {CropKind::automatic, CropKind::pad, CropKind::resized};
  return {.data_dir = options.data_dir,
          .limit_train = to_size(options.limit_train),
          .limit_test = to_size(options.limit_test),
          .seed = static_cast<std::uint64_t>(options.seed),
          .threads = static_cast<std::size_t>(threads),
          .mean = colours_of(options.mean),
          .deviation = colours_of(options.deviation),
          .image_size = to_size(options.image_size),
          .crop = kCrops[static_cast<std::size_t>(options.crop)],
          .validation_share = options.validation_share,
          .split_seed = static_cast<std::uint64_t>(options.split_seed),
          .bad_images =
              options.bad_images == Options::BadImages::skip ? BadImages::skip : BadImages::fail,
          .augment = augmentation_rule(options)};
}

Dataset load_data(const Options& options, std::size_t ranks, int threads) {
  Dataset data = load_dataset(options.dataset, data_request(options, threads));
  if (data.train->count() < ranks) {
    throw_error(ErrorKind::data,
                "{} ranks for {} training images: every rank needs at least one; start fewer ranks "
                "or raise --limit-train",
                ranks, data.train->count());
  }
  return data;
}

void plan_batches(RunPlan& plan, const std::optional<ResumePoint>& resume) {
  const Options& options = plan.options;
  plan.global_batch = resume ? resume->head.number("global_batch")
                             : to_size(options.global_batch_of(checked_cast<int>(plan.ranks)));
  plan.batches = options.batch_schedule;
  plan.rounds = options.sync_every;
  check_batches(options, plan.global_batch, plan.ranks, resume.has_value());
  plan.shares = first_shares(options, plan.global_batch, plan.ranks, resume.has_value());
}

// Ranks with different images would train without any error. The number of images may differ, too,
// so this check comes before anything that depends on it.
void agree_on_data(Communicator& comm, const Dataset& data, std::uint64_t hash,
                   const std::string& folder) {
  struct Summary {
    std::uint64_t hash, train, test;
  };
  const std::vector<Summary> all = comm.all_gather(
      Summary{hash, std::uint64_t{data.train->count()}, std::uint64_t{data.test->count()}});
  // The data that most ranks have are taken to be right. In a tie, the lowest of the tied ranks
  // decides.
  const auto votes = [&](const Summary& summary) {
    return std::ranges::count(all, summary.hash, &Summary::hash);
  };
  const Summary& usual = *std::ranges::max_element(
      all, [&](const Summary& a, const Summary& b) { return votes(a) < votes(b); });
  const auto odd =
      std::ranges::find_if(all, [&](const Summary& summary) { return summary.hash != usual.hash; });
  if (odd == all.end()) return;
  const auto tell = [](const Summary& s) {
    return fmt::format("{} training and {} test images (hash {:016x})", s.train, s.test, s.hash);
  };
  const auto rank = static_cast<std::size_t>(odd - all.begin());
  throw AgreedError(
      ErrorKind::data,
      fmt::format("the data of rank {} on {} differ from the other ranks' data: it has {}, the "
                  "others have {}; every host needs the same files in --data-dir {}",
                  rank, comm.hosts()[rank], tell(*odd), tell(usual), folder));
}

// Measures the links. --throttle limits their bandwidth.
void measure_network(Communicator& comm, RunPlan& plan) {
  plan.link = probe_link(comm, &plan.own_link_bytes_per_s);
  const double most = plan.options.throttle.bit_per_s / 8;
  if (most <= 0) return;
  plan.link.bytes_per_s = std::min(plan.link.bytes_per_s, most);
  for (double& own : plan.own_link_bytes_per_s) own = std::min(own, most);
}

// Chooses each rank's part of a bucket for the topology "direct". An earlier run or the checkpoint
// may already contain these parts. Otherwise the parts follow from the measured links. All ranks
// choose the same parts.
void choose_owners(RunPlan& plan) {
  if (plan.options.topology != "direct") return;
  if (plan.choices.owner_weights) {
    plan.owner_weights = parse_owner_weights(*plan.choices.owner_weights);
    return;
  }
  plan.owner_weights = owner_weights(plan.own_link_bytes_per_s);
}

// The bandwidth of this rank's link. If the links were not measured one by one or too inexactly, a
// common bandwidth.
double own_link_bytes_per_s(const RunPlan& plan, std::size_t rank) {
  return plan.own_link_bytes_per_s.empty() ? plan.link.bytes_per_s
                                           : plan.own_link_bytes_per_s[rank];
}

// The size of buckets for these tensors: the user's choice, an earlier run's choice, or a size that
// suits the measured network.
std::size_t choose_buckets(const RunPlan& plan, std::span<const TensorSlot> tensors,
                           const CodecSpec& codec) {
  if (plan.options.bucket_mb > 0) return static_cast<std::size_t>(plan.options.bucket_mb * 1e6);
  if (plan.choices.bucket_bytes > 0) return plan.choices.bucket_bytes;
  return choose_bucket_bytes(plan.link, plan.ranks, codec, tensors);
}

// Chooses the place where a GPU's gradients are encoded: `automatic`, unless an option or an
// earlier run decides.
ExchangePath exchange_path(const RunPlan& plan) {
  if (plan.options.gpu_exchange == Options::GpuExchange::host) return ExchangePath::host;
  if (plan.options.gpu_exchange == Options::GpuExchange::device) return ExchangePath::device;
  if (plan.choices.exchange_path.empty()) return ExchangePath::automatic;
  return plan.choices.exchange_path == "device" ? ExchangePath::device : ExchangePath::host;
}

GradientSyncOptions sync_options(const RunPlan& plan, std::size_t rank, bool is_one_host,
                                 RunTrace* trace) {
  const Options& options = plan.options;
  GradientSyncOptions sync;
  sync.compress = options.compress.with_velocities(plan.sends_velocities);
  if (net::can_leave_step(optimizer_options(options).kind) && !options.sync_every.has_rounds()) {
    sync.compress = sync.compress.for_adam();
  }
  sync.ranks = plan.ranks;
  sync.compress_warmup = to_size(options.compress_warmup);
  for (const std::string& name : names_in(options.compress_exclude)) {
    sync.tensor_codecs.emplace_back(name, CodecSpec::exact());
  }
  sync.is_one_host = is_one_host;
  sync.is_on_gpus = plan.is_on_gpus;
  sync.choose_bucket_bytes = [&plan](std::span<const TensorSlot> tensors, const CodecSpec& codec) {
    return choose_buckets(plan, tensors, codec);
  };
  sync.overlap = options.overlap;
  sync.path = exchange_path(plan);
  sync.link_bytes_per_s = own_link_bytes_per_s(plan, rank);
  sync.link_latency_s = plan.link.latency_s;
  sync.planned_bits = plan.choices.planned_bits;
  sync.reducer.topology = options.topology;
  if (plan.link.bytes_per_s > 0) {
    sync.reducer.window =
        choose_window(plan.link, options.compress.codec, sync.reducer.segment_bytes);
  }
  sync.reducer.owner_weights = plan.owner_weights;
  sync.reducer.seed = plan.seed();
  sync.reducer.comm_timeout_s = options.comm_timeout_s;
  sync.reducer.stop_wish = &StopNotice::wish();
  sync.reducer.throttle_bits_per_s = options.throttle.bit_per_s;
  if (trace != nullptr) sync.reducer.trace = trace->exchange();
  return sync;
}

std::unique_ptr<Replica> make_replica(const RunPlan& plan, std::size_t rank, bool is_one_host,
                                      Device& device, const ImageSource& images, RunTrace* trace) {
  const Options& options = plan.options;
  ReplicaOptions replica = {
      .activation_type = activation_type(options),
      .normalization = images.normalization(),
      .seed = plan.seed(),
      .label_smoothing = options.label_smoothing,
      .optimizer = optimizer_options(options),
      .groups = group_options(options),
      .accumulates = options.accumulate > 1 || plan.batches.kind != BatchSchedule::Kind::fixed,
      .averages = {.ema_decay = options.ema,
                   .lookahead_every = checked_cast<std::uint64_t>(options.lookahead_every),
                   .lookahead_share = options.lookahead_share},
      .exchange = options.exchange,
      .batch_norm_ranks = options.sync_bn ? plan.ranks : 1,
      .rounds = round_options(options, plan.rounds, plan.ranks),
      .sync = sync_options(plan, rank, is_one_host, trace),
      .trace = trace != nullptr ? trace->loop() : nullptr};
  return std::make_unique<Replica>(
      device,
      net::make_model(options.model, {.image = images.shape(), .classes = images.classes()}),
      replica);
}

// With a GPU, the loader can use all cores. On a CPU, the layers keep all cores busy, but training
// is fastest if it never waits for images, so the loader gets half as many threads as there are
// cores.
std::size_t loader_threads(const Options& options, const RankMachine& machine, bool is_decoded) {
  if (options.loader_threads > 0) return to_size(options.loader_threads);
  if (!is_decoded) return 1;
  const double cores = machine.share.cores_per_rank;
  const double wanted = machine.device->kind() == DeviceKind::cuda ? cores : cores / 2;
  return static_cast<std::size_t>(std::clamp(wanted, 1.0, 16.0));
}

LoaderOptions train_loader_options(const RunPlan& plan, int rank, const RankMachine& machine,
                                   const Dataset& data) {
  LoaderOptions loader = {.global_batch = plan.global_batch,
                          .rank = static_cast<std::size_t>(rank),
                          .ranks = plan.ranks,
                          .parts = plan.parts_of(plan.global_batch),
                          .shares = plan.shares,
                          .largest_batch = plan.largest_part,
                          .seed = plan.seed(),
                          .augment = augmentation_rule(plan.options, data.train->shape()),
                          .threads = loader_threads(plan.options, machine, data.is_decoded)};
  if (machine.device->kind() == DeviceKind::cuda) {
    loader.is_raw = true;
    loader.allocate = [&device = *machine.device](std::size_t bytes) {
      return device.allocate_host(bytes);
    };
  }
  return loader;
}

LoaderOptions test_loader_options(LoaderOptions loader, std::size_t batch) {
  loader.global_batch = batch;
  loader.parts = 1;
  loader.largest_batch = 0;
  loader.order = SampleOrder::in_order;
  loader.augment = std::nullopt;
  return loader;
}

net::ScheduleOptions make_schedule(const RunPlan& plan, std::size_t steps_per_epoch) {
  const Options& options = plan.options;
  const double scaling = plan.rate_factor(static_cast<double>(plan.planned_ranks) *
                                          static_cast<double>(options.accumulate));
  const net::ScheduleOptions schedule = schedule_options(options, scaling, steps_per_epoch);
  if (options.trace != "none") check_traced_steps(options, schedule.epochs * steps_per_epoch);
  return schedule;
}

std::unique_ptr<WeightsExporter> make_exporter(const Options& options, const ImageSource& images,
                                               const std::optional<ResumePoint>& resume) {
  const bool is_of_run = resume && resume->head.has("option.export") &&
                         resume->head.get("option.export") == options.export_file;
  const auto earlier = is_of_run        ? WeightsExporter::Earlier::continued
                       : options.resume ? WeightsExporter::Earlier::moved
                                        : WeightsExporter::Earlier::refused;
  return std::make_unique<WeightsExporter>(options.export_file,
                                           WeightsFile{.model = options.model,
                                                       .classes = images.classes(),
                                                       .image = images.shape(),
                                                       .normalization = images.normalization(),
                                                       .last = {},
                                                       .best = {}},
                                           earlier);
}

std::unique_ptr<Recorder> make_recorder(Run& run, RunSink& progress) {
  return std::make_unique<Recorder>(RunDescription{
      .options = &run.plan.options,
      .comm = &run.comm,
      .share = run.machine.share,
      .device = run.machine.device.get(),
      .why_no_gpu = run.machine.why_no_gpu,
      .network = &run.replica->network(),
      .exchange_path = run.replica->sync().path(),
      .only_cpus_send_velocities =
          !run.plan.sends_velocities && auto_sends_velocities(run.plan.options, DeviceKind::cpu),
      .ranks_on_gpu = run.machine.ranks_on_gpu,
      .link = run.plan.link,
      .owner_weights = run.plan.owner_weights,
      .bucket_bytes = run.replica->sync().bucket_bytes(),
      .data = &run.data,
      .data_hash = run.facts.data_hash,
      .buckets = run.replica->sync().buckets(),
      .rate_limits = run.replica->sync().compress().limits,
      .global_batch = run.plan.global_batch,
      .steps_per_epoch = run.train_loader->steps(),
      .resume = run.checkpoint.resume ? &*run.checkpoint.resume : nullptr,
      .progress = &progress});
}

}  // namespace

void check_traced_steps(const Options& options, std::size_t steps) {
  if (to_size(options.trace_first) < steps) return;
  throw_error(ErrorKind::usage,
              "--trace-steps {}:{}: the run has {} steps, so there is nothing to trace; allowed: "
              "FIRST from 0 to {}",
              options.trace_first, options.trace_steps, steps, steps - 1);
}

Run::Run(const Options& options, Communicator& communicator, RunSink& progress, Purpose purpose)
    : comm(communicator),
      plan{.options = options,
           .ranks = static_cast<std::size_t>(comm.size()),
           .planned_ranks = to_size(options.planned_ranks_of(comm.size()))},
      machine(options, comm) {
  Device& device = *machine.device;
  const std::optional<ResumePoint>& resume = checkpoint.resume;
  comm.set_activity("the search for a checkpoint");
  if (options.has_checkpoints()) find_checkpoint(plan, comm, device, checkpoint);
  comm.set_activity("the loading of data");
  std::uint64_t data_hash = 0;
  together_on_hosts(comm, [&] {
    data = load_data(options, plan.ranks, machine.share.threads);
    data_hash = content_hash(data);
    plan_batches(plan, resume);
  });
  agree_on_data(comm, data, data_hash, options.data_dir);
  facts.data_hash = data_hash;
  if (options.has_checkpoints() || purpose == Purpose::rehearsal) {
    facts = collect_facts(comm, device, data_hash);
  }
  if (resume) {
    for (const std::string& line : compare_machine(comm, *resume, options, facts)) {
      checkpoint.notes.push_back(line);
    }
  }
  if (options.takes_choices_from_a_log()) {
    agree_on_earlier_choices(options, comm, device, plan.test_batch(), resume.has_value(),
                             plan.choices);
  }
  plan.is_on_gpus = plan.choices.is_on_gpus.value_or(!machine.has_any_cpu);
  const DeviceKind kind = machine.has_any_cpu ? DeviceKind::cpu : DeviceKind::cuda;
  plan.sends_velocities =
      plan.choices.auto_sends_velocities.value_or(auto_sends_velocities(options, kind));
  comm.set_activity("the measurement of the network");
  if (options.autotune != "off" && plan.exchanges()) {
    measure_network(comm, plan);
  }
  choose_owners(plan);
  comm.set_activity("the construction of the network");
  together(comm, kDptrainNames, [&] {
    if (options.trace != "none") trace = std::make_unique<RunTrace>(options);
    replica = make_replica(plan, static_cast<std::size_t>(comm.rank()),
                           comm.local_size() == comm.size(), device, *data.train, trace.get());
  });
  plan.largest_part = choose_largest_part(plan, comm, machine, *replica);
  if (purpose == Purpose::training) {
    together(comm, kDptrainNames, [&] {
      const std::string warning = check_single_images(plan, *data.train, resume.has_value());
      if (comm.rank() == 0 && !warning.empty()) progress.warn(warning);
    });
  }
  together(comm, kDptrainNames, [&] {
    const LoaderOptions loader = train_loader_options(plan, comm.rank(), machine, data);
    train_loader = std::make_unique<Loader>(*data.train, loader);
    test_loader =
        std::make_unique<Loader>(*data.test, test_loader_options(loader, plan.test_batch()));
    plan.schedule = make_schedule(plan, train_loader->steps());
    if (options.export_file == "none" || comm.rank() != 0) return;
    exporter = make_exporter(options, *data.train, resume);
    if (!exporter->warning().empty()) progress.warn(exporter->warning());
  });
  initialise_from_data(*data.train, comm, device, replica->network());
  if (options.init != "none" && !resume) {
    load_initial_weights(options, comm, device, replica->network());
  }
  replica->reset_averages();
  comm.set_activity("the choice of algorithms");
  prepare_batch_sizes(plan, comm, data, machine, resume.has_value(), *replica);
  comm.set_activity("the creation of the log");
  recorder = make_recorder(*this, progress);
  comm.set_activity("the start of the exchange");
  replica->connect(comm);
  recorder->attach(replica->sync().reducer());
  replica->sync().reducer().run([](Communicator& c) { c.set_activity({}); });
  if (trace) {
    trace->start(replica->network(), resume ? resume->checkpoint.step : 0,
                 plan.parts_of(plan.batches.all(plan.global_batch).back()));
  }
}

}  // namespace dp
