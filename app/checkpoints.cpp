#include "app/checkpoints.hpp"

#include <algorithm>
#include <filesystem>

#include "app/run_state.hpp"
#include "io/whole_file.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

// The ranks ask each other after 1, 2, 4, ... steps whether all have written, so that a question
// costs next to nothing however long a disk takes.
constexpr std::uint64_t kLongestGap = 64;
// With a cadence in time, rank 0's clock is asked about this often.
constexpr double kQuestion_s = 5.0;

}  // namespace

Checkpoints::Checkpoints(Device& device, Reducer& reducer, CheckpointOptions options)
    : device_(device),
      reducer_(reducer),
      options_(std::move(options)),
      thread_({.name = "dp-checkpoint"}) {
  reducer_.run([this](Communicator& comm) {
    rank_ = static_cast<std::uint32_t>(comm.rank());
    ranks_ = static_cast<std::uint32_t>(comm.size());
  });
  if (options_.resumed_from) {
    complete_.push_back(*options_.resumed_from);
    last_step_ = options_.resumed_from->step;
  }
}

Checkpoints::~Checkpoints() {
  if (!thread_.is_over(job_)) {
    try {
      thread_.wait(job_);
    } catch (...) {
      // A job throws nothing.
    }
  }
}

bool Checkpoints::is_due(std::uint64_t step, bool ends_epoch) {
  const CheckpointCadence& every = options_.every;
  if (ends_epoch) ++epochs_;
  if (every.epochs > 0 && epochs_ >= every.epochs) is_wanted_ = true;
  if (every.steps > 0 && step >= last_step_ + every.steps) is_wanted_ = true;
  if ((pending_ || every.seconds > 0) && step >= next_question_) ask(step);
  return is_wanted_ && !pending_;
}

void Checkpoints::write(std::uint64_t step, const StateList& state,
                        const CheckpointExtras& extras) {
  DP_ASSERT(!pending_, "the checkpoint of step {} is not complete", pending_->step);
  wait_for_thread();
  copy_state(device_, state, extras.texts, image_);
  log_ = extras.log;
  pending_ = CheckpointId{.step = step, .attempt = options_.attempt, .ranks = ranks_};
  written_ = mine(*pending_, false);
  failure_.clear();
  is_wanted_ = false;
  epochs_ = 0;
  last_step_ = step;
  gap_ = 1;
  next_question_ = step + gap_;
  since_last_s_ = 0;
  clock_.lap();
  job_ = thread_.post([](void* self) { static_cast<Checkpoints*>(self)->write_files(); }, this);
}

void Checkpoints::finish() {
  wait_for_thread();
  if (pending_) ask(last_step_);
  wait_for_thread();
}

void Checkpoints::wait_for_thread() {
  if (thread_.is_over(job_)) return;
  reducer_.run([this](Communicator& comm) { comm.busy([this] { thread_.wait(job_); }); });
}

std::optional<CheckpointId> Checkpoints::newest() const {
  if (complete_.empty()) return std::nullopt;
  return complete_.back();
}

void Checkpoints::ask(std::uint64_t step) {
  since_last_s_ += clock_.lap();
  Report mine = {.seconds = since_last_s_};
  if (pending_ && thread_.is_over(job_)) {
    mine.is_written = 1;
    mine.has_failed = failure_.empty() ? 0 : 1;
    mine.replicated_hash = replicated_hash_;
  }
  const double steps = static_cast<double>(std::max<std::uint64_t>(step - last_step_, 1));
  const double left_s = options_.every.seconds - since_last_s_;
  mine.next_gap = static_cast<std::uint64_t>(
      std::clamp(std::min(left_s, kQuestion_s) * steps / since_last_s_, 1.0, 1e6));
  const std::vector<Report> reports =
      reducer_.run([&](Communicator& comm) { return comm.all_gather(mine); });
  if (options_.every.seconds > 0 && reports[0].seconds >= options_.every.seconds) {
    is_wanted_ = true;
  }
  if (pending_) settle(reports);
  gap_ = std::min(2 * gap_, kLongestGap);
  next_question_ = step + (pending_ ? gap_ : reports[0].next_gap);
}

