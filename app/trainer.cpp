#include "app/trainer.hpp"

#include <algorithm>
#include <cmath>

#include "comm/replica_hash.hpp"
#include "io/sampler.hpp"
#include "kernels/base/error.hpp"
#include "kernels/sgd.hpp"
#include "net/models/registry.hpp"

namespace dp {

namespace {

// So many steps in a row without a finite gradient end the run.
constexpr int kMostSkippedSteps = 5;

TensorView image_view(const Batch& batch) {
  const Shape shape = {batch.samples, kImageHeight, kImageWidth, kImageChannels};
  // Operations read images through the same view type that they write outputs through.
  return {TensorDesc::nhwc(shape), const_cast<float*>(batch.images.data())};
}

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
  recorder_->finish();
}

void Trainer::train_epoch(std::size_t epoch) {
  tally_ = {.epoch = epoch};
  clock_.lap();
  train_loader_->start_epoch(epoch);
  for (std::size_t s = 0; s < train_loader_->steps(); ++s) {
    const Batch& batch = train_loader_->next();
    step(batch, clock_.lap());
  }
}

// One step: gradients of this rank's part of the batch, their exchange, the update. Buckets go to
// the reducer's thread while backward still computes; wait_step() is where this thread may have to
// stand still.
void Trainer::step(const Batch& batch, double data_s) {
  step_times_ = {.data = data_s};
  tally_.step_loss = {};
  reducer_->begin_step(global_step_);
  buckets_->begin_step();
  if (batch.samples > 0) {
    compute_gradients(batch);
  } else {
    send_zero_gradients();
  }
  const StepVerdict verdict = reducer_->wait_step();
  step_times_.exposed_comm = clock_.lap();

  tally_.learning_rate = net::learning_rate_at(schedule_, global_step_);
  if (verdict.finite) {
    update_parameters();
    skipped_in_a_row_ = 0;
  } else {
    recorder_->note_skipped_step(global_step_);
    ++tally_.skipped_steps;
    if (++skipped_in_a_row_ >= kMostSkippedSteps) {
      throw AgreedError(ErrorKind::data,
                        fmt::format("the gradient was not finite in {} steps in a row, up to step "
                                    "{}: try a smaller --lr, --clip-norm or --warmup-epochs",
                                    kMostSkippedSteps, global_step_));
    }
  }
  step_times_.optimizer = clock_.lap();

  ++global_step_;
  ++tally_.steps;
  tally_.samples += static_cast<std::int64_t>(batch.global_samples);
  if (options_.check_replicas == Options::ReplicaCheck::step) check_replicas();
  step_times_.other = clock_.lap();
  tally_.times += step_times_;
  recorder_->record_step(tally_, step_times_, global_step_);
  tally_.times.other += clock_.lap();
}

void Trainer::compute_gradients(const Batch& batch) {
  const TensorView images = image_view(batch);
  const TensorView logits = network_->forward(images, net::Mode::training);
  // The gradient is divided by the samples of all ranks, so the exchange only adds.
  const LossSums sums = softmax_cross_entropy(
      *device_, logits, batch.labels, static_cast<float>(options_.label_smoothing),
      static_cast<double>(batch.global_samples), network_->logit_gradient());
  tally_.step_loss = sums;
  tally_.loss += sums;
  step_times_.forward = clock_.lap();
  network_->backward(images, tensor_final_);
  send_held_buckets();
  step_times_.backward = clock_.lap();
}

// A rank without samples in the last, uneven step takes part in the exchange all the same.
void Trainer::send_zero_gradients() {
  const std::span<float> gradients = network_->parameters().gradients();
  std::fill(gradients.begin(), gradients.end(), 0.0f);
  for (std::size_t t = 0; t < network_->parameters().tensors().size(); ++t) tensor_final_(t);
  send_held_buckets();
  step_times_.backward = clock_.lap();
}

// --overlap off: nothing leaves before backward has ended.
void Trainer::send_held_buckets() {
  if (options_.overlap) return;
  for (std::size_t b = 0; b < buckets_->buckets(); ++b) reducer_->bucket_ready(b);
}

void Trainer::update_parameters() {
  net::Parameters& parameters = network_->parameters();
  float scale = 1.0f;
  if (options_.clip_norm > 0) {
    // All ranks hold the same bits, so all clip alike.
    const double norm = std::sqrt(sum_of_squares(*device_, parameters.gradients()));
    if (norm > options_.clip_norm) scale = static_cast<float>(options_.clip_norm / norm);
  }
  sgd_update(*device_, parameters.values(), parameters.gradients(),
             {reinterpret_cast<float*>(velocity_.get()), parameters.size()},
             {.learning_rate = static_cast<float>(tally_.learning_rate),
              .momentum = static_cast<float>(options_.momentum),
              .weight_decay = static_cast<float>(options_.weight_decay),
              .has_nesterov = options_.nesterov,
              .gradient_scale = scale});
}

EvaluationResult Trainer::evaluate() {
  average_statistics();
  LossSums sums;
  test_loader_->start_epoch(0);
  for (std::size_t s = 0; s < test_loader_->steps(); ++s) {
    const Batch& batch = test_loader_->next();
    if (batch.samples == 0) continue;
    const TensorView logits = network_->forward(image_view(batch), net::Mode::evaluation);
    sums += softmax_cross_entropy(*device_, logits, batch.labels, 0.0f, 1.0, {});
  }
  return reducer_->run([&](Communicator& comm) {
    return EvaluationResult{.loss = comm.all_sum(sums.loss),
                            .correct = comm.all_sum(sums.correct),
                            .samples = comm.all_sum(sums.samples)};
  });
}

// Evaluation uses the mean over ranks of the running statistics; each rank's own go on untouched.
void Trainer::average_statistics() {
  const std::span<const float> mine = network_->parameters().training_statistics();
  std::vector<double> sums(mine.begin(), mine.end());
  reducer_->run([&](Communicator& comm) { comm.all_sum(sums); });
  const std::span<float> mean = network_->parameters().evaluation_statistics();
  for (std::size_t i = 0; i < mean.size(); ++i) {
    mean[i] = static_cast<float>(sums[i] / static_cast<double>(comm_.size()));
  }
}

void Trainer::check_replicas() {
  if (options_.check_replicas == Options::ReplicaCheck::off) return;
  tally_.replica_hash = reducer_->run(
      [&](Communicator& comm) { return agree_on_hash(comm, network_->parameters().values()); });
}

// ---- set-up -----------------------------------------------------------------------------------

Trainer::Trainer(const Options& options, Communicator& comm) : options_(options), comm_(comm) {
  share_ = take_cpu_share(comm.local_rank(), comm.local_size(), checked_cast<int>(options.threads));
  comm_.together([&] { make_device_and_data(); });
  comm_.together([&] { make_network(); });
  prepare_batch_sizes();
  make_exchange();
}

void Trainer::make_device_and_data() {
  device_ = make_device(
      {.kind = options_.device == Options::Device::cuda ? DeviceKind::cuda : DeviceKind::cpu,
       .threads = share_.threads,
       .tune = options_.tune});
  if (!device_->supports(activation_type())) {
    throw_error(ErrorKind::device,
                "--precision bf16: {} on {} has no AVX512-BF16; allowed here: fp32",
                device_->description(), comm_.host());
  }
  data_ = load_dataset({.kind = kind_of(options_.dataset),
                        .data_dir = options_.data_dir,
                        .limit_train = to_size(options_.limit_train),
                        .limit_test = to_size(options_.limit_test),
                        .seed = seed(),
                        .threads = static_cast<std::size_t>(share_.threads)});
  const auto ranks = static_cast<std::size_t>(comm_.size());
  if (data_.train.count() < ranks) {
    throw_error(ErrorKind::data,
                "{} ranks for {} training images: every rank needs at least one; start fewer ranks "
                "or raise --limit-train",
                ranks, data_.train.count());
  }
  global_batch_ = to_size(options_.global_batch_of(comm_.size()));
}

void Trainer::make_network() {
  network_ = std::make_unique<net::Network>(
      *device_, net::make_model(options_.model, data_.train.classes()), activation_type(), seed());
  velocity_ = device_->allocate(network_->parameters().size() * sizeof(float));
  LoaderOptions loader = {.global_batch = global_batch_,
                          .rank = static_cast<std::size_t>(comm_.rank()),
                          .ranks = static_cast<std::size_t>(comm_.size()),
                          .seed = seed(),
                          .augment = options_.augment,
                          .threads = to_size(options_.loader_threads)};
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
}

// Plans the network for every batch size that will come: the full one and the uneven last one, in
// training and in evaluation. Rank 0 measures algorithms while the others wait, so that nothing
// disturbs the measurement, and all ranks use its choices.
void Trainer::prepare_batch_sizes() {
  const auto prepare = [&] {
    for (const net::Mode mode : {net::Mode::training, net::Mode::evaluation}) {
      const bool is_training = mode == net::Mode::training;
      const Sampler sampler({.samples = (is_training ? data_.train : data_.test).count(),
                             .global_batch = global_batch_,
                             .rank = static_cast<std::size_t>(comm_.rank()),
                             .ranks = static_cast<std::size_t>(comm_.size()),
                             .seed = seed(),
                             .order = SampleOrder::in_order});
      network_->prepare(sampler.rank_samples(0), mode);
      network_->prepare(sampler.rank_samples(sampler.steps() - 1), mode);
    }
  };
  comm_.together([&] {
    if (comm_.rank() == 0) prepare();
  });
  std::string choices = device_->tuning().export_text();
  comm_.broadcast(choices);
  comm_.together([&] {
    if (comm_.rank() == 0) return;
    device_->tuning().import_text(choices);
    prepare();
  });
}

void Trainer::make_exchange() {
  net::Parameters& parameters = network_->parameters();
  std::vector<TensorSlot> slots;
  for (const net::Parameter& tensor : parameters.tensors()) {
    const std::size_t rows = tensor.shape[0];
    slots.push_back({.offset = tensor.offset,
                     .rows = rows,
                     .columns = tensor.elements / rows,
                     .is_1d = tensor.kind == net::ParameterKind::vector});
  }
  std::vector<Bucket> buckets =
      plan_buckets(slots, {.bucket_bytes = static_cast<std::size_t>(options_.bucket_mb * 1e6),
                           .codec = options_.compress});
  std::vector<std::size_t> bucket_of_tensor(slots.size());
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    for (std::size_t t = buckets[b].first_tensor; t < buckets[b].end_tensor; ++t) {
      bucket_of_tensor[t] = b;
    }
  }
  buckets_.emplace(std::move(bucket_of_tensor));

  recorder_ = std::make_unique<Recorder>(RunDescription{.options = &options_,
                                                        .comm = &comm_,
                                                        .share = share_,
                                                        .device = device_.get(),
                                                        .network = network_.get(),
                                                        .data = &data_,
                                                        .buckets = buckets,
                                                        .global_batch = global_batch_,
                                                        .steps_per_epoch = train_loader_->steps()});
  ReducerOptions exchange;
  exchange.seed = seed();
  exchange.comm_timeout_s = options_.comm_timeout_s;
  reducer_ = std::make_unique<Reducer>(comm_, parameters.gradients(), std::move(buckets), exchange);
  recorder_->attach(*reducer_);
  tensor_final_ = [this](std::size_t tensor) {
    buckets_->tensor_final(tensor, [this](std::size_t bucket) {
      if (options_.overlap) reducer_->bucket_ready(bucket);
    });
  };
}

}  // namespace dp
