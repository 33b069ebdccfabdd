// What a run that goes on later must have of its report: the running epoch so far, and the rows of
// the epochs before.
#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <sstream>
#include <utility>

#include "app/output/recorder.hpp"
#include "io/files/new_file.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

// Bytes and errors of several ranks add up; their times do not, since ranks work at the same time.
void add_bytes(CommCost& sum, const CommCost& more) {
  sum.sent_bytes += more.sent_bytes;
  sum.received_bytes += more.received_bytes;
  sum.sampled += more.sampled;
  sum.sample_bytes += more.sample_bytes;
}

// Rows of numbers as a text, and back.
template <class Row>
StateText rows_text(const std::string& name, std::vector<Row>& rows) {
  return {.name = name,
          .get =
              [&rows] {
                return std::string(reinterpret_cast<const char*>(rows.data()),
                                   rows.size() * sizeof(Row));
              },
          .set =
              [&rows, name](const std::string& text) {
                if (text.size() % sizeof(Row) != 0) {
                  throw_error(ErrorKind::data,
                              "the checkpoint's entry {} has {} bytes, which are no rows of {}",
                              name, text.size(), sizeof(Row));
                }
                rows.resize(text.size() / sizeof(Row));
                std::ranges::copy(std::as_bytes(std::span(text)),
                                  std::as_writable_bytes(std::span(rows)).begin());
              },
          .share = StateShare::replicated};
}

// A line each.
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

void EpochTally::list_state(StateVisitor& visitor, StateShare judged) {
  visitor.value("epoch/number", epoch);
  visitor.value("epoch/steps", steps);
  visitor.value("epoch/images", samples);
  visitor.value("epoch/learning_rate", learning_rate);
  visitor.value("epoch/skipped_steps", skipped_steps, judged);
  visitor.value("epoch/own_skipped_steps", own_skipped_steps, judged);
  visitor.value("epoch/exchanges", exchanges);
  visitor.value("epoch/bits_sum", bits_sum);
  visitor.value("epoch/rated_steps", rated_steps);
  visitor.value("epoch/replica_hash", replica_hash);
  visitor.value("epoch/global_batch", global_batch);
  visitor.value("epoch/steps_of_epoch", steps_of_epoch);
  visitor.value("epoch/loss", loss.loss, StateShare::own);
  visitor.value("epoch/correct", loss.correct, StateShare::own);
  visitor.value("epoch/samples", loss.samples, StateShare::own);
  // Ranks compute at the same time, so that their times do not add up.
  for (const auto& [name, time] :
       {std::pair{"data", &times.data}, std::pair{"forward", &times.forward},
        std::pair{"backward", &times.backward}, std::pair{"exposed_comm", &times.exposed_comm},
        std::pair{"optimizer", &times.optimizer}, std::pair{"other", &times.other},
        std::pair{"checkpoint", &checkpoint_s}, std::pair{"earlier", &earlier_s}}) {
    visitor.value(fmt::format("epoch/seconds/{}", name), *time, StateShare::own, StateMerge::first);
  }
}

void Recorder::take_earlier_lists() {
  const std::vector<std::string>& hosts = run_.comm->hosts();
  log_hosts_ = hosts;
  if (run_.resume == nullptr || run_.resume->log.empty()) return;
  const CheckpointHead& head = run_.resume->head;
  log_hosts_ = lines_of(head.get("log.hosts"));
  devices_ = lines_of(head.get("log.devices"));
  codec_names_ = lines_of(head.get("log.codec_names"));
  topology_names_ = lines_of(head.get("log.topology_names"));
  const bool are_last = log_hosts_.size() >= hosts.size() &&
                        std::equal(hosts.rbegin(), hosts.rend(), log_hosts_.rbegin());
  if (!are_last) log_hosts_.insert(log_hosts_.end(), hosts.begin(), hosts.end());
  first_host_ = log_hosts_.size() - hosts.size();
}

// A log that fits a checkpoint goes on. What has its name by now, such as the log of a start that
// came to no checkpoint, gets another one.
RunLog Recorder::make_log(RunInfo& info) {
  const std::string& wanted = run_.options->log;
  if (run_.resume != nullptr) {
    const ResumePoint& point = *run_.resume;
    info.resumed_from =
        fmt::format("step {} of {}", point.checkpoint.step, run_.options->checkpoint);
    info.first_epoch = static_cast<std::int64_t>(point.epoch() + (point.epoch_is_over() ? 1 : 0));
    info.first_step = static_cast<std::int64_t>(point.checkpoint.step);
    try {
      if (point.log.empty()) keep_earlier_log(wanted);
    } catch (const Error&) {  // a disk that fails ends no run that goes on
    }
    return RunLog::resume(wanted, point.log, info);
  }
  if (run_.options->resume) keep_earlier_log(wanted);
  return RunLog::create(wanted, info);
}

void Recorder::keep_earlier_log(const std::string& path) {
  if (path == "auto") return;
  const std::string moved = move_aside(Setting{"log"}, path);
  if (!moved.empty()) {
    run_.progress->note(fmt::format("the log {} of an earlier start is now {}", path, moved));
  }
}

std::vector<std::byte> Recorder::log_image(CheckpointHead& head) const {
  if (!log_) return {};
  std::vector<std::byte> image = log_->image();
  head.set("log.path", log_->path());
  head.set("log.size", image.size());
  head.set("log.hash", XXH3_64bits(image.data(), image.size()));
  head.set("log.hosts", text_of(log_hosts_));
  head.set("log.devices", text_of(devices_));
  head.set("log.codec_names", text_of(codec_names_));
  head.set("log.topology_names", text_of(topology_names_));
  return image;
}

// Rank 0 makes the row and has the log. The others keep its rows for the case that its disk is
// lost.
void Recorder::share_epoch() {
  if (!run_.options->has_checkpoints()) return;
  struct Kept {
    EpochRow row;
    double steps = 0.0;
  } kept;
  if (is_speaker()) kept = {.row = epochs_.back(), .steps = epoch_steps_.back()};
  std::string bytes(reinterpret_cast<const char*>(&kept), sizeof(kept));
  reducer_->run([&](Communicator& comm) { comm.broadcast(bytes); });
  if (is_speaker()) return;
  std::memcpy(&kept, bytes.data(), sizeof(kept));
  epochs_.push_back(kept.row);
  epoch_steps_.push_back(kept.steps);
}

void Recorder::put_back_epochs() {
  if (!log_) return;
  for (const EpochRow& row : epochs_) log_->append(row);
}

void Recorder::list_state(StateVisitor& visitor) {
  collect_comm();
  count_control_bytes(reducer_->run([](Communicator& comm) { return comm.control_bytes(); }));
  visitor.value("epoch/control_bytes", control_bytes_, StateShare::own);
  visitor.object("epoch/comm", epoch_comm_.total, add_bytes);
  for (std::size_t b = 0; b < epoch_comm_.buckets.size(); ++b) {
    visitor.object(fmt::format("epoch/comm/bucket{}", b), epoch_comm_.buckets[b], add_bytes);
  }
  visitor.text(rows_text("epochs/rows", epochs_));
  visitor.text(rows_text("epochs/steps", epoch_steps_));
}

}  // namespace dp