void Checkpoints::settle(const std::vector<Report>& reports) {
  if (!std::ranges::all_of(reports, [](const Report& r) { return r.is_written == 1; })) return;
  std::string differing;
  is_complete_ = false;
  if (std::ranges::any_of(reports, [](const Report& r) { return r.has_failed == 1; })) {
    tell_failures();
  } else {
    differing = difference_of(reports);
    is_complete_ = differing.empty();
    if (is_complete_) complete();
  }
  kept_.assign(complete_.begin(), complete_.end());
  pending_.reset();
  job_ = thread_.post([](void* self) { static_cast<Checkpoints*>(self)->tidy_up(); }, this);
  if (differing.empty()) return;
  wait_for_thread();  // or the run would go on from it
  throw AgreedError(ErrorKind::internal, differing);
}

// A sentence if not all replicas are the same.
std::string Checkpoints::difference_of(const std::vector<Report>& reports) const {
  for (std::size_t r = 1; options_.compares_replicas && r < reports.size(); ++r) {
    if (reports[r].replicated_hash == reports[0].replicated_hash) continue;
    return fmt::format(
        "the replicas differ in the checkpoint of step {}: rank {} ({:016x}) against {:016x} on "
        "rank 0. It is not kept; this is a bug of dptrain or a fault of a host's memory",
        pending_->step, r, reports[r].replicated_hash, reports[0].replicated_hash);
  }
  return {};
}

void Checkpoints::complete() {
  // A run that was resumed may come to the same step again.
  std::erase_if(complete_, [&](const CheckpointId& id) { return id.step == pending_->step; });
  complete_.push_back(*pending_);
  while (complete_.size() > options_.keep) complete_.pop_front();
  if (rank_ == 0 && options_.on_complete) options_.on_complete(*pending_);
}

void Checkpoints::tell_failures() {
  std::vector<std::string> hosts;
  const std::vector<std::string> failures = reducer_.run([&](Communicator& comm) {
    hosts = comm.hosts();
    return comm.gather(failure_);
  });
  // What is behind the file's name, which has the step.
  const auto cause_of = [](const std::string& failure) {
    return failure.substr(std::min(failure.find(": "), failure.size()));
  };
  for (std::size_t r = 0; r < failures.size(); ++r) {
    if (failures[r].empty() || !told_.insert(cause_of(failures[r])).second) continue;
    const auto others =
        std::ranges::count_if(failures,
                              [&](const std::string& other) {
                                return !other.empty() && cause_of(other) == cause_of(failures[r]);
                              }) -
        1;
    const std::string more =
        others == 0 ? "" : fmt::format(" and {} other rank{}", others, others == 1 ? "" : "s");
    options_.on_failure(*pending_,
                        fmt::format("rank {} on {}{}: {}", r, hosts[r], more, failures[r]));
  }
}

void Checkpoints::write_files() {
  try {
    if (!log_.empty()) {
      const std::string log = path(log_name_of(written_.checkpoint));
      write_whole_file(log, log + ".part", log_);
    }
    const std::span<const std::byte> file = image_.seal();
    replicated_hash_ = replicated_hash(image_);
    write_whole_file(path(name_of(written_)), path(part_name_of(written_)), file);
  } catch (...) {
    static_cast<void>(exit_code_of_current_exception(failure_));
  }
}

// The last checkpoint has become complete or has failed: gives its file the final name, or removes
// it, and removes what is too old. What cannot be done now is done after the next one.
void Checkpoints::tidy_up() {
  try {
    if (is_complete_) {
      const ShardFile final_name = mine(written_.checkpoint, true);
      rename_durably(path(name_of(written_)), path(name_of(final_name)));
    }
    remove_checkpoints(options_.folder, kept_, written_.checkpoint);
  } catch (const Error&) {
    // A folder that is gone is told when the next one cannot be written.
  }
}

ShardFile Checkpoints::mine(const CheckpointId& id, bool is_complete) const {
  return {.checkpoint = id, .rank = rank_, .is_complete = is_complete};
}

std::string Checkpoints::path(const std::string& name) const {
  return (std::filesystem::path(options_.folder) / name).string();
}

}  // namespace dp
