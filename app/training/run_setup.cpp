#include "app/training/run_setup.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string_view>
#include <vector>

#include "app/options/options_values.hpp"
#include "app/process/rank_main.hpp"
#include "app/process/stop_notice.hpp"
#include "app/process/together_on_hosts.hpp"
#include "app/training/agreement.hpp"
#include "app/training/earlier_choices.hpp"
#include "app/training/initial_values.hpp"
#include "app/training/run_batches.hpp"
#include "app/training/run_checkpoint.hpp"
#include "app/training/run_device.hpp"
#include "app/training/run_options.hpp"
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

DatasetRequest data_request(const Run& run) {
  const Options& options = run.options;
  constexpr CropKind kCrops[] = {CropKind::automatic, CropKind::pad, CropKind::resized};
  return {.data_dir = options.data_dir,
          .limit_train = to_size(options.limit_train),
          .limit_test = to_size(options.limit_test),
          .seed = run.seed(),
          .threads = static_cast<std::size_t>(run.share.threads),
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

void load_data(Run& run) {
  run.data = load_dataset(run.options.dataset, data_request(run));
  run.data_hash = content_hash(run.data);
  const auto ranks = static_cast<std::size_t>(run.comm.size());
  if (run.data.train->count() < ranks) {
    throw_error(ErrorKind::data,
                "{} ranks for {} training images: every rank needs at least one; start fewer ranks "
                "or raise --limit-train",
                ranks, run.data.train->count());
  }
  run.global_batch = run.resume ? run.resume->head.number("global_batch")
                                : to_size(run.options.global_batch_of(run.comm.size()));
  run.batches = run.options.batch_schedule;
  run.rounds = run.options.sync_every;
  check_batches(run.options, run.global_batch, run.comm.size(), run.resume.has_value());
}

// Ranks with different images would train without any error. Their files may also differ in size,
// so this check comes before anything that depends on the number of images.
void agree_on_data(Run& run) {
  struct Summary {
    std::uint64_t hash, train, test;
  };
  const std::vector<Summary> all =
      run.comm.all_gather(Summary{run.data_hash, std::uint64_t{run.data.train->count()},
                                  std::uint64_t{run.data.test->count()}});
  // What most ranks have is taken to be right; if no set leads, rank 0's is.
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
      fmt::format("the data of rank {} on {} differ from those of the other ranks: it "
                  "has {}, the others have {}; every host needs the same files in "
                  "--data-dir {}",
                  rank, run.comm.hosts()[rank], tell(*odd), tell(usual), run.options.data_dir));
}

// The measured link, or the one that --throttle makes if that is slower.
void measure_network(Run& run) {
  run.link = probe_link(run.comm);
  const double throttle = run.options.throttle.bit_per_s;
  if (throttle > 0) run.link.bytes_per_s = std::min(run.link.bytes_per_s, throttle / 8);
}

// The size of buckets for these tensors: as given, or an earlier run's, or one for the network that
// was measured.
std::size_t choose_buckets(const Run& run, std::span<const TensorSlot> tensors) {
  if (run.options.bucket_mb > 0) return static_cast<std::size_t>(run.options.bucket_mb * 1e6);
  if (run.choices.bucket_bytes > 0) return run.choices.bucket_bytes;
  if (run.link.bytes_per_s == 0) return 1'000'000;  // --help of --bucket-mb says it
  return choose_bucket_bytes(run.link, static_cast<std::size_t>(run.comm.size()),
                             run.options.compress.codec, tensors);
}

// Where a GPU's gradients are encoded, if an option or an earlier run decides it.
ExchangePath exchange_path(const Run& run) {
  if (run.options.gpu_exchange == Options::GpuExchange::host) return ExchangePath::host;
  if (run.options.gpu_exchange == Options::GpuExchange::device) return ExchangePath::device;
  if (run.choices.exchange_path.empty()) return ExchangePath::automatic;
  return run.choices.exchange_path == "device" ? ExchangePath::device : ExchangePath::host;
}

GradientSyncOptions sync_options(const Run& run) {
  const Options& options = run.options;
  GradientSyncOptions sync;
  sync.compress = options.compress.with_velocities(run.sends_velocities());
  sync.compress_warmup = to_size(options.compress_warmup);
  sync.exact_tensors = names_in(options.compress_exclude);
  sync.is_one_host = run.comm.local_size() == run.comm.size();
  sync.choose_bucket_bytes = [&run](std::span<const TensorSlot> tensors) {
    return choose_buckets(run, tensors);
  };
  sync.overlap = options.overlap;
  sync.path = exchange_path(run);
  sync.link_bytes_per_s = run.link.bytes_per_s;
  sync.link_latency_s = run.link.latency_s;
  sync.planned_bits = run.choices.planned_bits;
  sync.reducer.topology = options.topology;
  if (run.link.bytes_per_s > 0) {
    sync.reducer.window =
        choose_window(run.link, options.compress.codec, sync.reducer.segment_bytes);
  }
  sync.reducer.seed = run.seed();
  sync.reducer.comm_timeout_s = options.comm_timeout_s;
  sync.reducer.stop_wish = &StopNotice::wish();
  sync.reducer.throttle_bits_per_s = options.throttle.bit_per_s;
  if (run.trace) sync.reducer.trace = run.trace->exchange();
  return sync;
}

void make_replica(Run& run) {
  const Options& options = run.options;
  if (options.trace != "none") run.trace = std::make_unique<RunTrace>(options);
  ReplicaOptions replica = {
      .activation_type = activation_type(options),
      .normalization = run.data.train->normalization(),
      .seed = run.seed(),
      .label_smoothing = options.label_smoothing,
      .optimizer = optimizer_options(options),
      .groups = group_options(options),
      .accumulates = options.accumulate > 1 || run.batches.kind != BatchSchedule::Kind::fixed,
      .averages = {.ema_decay = options.ema,
                   .lookahead_every = checked_cast<std::uint64_t>(options.lookahead_every),
                   .lookahead_share = options.lookahead_share},
      .exchange = options.exchange,
      .batch_norm_ranks = options.sync_bn ? static_cast<std::size_t>(run.comm.size()) : 1,
      .rounds = round_options(options, run.rounds, run.comm.size()),
      .sync = sync_options(run),
      .trace = run.trace ? run.trace->loop() : nullptr};
  const ImageSource& images = *run.data.train;
  run.replica = std::make_unique<Replica>(
      *run.device,
      net::make_model(options.model, {.image = images.shape(), .classes = images.classes()}),
      replica);
}

// A GPU leaves the processor to the loader. On a CPU the layers' threads are busy everywhere, but
// they are quickest if images never keep them waiting.
std::size_t loader_threads(const Run& run) {
  if (run.options.loader_threads > 0) return to_size(run.options.loader_threads);
  if (!run.data.is_decoded) return 1;
  const double cores = run.share.cores_per_rank;
  const double wanted = run.device->kind() == DeviceKind::cuda ? cores : cores / 2;
  return static_cast<std::size_t>(std::clamp(wanted, 1.0, 16.0));
}

void make_loaders(Run& run) {
  LoaderOptions loader = {.global_batch = run.global_batch,
                          .rank = static_cast<std::size_t>(run.comm.rank()),
                          .ranks = static_cast<std::size_t>(run.comm.size()),
                          .parts = run.parts(),
                          .largest_batch = run.largest_part,
                          .seed = run.seed(),
                          .augment = augmentation_rule(run.options, run.data.train->shape()),
                          .threads = loader_threads(run)};
  if (run.device->kind() == DeviceKind::cuda) {
    loader.is_raw = true;
    loader.allocate = [&run](std::size_t bytes) { return run.device->allocate_host(bytes); };
  }
  run.train_loader = std::make_unique<Loader>(*run.data.train, loader);
  loader.global_batch = run.test_batch();
  loader.parts = 1;
  loader.largest_batch = 0;
  loader.order = SampleOrder::in_order;
  loader.augment = std::nullopt;
  run.test_loader = std::make_unique<Loader>(*run.data.test, loader);
}

void make_schedule(Run& run) {
  const Options& options = run.options;
  const double scaling = run.rate_factor(static_cast<double>(run.planned_ranks) *
                                         static_cast<double>(options.accumulate));
  run.schedule = schedule_options(options, scaling, run.train_loader->steps());
  const std::size_t steps = run.schedule.epochs * run.schedule.steps_per_epoch;
  if (run.trace) check_traced_steps(options, steps);
}

void make_exporter(Run& run) {
  if (run.options.export_file == "none" || run.comm.rank() != 0) return;
  const ImageSource& images = *run.data.train;
  const bool is_of_run = run.resume && run.resume->head.has("option.export") &&
                         run.resume->head.get("option.export") == run.options.export_file;
  const auto earlier = is_of_run            ? WeightsExporter::Earlier::continued
                       : run.options.resume ? WeightsExporter::Earlier::moved
                                            : WeightsExporter::Earlier::refused;
  run.exporter =
      std::make_unique<WeightsExporter>(run.options.export_file,
                                        WeightsFile{.model = run.options.model,
                                                    .classes = images.classes(),
                                                    .image = images.shape(),
                                                    .normalization = images.normalization(),
                                                    .last = {},
                                                    .best = {}},
                                        earlier);
  if (!run.exporter->warning().empty()) run.progress.warn(run.exporter->warning());
}

void make_recorder(Run& run) {
  run.recorder = std::make_unique<Recorder>(
      RunDescription{.options = &run.options,
                     .comm = &run.comm,
                     .share = run.share,
                     .device = run.device.get(),
                     .why_no_gpu = run.why_no_gpu,
                     .network = &run.replica->network(),
                     .exchange_path = run.replica->sync().path(),
                     .cpu_sends_velocities = auto_sends_velocities(run.options, DeviceKind::cpu),
                     .ranks_on_gpu = run.ranks_on_gpu,
                     .link = run.link,
                     .bucket_bytes = run.replica->sync().bucket_bytes(),
                     .data = &run.data,
                     .data_hash = run.data_hash,
                     .buckets = run.replica->sync().buckets(),
                     .global_batch = run.global_batch,
                     .steps_per_epoch = run.train_loader->steps(),
                     .resume = run.resume ? &*run.resume : nullptr,
                     .progress = &run.progress});
}

}  // namespace

