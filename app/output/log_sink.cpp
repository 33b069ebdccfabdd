#include "app/output/log_sink.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <sstream>
#include <string_view>
#include <utility>

#include "app/options/options_values.hpp"
#include "app/process/build_info.hpp"
#include "app/process/option_names.hpp"
#include "app/process/stop_notice.hpp"
#include "comm/topologies/owner_weights.hpp"
#include "comm/topologies/topology.hpp"
#include "io/files/new_file.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

// Returns the position of a text in a list. If the list does not have the text yet, adds it.
std::size_t index_in(std::vector<std::string>& list, const std::string& text) {
  const auto it = std::find(list.begin(), list.end(), text);
  if (it != list.end()) return static_cast<std::size_t>(it - list.begin());
  list.push_back(text);
  return list.size() - 1;
}

// All texts of the list, one on each line.
std::string text_of(const std::vector<std::string>& list) {
  std::string text;
  for (const std::string& line : list) text += line + "\n";
  return text;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> list;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) list.push_back(line);
  return list;
}

}  // namespace

LogLists::LogLists(const RunDescription& run, const std::vector<std::string>& all_devices)
    : hosts(run.comm->hosts()) {
  if (run.resume != nullptr && !run.resume->log.empty()) {
    const CheckpointHead& head = run.resume->head;
    const std::vector<std::string> mine = std::exchange(hosts, lines_of(head.get("log.hosts")));
    devices = lines_of(head.get("log.devices"));
    codec_names = lines_of(head.get("log.codec_names"));
    topology_names = lines_of(head.get("log.topology_names"));
    const bool are_last =
        hosts.size() >= mine.size() && std::equal(mine.rbegin(), mine.rend(), hosts.rbegin());
    if (!are_last) hosts.insert(hosts.end(), mine.begin(), mine.end());
    first_host = hosts.size() - mine.size();
  }
  for (const std::string& device : all_devices) device_of_rank.push_back(index_in(devices, device));
  for (const Bucket& bucket : run.buckets) {
    index_in(codec_names, bucket.codec.text());
    index_in(topology_names, run.topology_of(bucket));
  }
}

LogSink::LogSink(const RunDescription& run, LogLists lists, RunSink& console, MissingFiles& missing)
    : run_(run), lists_(std::move(lists)), console_(console), missing_(missing), log_(open()) {
  StopNotice::set_log(log_.path());
  log_.set_attribute("/", "cores_per_rank", run.share.cores_per_rank);
  log_.set_attribute("/", "threads_per_rank", run.device->threads());
  log_.set_attribute("/", "exchange_path", run.exchange_path);
  log_.set_attribute("/", "link_bytes_per_s", run.link.bytes_per_s);
  log_.set_attribute("/", "link_latency_s", run.link.latency_s);
  log_.set_attribute("/", "link_uncertainty", run.link.uncertainty);
  log_.set_attribute("/", "owner_weights", owner_weights_text(run.owner_weights));
  log_.set_attribute("/", "bucket_bytes", static_cast<double>(run.bucket_bytes));
  log_.set_attribute("/", "data_hash", fmt::format("{:016x}", run.data_hash));
  write_nominal_link();
  log_.set_attribute("/model", "algorithms", run.device->tuning().export_text());
  save();
}

RunLog LogSink::open() {
  const net::Parameters& parameters = run_.network->parameters();
  RunInfo info;
  info.dptrain_version = DP_VERSION;
  info.git_revision = git_revision();
  info.command_line = command_line();
  info.mpi_version = mpi_version();
  info.world_size = static_cast<std::size_t>(run_.comm->size());
  info.hosts = lists_.hosts;
  info.devices = lists_.devices;
  info.codec_names = lists_.codec_names;
  info.topology_names = lists_.topology_names;
  info.config = run_.options->resolved();
  info.model_name = run_.options->model;
  info.parameters = parameters.size();
  info.gradient_bytes = parameters.size() * sizeof(float);
  info.buckets = run_.buckets.size();
  info.has_steps = run_.options->log_steps > 0;
  RunLog log = make(info);
  done_epochs_ = info.first_epoch;
  if (run_.resume == nullptr) saved_epochs_ = 0;
  return log;
}

// Continues a log that fits the checkpoint. Any other file with the log's name, such as the log of
// a start that wrote no checkpoint, is renamed.
RunLog LogSink::make(RunInfo& info) const {
  const std::string& wanted = run_.options->log;
  if (run_.resume != nullptr) {
    const ResumePoint& point = *run_.resume;
    info.resumed_from =
        fmt::format("step {} of {}", point.checkpoint.step, run_.options->checkpoint);
    info.first_epoch = static_cast<std::int64_t>(point.epoch() + (point.epoch_is_over() ? 1 : 0));
    info.first_step = static_cast<std::int64_t>(point.checkpoint.step);
    try {
      if (point.log.empty()) keep_earlier(wanted);
    } catch (const Error&) {  // a failing disk does not end a resumed run
    }
    return RunLog::resume(wanted, point.log, info);
  }
  if (run_.options->resume) keep_earlier(wanted);
  return RunLog::create(wanted, info);
}

// Renames a file that already has this name, and reports it.
void LogSink::keep_earlier(const std::string& path) const {
  if (path == "auto") return;
  const std::string moved = move_aside(Setting{"log"}, path);
  if (!moved.empty()) {
    console_.note(fmt::format("the log {} of an earlier start was renamed {}", path, moved));
  }
}

