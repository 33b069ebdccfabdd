#include "app/trainer.hpp"

#include <algorithm>
#include <cmath>

#include "app/earlier_choices.hpp"
#include "app/options_values.hpp"
#include "app/stop_notice.hpp"
#include "comm/link_probe.hpp"
#include "comm/replica_hash.hpp"
#include "io/sampler.hpp"
#include "kernels/base/error.hpp"
#include "net/models/registry.hpp"

namespace dp {

namespace {

// So many steps in a row without a finite gradient end the run.
constexpr int kMostSkippedSteps = 5;

std::size_t to_size(std::int64_t value) { return checked_cast<std::size_t>(value); }

DatasetKind kind_of(Options::Dataset dataset) {
  switch (dataset) {
    case Options::Dataset::cifar10:
      return DatasetKind::cifar10;
    case Options::Dataset::cifar100:
      return DatasetKind::cifar100;
    case Options::Dataset::synthetic:
      break;
  }
  return DatasetKind::synthetic;
}

net::ScheduleKind kind_of(Options::LrSchedule schedule) {
  switch (schedule) {
    case Options::LrSchedule::step:
      return net::ScheduleKind::step;
    case Options::LrSchedule::cosine:
      return net::ScheduleKind::cosine;
    case Options::LrSchedule::onecycle:
      return net::ScheduleKind::onecycle;
    case Options::LrSchedule::constant:
      break;
  }
  return net::ScheduleKind::constant;
}

}  // namespace

// ---- the run ----------------------------------------------------------------------------------

void Trainer::run() {
  recorder_->print_start();
  for (std::size_t epoch = 0; epoch < schedule_.epochs; ++epoch) {
    LapClock epoch_clock;
    train_epoch(epoch);
    const double epoch_s = epoch_clock.lap();
    check_replicas();
    const EvaluationResult result = evaluate();
    recorder_->record_epoch(tally_, epoch_s, result, epoch_clock.lap());
  }
  if (trace_ && !trace_->is_written()) write_trace();
  recorder_->finish();
}

void Trainer::train_epoch(std::size_t epoch) {
  tally_ = {.epoch = epoch};
  train_loader_->start_epoch(epoch);
  replica_->begin_epoch(epoch);
  if (trace_) trace_->begin_epoch(replica_->sync().reducer(), global_step_, train_loader_->steps());
  replica_->begin_times();
  is_loaded_ = false;
  for (std::size_t s = 0; s < train_loader_->steps(); ++s) {
    StopNotice::set_place(epoch + 1, schedule_.epochs, s + 1, train_loader_->steps());
    const double data_s = is_loaded_ ? 0.0 : load_next();
    // Once an epoch the sums are compared with the exact ones.
    if (s == train_loader_->steps() / 2 && exchanges()) replica_->sync().reducer().sample_error();
    step(data_s, s + 1 == train_loader_->steps());
  }
}

// One step: gradients of this rank's part of the batch, their exchange, the update. Buckets go to
// the reducer's thread while backward still computes; exchange() is where this thread may have to
// stand still.
void Trainer::step(double data_s, bool is_last) {
  const std::size_t global_samples = loaded_global_samples_;
  is_loaded_ = false;
  replica_->compute(global_step_);
  replica_->await_loaded();
  // The next batch is on its way while this one is exchanged, if it is there.
  if (!is_last && train_loader_->is_ready()) load_next();
  StepVerdict verdict = replica_->exchange(data_s);
  tally_.step_loss = replica_->loss();
  // Otherwise it is seen in the gradients, by all ranks.
  if (!options_.exchange) verdict.finite = std::isfinite(tally_.step_loss.loss);
  tally_.learning_rate = net::learning_rate_at(schedule_, global_step_);
  if (verdict.finite) {
    replica_->update(tally_.learning_rate);
    tally_.loss += tally_.step_loss;
    skipped_in_a_row_ = 0;
  } else {
    replica_->skip_update();
    recorder_->note_skipped_step(global_step_);
    ++tally_.skipped_steps;
    if (++skipped_in_a_row_ >= kMostSkippedSteps) {
      const std::string message = fmt::format(
          "the gradient was not finite in {} steps in a row, up to step {}: try a "
          "smaller --lr, --clip-norm or --warmup-epochs",
          kMostSkippedSteps, global_step_);
      if (options_.exchange) throw AgreedError(ErrorKind::data, message);
      throw Error(ErrorKind::data, message);
    }
  }

  ++global_step_;
  ++tally_.steps;
  tally_.samples += static_cast<std::int64_t>(global_samples);
  if (options_.check_replicas == Options::ReplicaCheck::step) check_replicas();
  // A row of the log wants the times of its own step, and a trace those of its last.
  const bool ends_trace = trace_ && trace_->ends_after(global_step_);
  const bool is_due = is_last || recorder_->wants_step(global_step_) ||
                      recorder_->wants_step(global_step_ + 1) || ends_trace;
  const LoopTimes times = replica_->take_times(is_due);
  tally_.times += times;
  recorder_->record_step(tally_, times, global_step_);
  if (ends_trace) write_trace();
}

// Takes the next batch from the loader and says how long that took.
double Trainer::load_next() {
  LapClock clock;
  const Batch& batch = train_loader_->next();
  const double waited_s = clock.lap();
  loaded_global_samples_ = batch.global_samples;
  replica_->load(batch);
  is_loaded_ = true;
  return waited_s;
}

EvaluationResult Trainer::evaluate() {
  average_statistics();
  LossSums sums;
  test_loader_->start_epoch(0);
  for (std::size_t s = 0; s < test_loader_->steps(); ++s) {
    replica_->load(test_loader_->next());
    sums += replica_->evaluate();
  }
  return replica_->sync().reducer().run([&](Communicator& comm) {
    return EvaluationResult{.loss = comm.all_sum(sums.loss),
                            .correct = comm.all_sum(sums.correct),
                            .samples = comm.all_sum(sums.samples)};
  });
}

// Evaluation uses the mean over ranks of the running statistics; each rank's own go on untouched.
void Trainer::average_statistics() {
  net::Parameters& parameters = replica_->network().parameters();
  const std::vector<float> mine = to_host(*device_, parameters.training_statistics());
  std::vector<double> sums(mine.begin(), mine.end());
  replica_->sync().reducer().run([&](Communicator& comm) { comm.all_sum(sums); });
  std::vector<float> mean(sums.size());
  for (std::size_t i = 0; i < mean.size(); ++i) {
    mean[i] = static_cast<float>(sums[i] / static_cast<double>(comm_.size()));
  }
  device_->upload(parameters.evaluation_statistics().data(), mean.data(),
                  mean.size() * sizeof(float));
}

void Trainer::check_replicas() {
  // Without an exchange they differ.
  if (options_.check_replicas == Options::ReplicaCheck::off || !options_.exchange) return;
  const std::span<float> values = replica_->network().parameters().values();
  std::vector<float> copy;
  if (device_->kind() != DeviceKind::cpu) copy = to_host(*device_, values);
  const std::span<const float> on_host = copy.empty() ? std::span<const float>(values) : copy;
  tally_.replica_hash = replica_->sync().reducer().run(
      [&](Communicator& comm) { return agree_on_hash(comm, on_host); });
}

void Trainer::write_trace() {
  const RunTrace::Report report = trace_->write(replica_->sync().reducer());
  if (!report.text.empty()) recorder_->say(report.text);
  if (!report.failure.empty()) recorder_->note_missing("the trace", report.failure);
  replica_->begin_times();  // the writing is part of no step
}

// ---- set-up -----------------------------------------------------------------------------------

Trainer::Trainer(const Options& options, Communicator& comm) : options_(options), comm_(comm) {
  share_ = take_cpu_share(comm, checked_cast<int>(options.threads));
  comm_.together([&] { choose_device(); });
  agree_on_device();
  comm_.together([&] { load_data(); });
  agree_on_data();
  if (options_.takes_choices_from_a_log()) {
    choices_ = agree_on_earlier_choices(options_, comm_, *device_, global_batch_);
  }
  if (options_.autotune != "off" && exchanges()) measure_network();
  comm_.together([&] { make_replica(); });
  prepare_batch_sizes();
  make_recorder();
  replica_->connect(comm_);
  recorder_->attach(replica_->sync().reducer());
  if (trace_) trace_->start(replica_->network(), global_step_);
}

void Trainer::choose_device() {
  DeviceKind kind = DeviceKind::cpu;
  if (options_.device == Options::Device::cuda) kind = DeviceKind::cuda;
  if (options_.device == Options::Device::automatic && count_gpus(&why_no_gpu_) > 0) {
    kind = DeviceKind::cuda;
  }
  if (kind == DeviceKind::cpu && options_.precision == Options::Precision::tf32) {
    throw_error(ErrorKind::device,
                "--precision tf32: a CPU has no such arithmetic; allowed with --device cpu: fp32, "
                "bf16");
  }
  if (kind == DeviceKind::cpu && options_.gpu_exchange == Options::GpuExchange::device) {
    throw_error(ErrorKind::usage,
                "--gpu-exchange device: this run computes on a CPU; allowed with it: auto, host");
  }
  device_ = make_device({.kind = kind,
                         .threads = share_.threads,
                         .tune = options_.measures_algorithms(),
                         .index = comm_.local_rank(),
                         .allow_tf32 = options_.precision == Options::Precision::tf32});
  if (!device_->supports(activation_type())) {
    throw_error(ErrorKind::device,
                "--precision bf16: {} on {} has no AVX512-BF16; allowed here: fp32",
                device_->description(), comm_.host());
  }
}

// One run trains on one kind of device: their arithmetic differs in the last bits.
void Trainer::agree_on_device() {
  const std::string mine = device_->kind() == DeviceKind::cuda ? "a GPU" : "the CPU";
  const std::vector<std::string> kinds = comm_.gather(mine), reasons = comm_.gather(why_no_gpu_);
  comm_.together([&] {
    for (std::size_t r = 1; r < kinds.size(); ++r) {  // rank 0 alone has the lists
      if (kinds[r] == kinds[0]) continue;
      const std::size_t without = kinds[0] == "the CPU" ? 0 : r;
      throw_error(ErrorKind::device,
                  "--device auto: rank 0 computes on {}, rank {} on {} (on {}: {}); all ranks of a "
                  "run need the same kind: use --device cpu, or cuda where every host has one",
                  kinds[0], r, kinds[r], comm_.hosts()[without], reasons[without]);
    }
  });
}

void Trainer::load_data() {
  data_ = load_dataset({.kind = kind_of(options_.dataset),
                        .data_dir = options_.data_dir,
                        .limit_train = to_size(options_.limit_train),
                        .limit_test = to_size(options_.limit_test),
                        .seed = seed(),
                        .threads = static_cast<std::size_t>(share_.threads)});
  data_hash_ = content_hash(data_);
  const auto ranks = static_cast<std::size_t>(comm_.size());
  if (data_.train.count() < ranks) {
    throw_error(ErrorKind::data,
                "{} ranks for {} training images: every rank needs at least one; start fewer ranks "
                "or raise --limit-train",
                ranks, data_.train.count());
  }
  global_batch_ = to_size(options_.global_batch_of(comm_.size()));
}

// Ranks that learn from different images would train on without a word. Their files may differ in
// size, too, so this comes before anything that depends on the number of images.
void Trainer::agree_on_data() {
  struct Summary {
    std::uint64_t hash, train, test;
  };
  const std::vector<Summary> all = comm_.all_gather(
      Summary{data_hash_, std::uint64_t{data_.train.count()}, std::uint64_t{data_.test.count()}});
  // What most ranks have is taken for right, rank 0's where no set leads.
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
                  rank, comm_.hosts()[rank], tell(*odd), tell(usual), options_.data_dir));
}