void check_batches(const Options& options, std::size_t global_batch, int ranks, bool goes_on) {
  const std::size_t least = static_cast<std::size_t>(ranks) * to_size(options.accumulate);
  if (goes_on && global_batch < least) {
    throw_error(
        ErrorKind::usage,
        "{} ranks: the run in --checkpoint {} has {} images in a step, and every rank needs "
        "one{}; start at most {} ranks",
        ranks, options.checkpoint, global_batch,
        options.accumulate > 1 ? " in each of its parts" : "",
        global_batch / to_size(options.accumulate));
  }
  if (options.batch_schedule.all(global_batch).front() < least) {
    throw_error(ErrorKind::usage,
                "--batch-schedule {}: must have batches of {} images or more, so that each rank "
                "has an image in a step",
                options.batch_schedule.given, least);
  }
}

void check_traced_steps(const Options& options, std::size_t steps) {
  if (to_size(options.trace_first) < steps) return;
  throw_error(ErrorKind::usage,
              "--trace-steps {}:{}: the run has {} steps, so that there is nothing to trace; "
              "allowed: FIRST from 0 to {}",
              options.trace_first, options.trace_steps, steps, steps - 1);
}

Run::Run(const Options& run_options, Communicator& communicator, Progress& run_progress,
         Purpose purpose)
    : options(run_options), comm(communicator), progress(run_progress) {
  comm.set_activity("the choice of devices");
  share = take_cpu_share(comm, checked_cast<int>(options.threads));
  together_on_hosts(comm, [&] { choose_device(*this); });
  agree_on_device(*this);
  agree_on_processors(comm, options, *device);
  planned_ranks = to_size(options.planned_ranks_of(comm.size()));
  comm.set_activity("the search for a checkpoint");
  if (options.has_checkpoints()) find_checkpoint(*this);
  comm.set_activity("the loading of data");
  together_on_hosts(comm, [&] { load_data(*this); });
  agree_on_data(*this);
  if (resume) compare_with_checkpoint(*this);
  if (options.takes_choices_from_a_log()) {
    agree_on_earlier_choices(options, comm, *device, test_batch(), resume.has_value(), choices);
  }
  comm.set_activity("the measurement of the network");
  if (options.autotune != "off" && exchanges()) measure_network(*this);
  comm.set_activity("the making of the network");
  together(comm, kDptrainNames, [&] { make_replica(*this); });
  plan_parts(*this);
  if (purpose == Purpose::training) {
    together(comm, kDptrainNames, [&] { check_single_images(*this); });
  }
  together(comm, kDptrainNames, [&] {
    make_loaders(*this);
    make_schedule(*this);
    make_exporter(*this);
  });
  initialise_from_data(*data.train, comm, *device, replica->network());
  if (options.init != "none" && !resume) {
    load_initial_weights(options, comm, *device, replica->network());
  }
  replica->reset_averages();
  comm.set_activity("the choice of algorithms");
  prepare_batch_sizes(*this);
  comm.set_activity("the making of the log");
  make_recorder(*this);
  comm.set_activity("the start of the exchange");
  replica->connect(comm);
  recorder->attach(replica->sync().reducer());
  replica->sync().reducer().run([](Communicator& c) { c.set_activity({}); });
  if (trace) {
    trace->start(replica->network(), resume ? resume->checkpoint.step : 0,
                 parts_of(batches.all(global_batch).back()));
  }
}

}  // namespace dp
