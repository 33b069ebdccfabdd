// The recorder's log as a file: how it begins, what happens if it cannot be written.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string_view>

#include "app/options/options_values.hpp"
#include "app/output/recorder.hpp"
#include "app/process/build_info.hpp"
#include "app/process/option_names.hpp"
#include "app/process/stop_notice.hpp"
#include "kernels/base/error.hpp"

namespace dp {

void Recorder::open_log() {
  const net::Parameters& parameters = run_.network->parameters();
  RunInfo info;
  info.dptrain_version = DP_VERSION;
  info.git_revision = git_revision();
  info.command_line = command_line();
  info.mpi_version = mpi_version();
  info.world_size = static_cast<std::size_t>(run_.comm->size());
  info.hosts = log_hosts_;
  info.devices = devices_;
  info.codec_names = codec_names_;
  info.topology_names = topology_names_;
  info.config = run_.options->resolved();
  info.model_name = run_.options->model;
  info.parameters = parameters.size();
  info.gradient_bytes = parameters.size() * sizeof(float);
  info.buckets = run_.buckets.size();
  info.has_steps = run_.options->log_steps > 0;
  const StopNotice::Hold hold;
  log_ = make_log(info);
  first_epoch_ = info.first_epoch;
  if (run_.resume == nullptr) logged_epochs_ = 0;
  StopNotice::set_log(log_->path());
  log_->set_attribute("/", "cores_per_rank", run_.share.cores_per_rank);
  log_->set_attribute("/", "threads_per_rank", run_.device->threads());
  log_->set_attribute("/", "exchange_path", run_.exchange_path);
  log_->set_attribute("/", "link_bytes_per_s", run_.link.bytes_per_s);
  log_->set_attribute("/", "link_latency_s", run_.link.latency_s);
  log_->set_attribute("/", "link_uncertainty", run_.link.uncertainty);
  log_->set_attribute("/", "bucket_bytes", static_cast<double>(run_.bucket_bytes));
  log_->set_attribute("/", "data_hash", fmt::format("{:016x}", run_.data_hash));
  write_nominal_link();
  log_->set_attribute("/model", "algorithms", run_.device->tuning().export_text());
  save_log();
}

void Recorder::save_log(std::optional<bool> is_finished) {
  const StopNotice::Hold hold;
  try {
    with_option_names(kDptrainNames,
                      [&] { is_finished ? log_->close(*is_finished) : log_->save(); });
    note_log_saved();
  } catch (const Error& error) {
    note_log_failure(error.what());
  }
}

// Writes what the link was set to, which is known if --throttle or the lab made it slow; the lab
// tells its hosts by environment variables. If there are two rates, the lower one counts.
void Recorder::write_nominal_link() {
  double rate = std::numeric_limits<double>::infinity();
  for (const auto& [variable, attribute] :
       {std::pair{"DPTRAIN_LINK_BIT_PER_S", "nominal_bit_per_s"},
        std::pair{"DPTRAIN_LINK_DELAY_S", "nominal_delay_s"},
        std::pair{"DPTRAIN_LINK_LOSS", "nominal_loss"},
        std::pair{"DPTRAIN_LINK_SHARED", "nominal_is_shared"}}) {
    const char* text = std::getenv(variable);
    if (text == nullptr) continue;
    double value = 0;
    const char* end = text + std::strlen(text);
    const auto [stop, error] = std::from_chars(text, end, value);
    if (error != std::errc() || stop != end) continue;
    if (std::string_view(attribute) == "nominal_bit_per_s") {
      rate = value;
    } else {
      log_->set_attribute("/", attribute, value);
    }
  }
  const double throttle = run_.options->throttle.bit_per_s;
  if (throttle > 0) rate = std::min(rate, throttle);
  if (std::isfinite(rate)) log_->set_attribute("/", "nominal_bit_per_s", rate);
}

void Recorder::record_prediction(const StepForecast& forecast, double bits) {
  if (!is_speaker()) return;
  run_.progress->prediction(forecast, bits);
  if (!log_) return;
  log_->set_attribute("/", "predicted_step_s", forecast.step_s);
  log_->set_attribute("/", "predicted_exposed_comm_s", forecast.exposed_s);
  log_->set_attribute("/", "predicted_sent_bytes", forecast.sent_bytes);
  if (std::isfinite(bits)) log_->set_attribute("/", "predicted_bits", bits);
  save_log();
}

void Recorder::write_tensors(const EpochTally& tally) {
  if (tally.gaps.empty()) return;
  std::vector<std::string> names;
  std::vector<std::int64_t> elements;
  for (const Bucket& bucket : run_.buckets) {
    for (const TensorSlot& tensor : bucket.tensors) {
      names.push_back(tensor.name);
      elements.push_back(static_cast<std::int64_t>(tensor.elements()));
    }
  }
  std::vector<TensorRow> rows;
  for (const DeliveryGaps::Gap& gap : tally.gaps) {
    rows.push_back({.epoch = static_cast<std::int64_t>(tally.epoch),
                    .tensor = static_cast<std::int64_t>(gap.tensor),
                    .elements = elements.at(gap.tensor),
                    .waiting = static_cast<std::int64_t>(gap.now),
                    .longest_wait = static_cast<std::int64_t>(gap.longest)});
  }
  log_->set_attribute("/", "tensor_names", names);
  log_->append(std::span<const TensorRow>(rows));
}

void Recorder::note_log_failure(const std::string& why) {
  note_missing(kLogName, why, "training goes on, and the next epoch tries again");
}

void Recorder::note_log_saved() {
  logged_epochs_ = epochs_.empty() ? first_epoch_ : epochs_.back().epoch + 1;
  if (missing_.erase(kLogName) == 0) return;
  warn(fmt::format("the log {} is whole again", log_->path()));
}

// Of a log that could not be written to the end: what its file lacks.
std::string Recorder::missing_part_of_log() const {
  std::error_code ignored;
  if (!std::filesystem::exists(log_->path(), ignored)) return "is missing";
  if (!logged_epochs_) return "is as an earlier start has left it";
  const std::int64_t done = epochs_.empty() ? *logged_epochs_ : epochs_.back().epoch + 1;
  if (*logged_epochs_ < done) return fmt::format("has only {} of {} epochs", *logged_epochs_, done);
  return "has all epochs, but not the end of the run";
}

}  // namespace dp
