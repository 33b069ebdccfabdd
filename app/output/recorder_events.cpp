// The recorder's event files, which TensorBoard reads.
#include "app/output/recorder.hpp"
#include "app/process/stop_notice.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

// All options that are set, as a table in Markdown.
std::string options_table(const Options& options) {
  std::string text = "| option | value |\n|---|---|\n";
  for (const auto& [name, value] : options.resolved()) {
    if (!value.empty()) text += fmt::format("| {} | {} |\n", name, value);
  }
  return text;
}

}  // namespace

void Recorder::open_events() {
  const Options& o = *run_.options;
  if (o.tensorboard == "none") return;
  const StopNotice::Hold hold;
  events_.emplace(o.tensorboard);
  if (o.resume) {
    // Without a checkpoint everything is done once more.
    const std::uint64_t done = run_.resume != nullptr ? run_.resume->checkpoint.step : 0;
    events_->add_start(static_cast<std::int64_t>(done) + 1);
  }
  std::vector<std::pair<std::string, std::string>> settings;
  for (const auto& [name, value] : o.resolved()) {
    for (const char* shown : {"model", "dataset", "optimizer", "lr", "batch-size", "global-batch",
                              "compress", "topology", "sync-every", "seed", "precision"}) {
      if (name == shown && !value.empty()) settings.emplace_back(name, value);
    }
  }
  settings.emplace_back("ranks", std::to_string(run_.comm->size()));
  events_->add_settings(settings);
  events_->add_text("options", options_table(o));
  events_->add_text("command", command_line());
  if (run_.resume != nullptr) return save_events();
  try {
    events_->save();
  } catch (const Error& error) {
    throw_error(error.kind(), "--tensorboard {}: {}", o.tensorboard, error.what());
  }
}

void Recorder::save_events() {
  const StopNotice::Hold hold;
  try {
    events_->save();
    note_written(kEventsName);
  } catch (const Error& error) {
    note_missing(kEventsName, error.what());
  }
}

void Recorder::add_events(const StepRow& row) {
  if (!events_) return;
  events_->add_scalars(row.step, {{"step/train_loss", row.train_loss},
                                  {"step/learning_rate", row.learning_rate},
                                  {"step/step_s", row.step_s},
                                  {"step/compute_s", row.compute_s},
                                  {"step/exposed_comm_s", row.exposed_comm_s},
                                  {"step/comm_s", row.comm_s},
                                  {"step/sent_bytes", static_cast<double>(row.sent_bytes)},
                                  {"step/wished_bits", row.wished_bits},
                                  {"step/planned_bits", row.planned_bits},
                                  {"step/partial_bits", row.partial_bits},
                                  {"step/total_bits", row.total_bits}});
  if (events_->is_save_due()) save_events();
}

void Recorder::add_events(const EpochEnd& epoch) {
  if (!events_) return;
  const EpochRow& row = epoch.row;
  const TimesAndBytes& times = row.times;
  events_->add_scalars(static_cast<std::int64_t>(steps_done_),
                       {{"epoch", static_cast<double>(row.epoch) + 1},
                        {"loss/train", row.train_loss},
                        {"loss/test", row.test_loss},
                        {"accuracy/train", row.train_accuracy},
                        {"accuracy/test", row.test_accuracy},
                        {"learning_rate", row.learning_rate},
                        {"global_batch", static_cast<double>(row.global_batch)},
                        {"images_per_s", epoch.images_per_s},
                        {"time/epoch_s", times.epoch_s},
                        {"time/compute_s", times.compute_s},
                        {"time/exposed_comm_s", times.exposed_comm_s},
                        {"time/comm_s", times.comm_s},
                        {"time/data_s", times.data_s},
                        {"time/other_s", times.other_s},
                        {"time/eval_s", times.eval_s},
                        {"exchange/sent_bytes", static_cast<double>(times.sent_bytes)},
                        {"exchange/bits_per_value", epoch.bits_per_value},
                        {"exchange/codec_relative_error", row.codec_relative_error},
                        {"exchange/delivered_relative_error", row.delivered_relative_error},
                        {"exchange/residual_norm", row.residual_norm},
                        {"skipped_steps", static_cast<double>(row.skipped_steps)}});
  save_events();
}

}  // namespace dp