// Through the link that --throttle makes, where it is the slower one.
void Trainer::measure_network() {
  link_ = probe_link(comm_);
  const double throttle = parse_bit_rate("--throttle", options_.throttle);
  if (throttle > 0) link_.bytes_per_s = std::min(link_.bytes_per_s, throttle / 8);
}

std::size_t Trainer::bucket_bytes() const {
  if (options_.bucket_mb > 0) return static_cast<std::size_t>(options_.bucket_mb * 1e6);
  if (choices_.bucket_bytes > 0) return choices_.bucket_bytes;
  if (link_.bytes_per_s == 0) return 1'000'000;
  return choose_bucket_bytes(link_, static_cast<std::size_t>(comm_.size()),
                             parse_codec_spec(options_.compress));
}

void Trainer::make_replica() {
  ReplicaOptions replica;
  replica.activation_type = activation_type();
  replica.seed = seed();
  replica.label_smoothing = options_.label_smoothing;
  replica.sgd = {.momentum = static_cast<float>(options_.momentum),
                 .weight_decay = static_cast<float>(options_.weight_decay),
                 .has_nesterov = options_.nesterov,
                 .clip_norm = options_.clip_norm};
  replica.sync.compress = options_.compress;
  replica.sync.compress_warmup = to_size(options_.compress_warmup);
  for (std::size_t begin = 0; begin < options_.compress_exclude.size();) {
    const std::size_t end =
        std::min(options_.compress_exclude.find(',', begin), options_.compress_exclude.size());
    replica.sync.exact_tensors.push_back(options_.compress_exclude.substr(begin, end - begin));
    begin = end + 1;
  }
  replica.sync.is_one_host = comm_.local_size() == comm_.size();
  replica.sync.bucket_bytes = bucket_bytes();
  replica.exchange = options_.exchange;
  replica.sync.overlap = options_.overlap;
  replica.sync.path = options_.gpu_exchange == Options::GpuExchange::host ? ExchangePath::host
                      : options_.gpu_exchange == Options::GpuExchange::device
                          ? ExchangePath::device
                          : ExchangePath::automatic;
  if (replica.sync.path == ExchangePath::automatic && !choices_.exchange_path.empty()) {
    replica.sync.path =
        choices_.exchange_path == "device" ? ExchangePath::device : ExchangePath::host;
  }
  replica.sync.reducer.topology = options_.topology;
  replica.sync.reducer.seed = seed();
  replica.sync.reducer.comm_timeout_s = options_.comm_timeout_s;
  replica.sync.reducer.throttle_bits_per_s = parse_bit_rate("--throttle", options_.throttle);
  if (options_.trace != "none") {
    trace_ = std::make_unique<RunTrace>(options_);
    replica.trace = trace_->loop();
    replica.sync.reducer.trace = trace_->exchange();
  }
  replica_ = std::make_unique<Replica>(
      *device_, net::make_model(options_.model, data_.train.classes()), replica);

  LoaderOptions loader = {.global_batch = global_batch_,
                          .rank = static_cast<std::size_t>(comm_.rank()),
                          .ranks = static_cast<std::size_t>(comm_.size()),
                          .seed = seed(),
                          .augment = options_.augment,
                          .threads = to_size(options_.loader_threads)};
  if (device_->kind() == DeviceKind::cuda) {
    loader.is_raw = true;
    loader.allocate = [this](std::size_t bytes) { return device_->allocate_host(bytes); };
  }
  train_loader_ = std::make_unique<Loader>(data_.train, loader);
  loader.order = SampleOrder::in_order;
  loader.augment = false;
  test_loader_ = std::make_unique<Loader>(data_.test, loader);

  const double ranks = comm_.size();
  const double scaling = options_.lr_scaling == Options::LrScaling::linear ? ranks
                         : options_.lr_scaling == Options::LrScaling::sqrt ? std::sqrt(ranks)
                                                                           : 1.0;
  schedule_ = {.kind = kind_of(options_.lr_schedule),
               .learning_rate = options_.lr * scaling,
               .steps_per_epoch = train_loader_->steps(),
               .epochs = to_size(options_.epochs),
               .warmup_epochs = options_.warmup_epochs,
               .milestones = options_.lr_milestones,
               .gamma = options_.lr_gamma};
  const std::size_t steps = schedule_.epochs * schedule_.steps_per_epoch;
  if (trace_ && to_size(options_.trace_first) >= steps) {
    throw_error(ErrorKind::usage,
                "--trace-steps {}:{}: the run has {} steps, so that there is nothing to trace; "
                "allowed: FIRST from 0 to {}",
                options_.trace_first, options_.trace_steps, steps, steps - 1);
  }
}