// Writes the nominal properties of the link. Its bandwidth is known if --throttle or the lab of
// simulated hosts (experiments/dplab) limits it. The lab passes its settings to the hosts in
// environment variables. If both limit the bandwidth, the lower limit counts.
void LogSink::write_nominal_link() {
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
      log_.set_attribute("/", attribute, value);
    }
  }
  const double throttle = run_.options->throttle.bit_per_s;
  if (throttle > 0) rate = std::min(rate, throttle);
  if (std::isfinite(rate)) log_.set_attribute("/", "nominal_bit_per_s", rate);
}

void LogSink::attach(const Reducer& reducer) {
  if (lists_.topology_names.empty()) return;
  std::vector<double> hops;
  for (const std::string& name : lists_.topology_names) {
    const std::size_t of_one = find_topology(name).hops(reducer.hosts().size(), reducer.hosts());
    hops.push_back(static_cast<double>(of_one));
  }
  log_.set_attribute("/", "topology_hops", std::span<const double>(hops));
  save();
}

void LogSink::prediction(const StepForecast& forecast, double bits) {
  log_.set_attribute("/", "predicted_step_s", forecast.step_s);
  log_.set_attribute("/", "predicted_exposed_comm_s", forecast.exposed_s);
  log_.set_attribute("/", "predicted_sent_bytes", forecast.sent_bytes);
  if (std::isfinite(bits)) log_.set_attribute("/", "predicted_bits", bits);
  save();
}

void LogSink::shares(std::span<const ShareRow> rows, std::string_view) {
  log_.append(rows);
  if (log_.is_save_due()) save();
}

void LogSink::logged_steps(std::span<const StepRow> rows) {
  log_.append(rows);
  if (log_.is_save_due()) save();
}

void LogSink::epoch_rows(const EpochRows& rows) {
  log_.append(rows.epoch);
  std::vector<RankRow> ranks = rows.ranks;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    ranks[r].host = static_cast<std::int64_t>(lists_.first_host + r);
    ranks[r].device = static_cast<std::int64_t>(lists_.device_of_rank[r]);
  }
  log_.append(std::span<const RankRow>(ranks));
  const std::size_t names = lists_.codec_names.size();
  std::vector<BucketRow> buckets = rows.buckets;
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    buckets[b].codec = static_cast<std::int64_t>(index_in(lists_.codec_names, rows.codecs[b]));
    buckets[b].topology = static_cast<std::int64_t>(
        index_in(lists_.topology_names, run_.topology_of(run_.buckets[b])));
  }
  // Codecs may be new to the list, because a warm-up uses codecs of its own.
  if (lists_.codec_names.size() > names) log_.set_list("codec_names", lists_.codec_names);
  log_.append(std::span<const BucketRow>(buckets));
  if (!rows.tensors.empty()) {
    std::vector<std::string> tensors;
    for (const Bucket& bucket : run_.buckets) {
      for (const TensorSlot& tensor : bucket.tensors) tensors.push_back(tensor.name);
    }
    log_.set_attribute("/", "tensor_names", tensors);
    log_.append(std::span<const TensorRow>(rows.tensors));
  }
  log_.set_attribute("/", "wire_bytes_are",
                     std::string(rows.is_wire_measured ? "measured" : "modelled"));
  done_epochs_ = rows.epoch.epoch + 1;
  save();
}

void LogSink::evaluation(const EvaluationEnd& result) {
  if (result.augmentation.empty()) return;
  log_.set_attribute("/", "test_augment", result.augmentation);
  log_.set_attribute("/", "augmented_test_loss", result.loss);
  log_.set_attribute("/", "augmented_test_accuracy", result.accuracy);
  save();
}

void LogSink::save(std::optional<bool> is_finished) {
  const StopNotice::Hold hold;
  try {
    with_option_names(kDptrainNames, [&] { is_finished ? log_.close(*is_finished) : log_.save(); });
    saved_epochs_ = done_epochs_;
    if (missing_.note_written(kName)) {
      console_.warn(fmt::format("the log {} is complete again", log_.path()));
    }
  } catch (const Error& error) {
    missing_.note_missing(kName, error.what(), "training goes on, and the next epoch tries again",
                          [this] { return missing_part(); });
  }
}

std::string LogSink::missing_part() const {
  std::error_code ignored;
  if (!std::filesystem::exists(log_.path(), ignored)) return "is missing";
  if (!saved_epochs_) return "was last written by an earlier start";
  if (*saved_epochs_ < done_epochs_) {
    return fmt::format("has only {} of {} epochs", *saved_epochs_, done_epochs_);
  }
  return "has all epochs, but not the end of the run";
}

std::vector<std::byte> LogSink::image(CheckpointHead& head) const {
  std::vector<std::byte> image = log_.image();
  head.set("log.path", log_.path());
  head.set("log.size", image.size());
  head.set("log.hash", XXH3_64bits(image.data(), image.size()));
  head.set("log.hosts", text_of(lists_.hosts));
  head.set("log.devices", text_of(lists_.devices));
  head.set("log.codec_names", text_of(lists_.codec_names));
  head.set("log.topology_names", text_of(lists_.topology_names));
  return image;
}

}  // namespace dp
