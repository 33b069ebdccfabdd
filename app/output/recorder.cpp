#include "app/output/recorder.hpp"

#include <utility>

#include "app/process/option_names.hpp"
#include "app/process/rank_main.hpp"
#include "app/process/stop_notice.hpp"

namespace dp {

Recorder::Recorder(RunDescription run)
    : run_(std::move(run)),
      console_(is_speaker() ? *run_.progress : nobody_),
      missing_(console_),
      warnings_(run_, console_),
      account_(run_),
      step_rows_(run_.options->log_steps, run_.comm->size()),
      sinks_{&console_} {
  LogLists lists(run_, run_.comm->gather(run_.device->description()));
  devices_ = lists.devices;
  together(*run_.comm, kDptrainNames, [&] {
    if (!is_speaker()) return;
    const StopNotice::Hold hold;
    if (run_.options->log != "none") {
      sinks_.push_back(&log_.emplace(run_, std::move(lists), console_, missing_));
    }
    if (run_.options->tensorboard != "none") {
      sinks_.push_back(&events_.emplace(run_, missing_));
    }
  });
}

void Recorder::attach(Reducer& reducer) {
  reducer_ = &reducer;
  if (log_) log_->attach(reducer);
  account_.attach(reducer);
}

void Recorder::print_start() {
  for (const std::string& warning : run_.data->warnings) console_.warn(warning);
  const RunStart start = {.run = run_,
                          .devices = devices_,
                          .bucket_bytes = account_.expected_bytes(),
                          .log = log_ ? log_->path() : std::string()};
  report([&](RunSink& sink) { sink.start(start); });
}

void Recorder::record_prediction(const StepForecast& forecast, double bits) {
  report([&](RunSink& sink) { sink.prediction(forecast, bits); });
}

void Recorder::record_round_steps(const std::string& steps) {
  report([&](RunSink& sink) { sink.round_steps(steps); });
}

void Recorder::record_shares(std::span<const ShareRow> rows, const std::string& why) {
  report([&](RunSink& sink) { sink.shares(rows, why); });
}

void Recorder::say(const std::string& line) {
  report([&](RunSink& sink) { sink.note(line); });
}

void Recorder::say_checkpoint(std::uint64_t step, const std::string& folder) {
  report([&](RunSink& sink) { sink.checkpoint(step, folder); });
}

void Recorder::record_test_augmentation(const EvaluationResult& result) {
  const bool is_mirror = run_.options->test_augment == Options::TestAugment::mirror;
  record_evaluation(result, is_mirror ? "mirror" : "shift");
}

void Recorder::record_evaluation(const EvaluationResult& result, const std::string& augmentation) {
  const EvaluationEnd end = {.loss = result.mean_loss(),
                             .accuracy = result.accuracy(),
                             .images = result.samples,
                             .augmentation = augmentation};
  report([&](RunSink& sink) { sink.evaluation(end); });
}

void Recorder::record_step(const EpochTally& tally, const LoopTimes& times,
                           std::uint64_t global_step) {
  end_step_row();
  steps_done_ = global_step;
  // Asks only after steps that are logged or precede a logged step, because asking makes work for
  // the reducer's thread.
  if ((wants_step(global_step) || wants_step(global_step + 1)) && !tally.is_under_way) {
    account_.ask_costs();
  }
  if (wants_step(global_step)) step_rows_.begin(tally, times, global_step);
  if (!tally.is_under_way && step_rows_.are_due()) gather_steps();
  if (is_speaker()) warnings_.note_rate(tally);
  if (console_.is_live()) console_.live_step(account_.live_step(tally));
}

void Recorder::gather_steps() {
  end_step_row();
  const std::vector<StepRow> rows = step_rows_.gather(*reducer_);
  if (rows.empty()) return;
  report([&](RunSink& sink) { sink.logged_steps(rows); });
}

double Recorder::record_epoch(const EpochTally& tally, double epoch_s,
                              const EvaluationResult& result, double eval_s) {
  gather_steps();
  account_.collect();
  const double in_flight_s = account_.comm_s();
  if (const auto rows = account_.end_epoch(tally, epoch_s, result, eval_s)) {
    report([&](RunSink& sink) { sink.epoch_rows(*rows); });
    warnings_.note_loss(rows->epoch);
    const EpochEnd end = account_.last_epoch(tally, steps_done_);
    report([&](RunSink& sink) { sink.epoch(end); });
    if (tally.is_judged_alone) {
      warnings_.note_skipped_by_others(tally.epoch, rows->own_skipped_steps);
    }
  }
  account_.share_epoch();
  return in_flight_s;
}

std::string Recorder::missing_files() const {
  return is_speaker() ? missing_.sentence() : std::string();
}

void Recorder::list_state(StateVisitor& visitor) {
  end_step_row();
  account_.collect();
  account_.list_state(visitor);
}

void Recorder::put_back_epochs() {
  if (log_) log_->put_back(account_.epochs());
}

std::vector<std::byte> Recorder::log_image(CheckpointHead& head) const {
  return log_ ? log_->image(head) : std::vector<std::byte>();
}

void Recorder::finish(bool is_complete) {
  report([&](RunSink& sink) { sink.close(is_complete); });
  const std::vector<double> fp32 = account_.fp32_bytes();
  const bool is_whole = log_ && !missing_.contains(LogSink::kName);
  const TrainingEnd end = {.run = run_,
                           .epochs = account_.epochs(),
                           .fp32_bytes = fp32,
                           .log = is_whole ? log_->path() : std::string()};
  report([&](RunSink& sink) { sink.training_end(end); });
}

}  // namespace dp
