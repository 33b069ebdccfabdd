// What the recorder tells the run's progress: start, steps, epochs, end.
#include <limits>

#include "app/output/recorder.hpp"

namespace dp {
namespace {

double per_second(double amount, double seconds) { return seconds > 0 ? amount / seconds : 0.0; }

}  // namespace

void Recorder::print_start() {
  if (!is_speaker()) return;
  for (const std::string& warning : run_.data->warnings) warn(warning);
  run_.progress->start({.run = run_,
                        .devices = devices_,
                        .bucket_bytes = expected_bytes_,
                        .log = log_ ? log_->path() : std::string()});
}

void Recorder::say(const std::string& line) {
  if (is_speaker()) run_.progress->note(line);
}

void Recorder::say_checkpoint(std::uint64_t step, const std::string& folder) {
  if (is_speaker()) run_.progress->checkpoint(step, folder);
}

void Recorder::record_test_augmentation(const EvaluationResult& result) {
  if (!is_speaker()) return;
  const double loss = result.mean_loss(), accuracy = result.accuracy();
  const std::string kind =
      run_.options->test_augment == Options::TestAugment::mirror ? "mirror" : "shift";
  run_.progress->evaluation(
      {.loss = loss, .accuracy = accuracy, .images = result.samples, .augmentation = kind});
  if (!log_) return;
  log_->set_attribute("/", "test_augment", kind);
  log_->set_attribute("/", "augmented_test_loss", loss);
  log_->set_attribute("/", "augmented_test_accuracy", accuracy);
  save_log();
}

void Recorder::say_evaluation(const EvaluationResult& result) {
  if (!is_speaker()) return;
  run_.progress->evaluation({.loss = result.mean_loss(),
                             .accuracy = result.accuracy(),
                             .images = result.samples,
                             .augmentation = {}});
}

void Recorder::tell_live_step(const EpochTally& tally) {
  if (!run_.progress->is_live()) return;
  const Options& o = *run_.options;
  const double elapsed_s = tally.times.step();
  const auto done = static_cast<double>(tally.steps);
  const double step_s = per_second(elapsed_s, done);
  // An evaluation is expected to take as long as the last one.
  const double eval_s = epochs_.empty() ? 0.0 : epochs_.back().times.eval_s;
  const auto epochs = static_cast<std::size_t>(o.epochs);
  const double epochs_left = static_cast<double>(epochs - tally.epoch);
  const double left_s = step_s * (static_cast<double>(tally.steps_of_epoch) * epochs_left - done) +
                        eval_s * epochs_left;
  // Bytes that this rank sends in a step: the mean of the last epoch or, in the first epoch, the
  // bytes that the plan gives.
  double sent = 0;
  if (!epochs_.empty()) {
    sent = per_second(static_cast<double>(epochs_.back().times.sent_bytes),
                      epoch_steps_.back() * run_.comm->size());
  } else if (o.compress_warmup > 0) {
    sent = std::numeric_limits<double>::quiet_NaN();
  } else {
    for (const auto& bytes : expected_bytes_) {
      sent += bytes ? static_cast<double>(*bytes) : std::numeric_limits<double>::quiet_NaN();
    }
    sent *= per_second(static_cast<double>(tally.exchanges), done);
  }
  run_.progress->live_step(
      {.epoch = tally.epoch + 1,
       .epochs = epochs,
       .step = tally.steps,
       .steps = tally.steps_of_epoch,
       .loss = per_second(tally.loss.loss, static_cast<double>(tally.loss.samples)),
       .images_per_s = per_second(static_cast<double>(tally.samples), elapsed_s),
       .sent_bytes_per_s = per_second(sent * done, elapsed_s),
       .left_s = left_s});
}

void Recorder::tell_epoch(const EpochRow& row, const EpochTally& tally) {
  note_loss(row);
  const EpochEnd end = {
      .row = row,
      .epochs = static_cast<std::size_t>(run_.options->epochs),
      .steps = epoch_steps_.back(),
      .fp32_bytes = fp32_bytes(epoch_steps_.back()),
      .images_per_s = per_second(static_cast<double>(row.samples), row.times.epoch_s),
      .bits_per_value = tally.bits_per_value()};
  run_.progress->epoch(end);
  add_events(end);
}

// What a ring without compression would send in that many steps, without headers.
double Recorder::fp32_bytes(double steps) const {
  const auto gradient = 4.0 * static_cast<double>(run_.network->parameters().size());
  return 2.0 * (run_.comm->size() - 1.0) * gradient * steps;
}

void Recorder::tell_end() {
  std::vector<double> fp32;
  for (const double steps : epoch_steps_) fp32.push_back(fp32_bytes(steps));
  const bool is_whole = log_ && !missing_.contains(kLogName);
  run_.progress->training_end({.run = run_,
                               .epochs = epochs_,
                               .fp32_bytes = fp32,
                               .log = is_whole ? log_->path() : std::string()});
}

}  // namespace dp
