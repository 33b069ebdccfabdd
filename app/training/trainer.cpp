// The training loop, in this order: run() with its epochs; a step; the work between epochs;
// stopping on request. trainer_checkpoints.cpp has the functions of checkpoints.
#include "app/training/trainer.hpp"

#include <cmath>
#include <set>
#include <sstream>
#include <utility>

#include "app/process/option_names.hpp"
#include "app/process/run_status.hpp"
#include "app/process/stop_notice.hpp"
#include "app/training/evaluation.hpp"
#include "app/training/not_finite.hpp"
#include "comm/replica_hash.hpp"
#include "kernels/base/error.hpp"

namespace dp {

namespace {

constexpr const char* kExportedWeights = "the file of exported weights";
constexpr const char* kTrace = "the trace";

}  // namespace

Trainer::Trainer(const Options& options, Communicator& comm, RunSink& progress)
    : run_(options, comm, progress),
      options_(options),
      replica_(*run_.replica),
      recorder_(*run_.recorder),
      rounds_(run_.plan, replica_, recorder_),
      shares_(run_) {}

std::string Trainer::run(
    const std::function<void(Run&, SharePlan&, RoundPlan&)>& before_first_step) {
  recorder_.print_start();
  if (before_first_step) before_first_step(run_, shares_, rounds_);
  if (options_.has_checkpoints()) begin_checkpoints();
  const std::size_t first_epoch = resume();
  RunStatus::say_plan(static_cast<std::uint64_t>(std::llround(all_steps())));
  RunStatus::say_images(shares_.images_text(run_.plan.global_batch));
  RunStatus::say_start(global_step_);
  if (global_step_ == 0) shares_.record_first();
  for (std::size_t epoch = first_epoch; epoch < run_.plan.schedule.epochs; ++epoch) {
    epoch_clock_.lap();
    train_epoch(epoch);
    if (must_stop_ && tally_.steps < tally_.steps_of_epoch) stop();
    note_loss(epoch);
    const double epoch_s = tally_.earlier_s + epoch_clock_.lap();
    check_replicas();
    const EvaluationResult result = evaluate(replica_, *run_.test_loader, shares_.now());
    tally_.gaps = replica_.sync().take_delivery_gaps();
    tally_.in_flight_s = recorder_.record_epoch(tally_, epoch_s, result, epoch_clock_.lap());
    tell_bad_images();
    if (run_.exporter) export_weights(result);
    is_between_epochs_ = true;
    if ((must_stop_ || result.stop_wishes > 0) && epoch + 1 < run_.plan.schedule.epochs) stop();
    checkpoint_if_due(true);
  }
  if (checkpoints_) end_checkpoints();
  if (first_epoch > 0 && first_epoch >= run_.plan.schedule.epochs) {
    recorder_.say(fmt::format("all {} epochs were trained earlier", run_.plan.schedule.epochs));
    if (options_.export_file != "none") {
      tally_.epoch = first_epoch - 1;
      const EvaluationResult result = evaluate(replica_, *run_.test_loader, shares_.now());
      if (run_.exporter) export_weights(result);
    }
  }
  if (run_.plan.schedule.epochs == 0) {
    recorder_.say_evaluation(evaluate(replica_, *run_.test_loader, shares_.now()));
    tell_bad_images();
  }
  if (options_.test_augment != Options::TestAugment::off) {
    recorder_.record_test_augmentation(
        evaluate_augmented(options_, replica_, *run_.test_loader, shares_.now()));
  }
  if (run_.trace && !run_.trace->is_written()) write_trace();
  recorder_.finish();
  replica_.sync().reducer().run([&](Communicator& comm) { replica_.policy().finish(comm); });
  return recorder_.missing_files();
}

void Trainer::train_epoch(std::size_t epoch) {
  Loader& loader = *run_.train_loader;
  plan_batch(epoch);
  if (!is_resumed_in_epoch_) rounds_.choose(epoch, tally_);
  if (!std::exchange(is_resumed_in_epoch_, false)) {
    tally_ = {.epoch = epoch};
    tally_.global_batch = batch_;
    tally_.steps_of_epoch = loader.steps();
    tally_.checkpoint_s = std::exchange(checkpoint_s_, 0.0);
  }
  is_between_epochs_ = false;
  tell_learning_rate();
  loader.start_epoch(epoch, tally_.steps);
  replica_.begin_epoch(epoch, learning_rate(), rounds_.steps_in(epoch));
  tally_.window = replica_.policy().window();
  tally_.is_judged_alone = replica_.policy().judged() == StateShare::own;
  if (run_.trace) {
    run_.trace->begin_epoch(replica_.sync().reducer(), global_step_, loader.steps());
  }
  replica_.clock().begin();
  is_loaded_ = false;
  for (std::size_t s = tally_.steps; s < loader.steps(); ++s) {
    StopNotice::set_place(epoch + 1, run_.plan.schedule.epochs, s + 1, loader.steps());
    step();
    if (must_stop_) return;
    // The checkpoint at the end of an epoch is written later, after the epoch's evaluation.
    if (s + 1 < loader.steps()) checkpoint_if_due(false);
  }
}

// Sets this epoch's batch size, which a schedule may change.
void Trainer::plan_batch(std::size_t epoch) {
  const std::size_t before = batch_;
  batch_ = run_.plan.batches.batch_of(epoch, run_.plan.global_batch, first_loss_, last_loss_);
  const std::size_t parts = run_.plan.parts_of(batch_);
  run_.train_loader->set_batch(batch_, parts);
  if (before == 0 || batch_ == before) return;
  const double growth = static_cast<double>(batch_) / static_cast<double>(run_.plan.global_batch);
  std::string why;
  if (run_.plan.batches.kind == BatchSchedule::Kind::dynamic) {
    why = fmt::format("; the training loss was {:.3f} in epoch 1 and {:.3f} in epoch {}",
                      first_loss_, last_loss_, epoch);
  }
  recorder_.say(fmt::format(
      "epoch {}: {} images per step instead of {} ({} ranks, {} part{} each), learning rate x "
      "{:.3g}{}",
      epoch + 1, batch_, before, run_.plan.ranks, parts, parts == 1 ? "" : "s",
      run_.plan.rate_factor(growth), why));
}

// Stores the epoch's mean loss over all ranks, which a dynamic schedule of batches needs.
void Trainer::note_loss(std::size_t epoch) {
  if (run_.plan.batches.kind != BatchSchedule::Kind::dynamic) return;
  const LossSums& mine = tally_.loss;
  last_loss_ = replica_.sync().reducer().run([&](Communicator& comm) {
    const double loss = comm.all_sum(mine.loss);
    return loss / static_cast<double>(comm.all_sum(mine.samples));
  });
  if (epoch == 0) first_loss_ = last_loss_;
}

// ---- a step: train, judge, record ---------------------------------------------------------------

void Trainer::step() {
  const StepPlace place = place_of_step();
  replica_.policy().plan_step(place);
  // Computes the gradients of this rank's part of the batch. Their buckets go to the reducer's
  // thread while backward still runs. await_sums() may have to wait for the exchange; on a GPU that
  // thread may then enqueue the update.
  double data_s = 0;
  const std::size_t parts = run_.train_loader->parts();
  for (std::size_t part = 0; part < parts; ++part) {
    const bool is_last_part = part + 1 == parts;
    data_s += take_batch(part == 0);
    replica_.compute(global_step_, is_last_part, place_in_run(0) / all_steps());
    load_ahead(is_last_part, place.is_last());
  }
  const StepVerdict verdict =
      replica_.await_sums(data_s, Replica::UpdateNumbers{place.learning_rate, place.progress});
  if (judge(verdict)) {
    replica_.update(place.learning_rate, place.progress);
  } else {
    replica_.skip_update();
  }

  const SyncResult result = replica_.policy().end_step(verdict, place);
  note_exchanges(result);
  replica_.clock().updated();

  record_step(place.is_last());
  must_stop_ = replica_.policy().agree_on_stop(global_step_, result.stop);
}

// Takes this step's batch, or the next part of it. Returns how long the loop has waited: 0 if the
// batch was loaded ahead.
double Trainer::take_batch(bool is_first_part) {
  const double waited_s = is_loaded_ ? 0.0 : load_next();
  is_loaded_ = false;
  if (is_first_part) tally_.samples += static_cast<std::int64_t>(loaded_global_samples_);
  return waited_s;
}

// Loads the next batch during this exchange, if the loader has it ready.
void Trainer::load_ahead(bool is_last_part, bool is_last_step) {
  replica_.await_loaded();
  if (is_last_part) shares_.before_load(global_step_ + 1);
  if (!(is_last_part && is_last_step) && run_.train_loader->is_ready()) load_next();
}

// The number of steps before this step (offset 0), or up to its end (offset 1). Steps are counted
// as if each epoch had as many as the first one, so the result may be a fraction.
double Trainer::place_in_run(std::size_t offset) const {
  const auto per_epoch = static_cast<double>(run_.plan.schedule.steps_per_epoch);
  return static_cast<double>(tally_.epoch) * per_epoch +
         static_cast<double>(tally_.steps + offset) *
             (per_epoch / static_cast<double>(tally_.steps_of_epoch));
}

StepPlace Trainer::place_of_step() const {
  return {.step = global_step_,
          .in_epoch = tally_.steps,
          .of_epoch = tally_.steps_of_epoch,
          .learning_rate = learning_rate(),
          .progress = place_in_run(1) / all_steps()};
}

// Learning-rate factor for the current batch size.
double Trainer::batch_factor() const {
  return run_.plan.rate_factor(static_cast<double>(batch_) /
                               static_cast<double>(run_.plan.global_batch));
}

// Learning rate of the running step.
double Trainer::learning_rate() const {
  return net::learning_rate_at(run_.plan.schedule, place_in_run(0)) * batch_factor();
}

double Trainer::all_steps() const {
  return static_cast<double>(run_.plan.schedule.steps_per_epoch) *
         static_cast<double>(run_.plan.schedule.epochs);
}

// Whether to update the parameters. A gradient that is not finite would spoil them, so its step is
// skipped. With an exchange at every step, all ranks have the same sums and so the same verdict.
// Otherwise each rank judges its own gradient.
bool Trainer::judge(const StepVerdict& verdict) {
  tally_.step_loss = replica_.loss();
  tally_.learning_rate = learning_rate();
  if (replica_.policy().judge(verdict, tally_.step_loss)) {
    if (std::isfinite(tally_.step_loss.loss)) tally_.loss += tally_.step_loss;
    skipped_in_a_row_ = 0;
    return true;
  }
  const bool is_of_all = !tally_.is_judged_alone;
  recorder_.note_skipped_step(global_step_,
                              is_of_all ? describe_not_finite(replica_, run_.comm, verdict)
                                        : describe_own_not_finite(replica_, run_.comm),
                              is_of_all);
  ++tally_.skipped_steps;
  if (!is_of_all) ++tally_.own_skipped_steps;
  if (++skipped_in_a_row_ < kMostSkippedSteps) return false;
  const std::string message = fmt::format(
      "the gradient was not finite in {} steps in a row, up to step {}: try a smaller --lr, "
      "--clip-norm or --warmup-epochs",
      kMostSkippedSteps, global_step_);
  if (!is_of_all) throw Error(ErrorKind::data, message);
  recorder_.gather_steps();
  throw AgreedError(ErrorKind::data, message);
}

// Reports lost exchanges. All ranks have already gone back to their last common parameters.
void Trainer::note_exchanges(const SyncResult& result) {
  tally_.has_exchanged = result.has_exchanged;
  if (run_.plan.exchanges()) tally_.exchanges += result.exchanges;
  for (const LostExchange& lost : result.lost) {
    recorder_.note_lost_round(global_step_, describe_not_finite(replica_, run_.comm, lost.verdict));
    tally_.skipped_steps += lost.steps;
    if (lost.in_a_row < kMostSkippedSteps) continue;
    recorder_.gather_steps();
    throw AgreedError(ErrorKind::data,
                      fmt::format("the change of the parameters was not finite in {} rounds in a "
                                  "row, up to step {}: try a smaller --lr or outer-lr=, or "
                                  "--clip-norm",
                                  kMostSkippedSteps, global_step_));
  }
}

void Trainer::record_step(bool is_last) {
  ++global_step_;
  ++tally_.steps;
  RunStatus::say_step(global_step_);
  // Replicas may differ between two exchanges, so only steps with an exchange are checked.
  if (options_.check_replicas == Options::ReplicaCheck::step && tally_.has_exchanged) {
    check_replicas();
  }
  // A row of the log needs the times of its step. A trace needs the times of the last step in it.
  const bool ends_trace = run_.trace && run_.trace->ends_after(global_step_);
  const bool begins_last_round = tally_.begins_last_round(rounds_.steps_in(tally_.epoch));
  const bool is_due = is_last || begins_last_round || recorder_.wants_step(global_step_) ||
                      recorder_.wants_step(global_step_ + 1) || ends_trace ||
                      shares_.is_due(global_step_);
  tally_.is_under_way = replica_.policy().is_under_way();
  tally_.rate = tally_.has_exchanged ? replica_.sync().rate_report() : RateReport{};
  if (std::isfinite(tally_.rate.mean_bits())) {
    tally_.bits_sum += tally_.rate.mean_bits();
    ++tally_.rated_steps;
  }
  const LoopTimes times = replica_.clock().take(is_due);
  tally_.times += times;
  if (begins_last_round) {
    tally_.inner_exposed_s = tally_.times.exposed_comm;
    tally_.inner_exchanges = tally_.exchanges;
  }
  recorder_.record_step(tally_, times, global_step_);
  shares_.end_step(global_step_, times, batch_);
  if (ends_trace) write_trace();
}

// Takes the next batch from the loader. Returns how long that took.
double Trainer::load_next() {
  LapClock clock;
  const Batch& batch = run_.train_loader->next();
  const double waited_s = clock.lap();
  loaded_global_samples_ = batch.global_samples;
  replica_.prepare(batch.samples, net::Mode::training);  // shares may have changed
  replica_.load(batch);
  is_loaded_ = true;
  return waited_s;
}

// ---- between epochs -----------------------------------------------------------------------------

// Reports images that some rank could not decode and replaced. A rank notes an image only once, but
// several ranks may note the same image.
void Trainer::tell_bad_images() {
  if (!run_.data.train->may_have_notes()) return;
  std::string mine;
  for (const auto* images : {&run_.data.train, &run_.data.test}) {
    for (const std::string& note : (*images)->take_notes()) mine += note + "\n";
  }
  std::set<std::string> notes;
  replica_.sync().reducer().run([&](Communicator& comm) {
    for (const std::string& text : comm.gather(mine)) {
      std::istringstream lines(text);
      for (std::string line; std::getline(lines, line);) notes.insert(line);
    }
  });
  recorder_.note_images({notes.begin(), notes.end()});
}

void Trainer::check_replicas() {
  // Without an exchange the replicas differ anyway.
  if (options_.check_replicas == Options::ReplicaCheck::off || !options_.exchange) return;
  StateList state;
  replica_.list_state(state);
  tally_.replica_hash = replica_.sync().reducer().run([&](Communicator& comm) {
    return agree_on_state(comm, state.blocks, run_.machine.device.get());
  });
}

// All ranks have the same weights to export; rank 0 writes them.
void Trainer::export_weights(const EvaluationResult& result) {
  WeightSet weights = collect_evaluated_weights(replica_);
  weights.epoch = static_cast<std::int64_t>(tally_.epoch);
  weights.test_accuracy = result.accuracy();
  weights.test_loss = result.mean_loss();
  try {
    const StopNotice::Hold hold;
    with_option_names(kDptrainNames, [&] { run_.exporter->write(std::move(weights)); });
    recorder_.note_written(kExportedWeights);
  } catch (const Error& error) {
    recorder_.note_missing(kExportedWeights, error.what());
  }
}

void Trainer::write_trace() {
  // If the trace cannot be written, run() tries once more at the end.
  const RunTrace::Report report = run_.trace->write(replica_.sync().reducer());
  if (!report.text.empty()) recorder_.say(report.text);
  if (report.failure.empty()) {
    recorder_.note_written(kTrace);
  } else {
    recorder_.note_missing(kTrace, report.failure);
  }
  replica_.clock().begin();  // writing the trace belongs to no step
}

// ---- stopping on request ------------------------------------------------------------------------

// Called between two steps or two epochs, at the same place on all ranks.
void Trainer::stop() {
  const bool is_in_epoch = tally_.steps < tally_.steps_of_epoch;
  if (is_in_epoch && options_.export_file != "none") {
    average_statistics(replica_, shares_.now());
    if (run_.exporter) export_weights({});  // these weights were not evaluated
  }
  if (run_.trace && !run_.trace->is_written()) write_trace();
  recorder_.gather_steps();
  if (checkpoints_) end_checkpoints();
  recorder_.finish(false);
  // No rank leaves while other ranks still need it.
  replica_.sync().reducer().run([&](Communicator& comm) {
    replica_.policy().finish(comm);
    comm.barrier();
  });
  const std::string place = is_in_epoch ? fmt::format("step {} of {} in epoch {}", tally_.steps,
                                                      tally_.steps_of_epoch, tally_.epoch + 1)
                                        : fmt::format("epoch {}", tally_.epoch + 1);
  const std::string stopped =
      fmt::format("stopped on request after {} of {}; ", place, run_.plan.schedule.epochs);
  const auto newest = checkpoints_ ? checkpoints_->newest() : std::nullopt;
  if (newest) {
    throw AgreedError(ErrorKind::stopped,
                      fmt::format("{}the checkpoint of step {} is in {}: the same command with "
                                  "--resume continues from it",
                                  stopped, newest->step, options_.checkpoint));
  }
  if (checkpoints_) {
    throw AgreedError(ErrorKind::data, fmt::format("{}no checkpoint could be written into {}",
                                                   stopped, options_.checkpoint));
  }
  throw AgreedError(ErrorKind::stopped,
                    stopped +
                        "there are no checkpoints (--checkpoint DIR), so the same command starts "
                        "anew");
}

}  // namespace dp