// Plans the network for every batch size that will come: the full one and the uneven last one, in
// training and in evaluation, and the exchange. Rank 0 measures algorithms while the others wait,
// so that nothing disturbs the measurement, and all ranks use its choices.
void Trainer::prepare_batch_sizes() {
  const auto sampler_options = [&](bool is_training) {
    return SamplerOptions{.samples = (is_training ? data_.train : data_.test).count(),
                          .global_batch = global_batch_,
                          .rank = static_cast<std::size_t>(comm_.rank()),
                          .ranks = static_cast<std::size_t>(comm_.size()),
                          .seed = seed(),
                          .order = SampleOrder::in_order};
  };
  const auto prepare = [&] {
    for (const net::Mode mode : {net::Mode::training, net::Mode::evaluation}) {
      const Sampler sampler(sampler_options(mode == net::Mode::training));
      replica_->prepare(sampler.rank_samples(0), mode);
      replica_->prepare(sampler.rank_samples(sampler.steps() - 1), mode);
    }
    replica_->plan_exchange();
  };
  comm_.together([&] {
    const auto ranks_here = std::lround(share_.cores_on_host / share_.cores_per_rank);
    replica_->network().check_memory(Sampler(sampler_options(true)).rank_samples(0),
                                     static_cast<std::size_t>(ranks_here));
  });
  comm_.together([&] {
    if (comm_.rank() != 0) return;
    prepare();
    check_choices_are_complete(options_, choices_, *device_);
  });
  std::string choices = device_->tuning().export_text();
  comm_.broadcast(choices);
  comm_.together([&] {
    if (comm_.rank() == 0) return;
    device_->tuning().import_text(choices);
    prepare();
  });
}

void Trainer::make_recorder() {
  recorder_ = std::make_unique<Recorder>(RunDescription{.options = &options_,
                                                        .comm = &comm_,
                                                        .share = share_,
                                                        .device = device_.get(),
                                                        .why_no_gpu = why_no_gpu_,
                                                        .network = &replica_->network(),
                                                        .exchange_path = replica_->sync().path(),
                                                        .link = link_,
                                                        .bucket_bytes = bucket_bytes(),
                                                        .data = &data_,
                                                        .data_hash = data_hash_,
                                                        .buckets = replica_->sync().buckets(),
                                                        .global_batch = global_batch_,
                                                        .steps_per_epoch = train_loader_->steps()});
}

}  // namespace dp
