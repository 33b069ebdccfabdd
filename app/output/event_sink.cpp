#include "app/output/event_sink.hpp"

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "app/process/stop_notice.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

constexpr const char* kName = "a part of the events for TensorBoard";  // among the missing files

// All options that are set, as a table in Markdown.
std::string options_table(const Options& options) {
  std::string text = "| option | value |\n|---|---|\n";
  for (const auto& [name, value] : options.resolved()) {
    if (!value.empty()) text += fmt::format("| {} | {} |\n", name, value);
  }
  return text;
}

}  // namespace

EventSink::EventSink(const RunDescription& run, MissingFiles& missing)
    : file_(run.options->tensorboard), missing_(missing) {
  const Options& o = *run.options;
  const StopNotice::Hold hold;
  if (o.resume) {
    // Without a checkpoint the run does all steps again, from the first one.
    const std::uint64_t done = run.resume != nullptr ? run.resume->checkpoint.step : 0;
    file_.add_start(static_cast<std::int64_t>(done) + 1);
  }
  std::vector<std::pair<std::string, std::string>> settings;
  for (const auto& [name, value] : o.resolved()) {
    for (const char* shown : {"model", "dataset", "optimizer", "lr", "batch-size", "global-batch",
                              "compress", "topology", "sync-every", "seed", "precision"}) {
      if (name == shown && !value.empty()) settings.emplace_back(name, value);
    }
  }
  settings.emplace_back("ranks", std::to_string(run.comm->size()));
  file_.add_settings(settings);
  file_.add_text("options", options_table(o));
  file_.add_text("command", command_line());
  if (run.resume != nullptr) {
    save();
    return;
  }
  try {
    file_.save();
  } catch (const Error& error) {
    throw_error(error.kind(), "--tensorboard {}: {}", o.tensorboard, error.what());
  }
}

void EventSink::save() {
  const StopNotice::Hold hold;
  try {
    file_.save();
    missing_.note_written(kName);
  } catch (const Error& error) {
    missing_.note_missing(kName, error.what());
  }
}

void EventSink::logged_steps(std::span<const StepRow> rows) {
  for (const StepRow& row : rows) {
    file_.add_scalars(row.step, {{"step/train_loss", row.train_loss},
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
  }
  if (file_.is_save_due()) save();
}

void EventSink::epoch(const EpochEnd& epoch) {
  const EpochRow& row = epoch.row;
  const TimesAndBytes& times = row.times;
  file_.add_scalars(static_cast<std::int64_t>(epoch.global_step),
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
  save();
}

}  // namespace dp
