#include "app/checkpoint/checkpoints.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <iterator>

#include "app/checkpoint/run_state.hpp"
#include "comm/replica_hash.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

// The ranks ask each other after 1, 2, 4, ... steps whether all have written, so that the questions
// cost next to nothing however slow a disk is.
constexpr std::uint64_t kLongestGap = 64;
// If checkpoints are due every few minutes, the ranks ask for rank 0's clock about this often.
constexpr double kQuestion_s = 5.0;
// How long training may wait for files to be renamed and removed, if the next checkpoint is due.
constexpr auto kMoment = std::chrono::seconds(1);
// At the end of the run, the ranks ask each other every kLook, and rank 0 warns of a rank that is
// slow for kSlow_s.
constexpr auto kLook = std::chrono::milliseconds(500);
constexpr double kSlow_s = 5.0;
// How long a failing run waits for a part that is being written, before it reports its error.
constexpr double kLast_s = 5.0;

}  // namespace

Checkpoints::Checkpoints(Device& device, Reducer& reducer, CheckpointOptions options)
    : device_(device),
      reducer_(reducer),
      options_(std::move(options)),
      writer_(std::make_unique<CheckpointWriter>(options_.folder)) {
  reducer_.run([this](Communicator& comm) {
    rank_ = static_cast<std::uint32_t>(comm.rank());
    ranks_ = static_cast<std::uint32_t>(comm.size());
    hosts_ = comm.hosts();
  });
  if (options_.resumed_from) {
    complete_.push_back(*options_.resumed_from);
    last_step_ = options_.resumed_from->step;
  }
}

// A thread that waits for a disk cannot be ended. It is left running until the process ends, with
// the memory that it uses.
Checkpoints::~Checkpoints() {
  double most_s = hanging_.empty() ? options_.timeout_s : 0.0;
  if (std::uncaught_exceptions() > 0) most_s = std::min(most_s, kLast_s);
  if (!writer_->wait_for(std::chrono::duration<double>(most_s))) {
    static_cast<void>(writer_.release());
  }
}

bool Checkpoints::is_due(std::uint64_t step, bool ends_epoch) {
  const CheckpointCadence& every = options_.every;
  if (ends_epoch) ++epochs_;
  if (every.epochs > 0 && epochs_ >= every.epochs) is_wanted_ = true;
  if (every.steps > 0 && step >= last_step_ + every.steps) is_wanted_ = true;
  if (asks_at(step)) {
    const bool was_tidying = is_tidying();
    ask(step);
    // Tidying up takes only a moment. If another checkpoint is due, ask again at once, because the
    // next step may be far off.
    if (is_wanted_ && is_tidying() && !was_tidying) ask(step);
  }
  return is_wanted_ && !pending_;
}

void Checkpoints::write(std::uint64_t step, const StateList& state,
                        const CheckpointExtras& extras) {
  DP_ASSERT(!pending_, "the checkpoint of step {} is not complete", pending_->id.step);
  copy_state(device_, state, extras.texts, writer_->image());
  pending_ = {.id = part_of(step).checkpoint};
  is_wanted_ = false;
  epochs_ = 0;
  last_step_ = step;
  gap_ = 1;
  next_question_ = step + gap_;
  since_last_s_ = 0;
  clock_.lap();
  writer_->write(part_of(step), extras.log);
}

void Checkpoints::finish() {
  while (pending_ && hanging_.empty()) {
    static_cast<void>(writer_->wait_for(kLook));
    ask(last_step_, true);
  }
}

std::optional<CheckpointId> Checkpoints::newest() const {
  if (complete_.empty() || has_bad_name_) return std::nullopt;
  return complete_.back();
}

void Checkpoints::ask(std::uint64_t step, bool is_at_end) {
  if (is_wanted_ && is_tidying()) static_cast<void>(writer_->wait_for(kMoment));
  since_last_s_ += clock_.lap();
  Report mine = {.seconds = since_last_s_};
  if (pending_ && writer_->is_over()) {
    mine.is_over = 1;
    mine.has_failed = writer_->failure().empty() ? 0 : 1;
    mine.replicated_hash = writer_->replicated_hash();
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
  gap_ = std::min(2 * gap_, kLongestGap);
  if (pending_) {
    const std::ptrdiff_t over = std::ranges::count(reports, 1, &Report::is_over);
    if (over != std::exchange(pending_->over, over)) pending_->moved_s = reports[0].seconds;
    if (over < std::ssize(reports)) {
      look_for_late_ranks(reports, is_at_end);
    } else if (pending_->is_tidying) {
      end_tidying(reports);
    } else {
      settle(reports);
    }
  }
  next_question_ = step + (pending_ ? gap_ : reports[0].next_gap);
}

// Called when all ranks have written their parts or have failed to.
void Checkpoints::settle(const std::vector<Report>& reports) {
  *pending_ = {.id = pending_->id,
               .is_tidying = true,
               .moved_s = reports[0].seconds,
               .is_told_late = pending_->is_told_late};
  gap_ = 1;
  std::optional<AgreedError> difference;
  if (std::ranges::any_of(reports, [](const Report& r) { return r.has_failed == 1; })) {
    tell_failures();
  } else {
    try {
      compare_replicas(reports);
      pending_->is_complete = true;
      take_complete();
    } catch (const AgreedError& error) {
      difference = error;
    }
  }
  writer_->tidy_up(pending_->is_complete, {complete_.begin(), complete_.end()});
  if (!difference) return;
  // Wait until the files have been removed; otherwise a resumed run could continue from them.
  static_cast<void>(writer_->wait_for(std::chrono::duration<double>(options_.timeout_s)));
  throw AgreedError(*difference);
}

// Usually the hashes of whole states are enough. If they differ, the entries' hashes show where.
void Checkpoints::compare_replicas(const std::vector<Report>& reports) {
  const bool is_same = std::ranges::all_of(reports, [&](const Report& report) {
    return report.replicated_hash == reports[0].replicated_hash;
  });
  if (!options_.compares_replicas || is_same) return;
  const ShardImage& image = writer_->image();
  std::vector<HashedPart> parts;
  for (std::size_t i = 0; i < image.entries().size(); ++i) {
    const ShardEntry& entry = image.entries()[i];
    if (!is_own_entry(entry)) parts.push_back({entry.name, entry.size, image.hash_of(i)});
  }
  reducer_.run([&](Communicator& comm) {
    agree_on_parts(comm, parts, fmt::format(" in the checkpoint of step {}", pending_->id.step),
                   "It is not kept");
  });
}

void Checkpoints::take_complete() {
  // A resumed run may reach the same step again. Its new checkpoint then replaces the earlier one.
  std::erase_if(complete_, [&](const CheckpointId& id) { return id.step == pending_->id.step; });
  complete_.push_back(pending_->id);
  while (complete_.size() > options_.keep) complete_.pop_front();
  has_bad_name_ = false;
}

void Checkpoints::end_tidying(const std::vector<Report>& reports) {
  if (std::ranges::any_of(reports, [](const Report& r) { return r.has_failed == 1; })) {
    tell_failures();
    // All parts are written and equal, but some rank could not give its part the final name. If
    // there are older checkpoints, the run gives up this checkpoint. If there are none, the run
    // keeps it, because it could resume from nothing else.
    if (complete_.size() > 1) {
      std::erase(complete_, pending_->id);
    } else if (pending_->is_complete) {
      has_bad_name_ = true;
    }
  } else if (pending_->is_complete && rank_ == 0) {
    options_.on_complete(pending_->id);
  }
  pending_.reset();
}

void Checkpoints::look_for_late_ranks(const std::vector<Report>& reports, bool is_at_end) {
  const double late_s = reports[0].seconds - pending_->moved_s;
  const double told_s = is_at_end ? std::min(kSlow_s, options_.timeout_s / 2) : options_.timeout_s;
  if (!(is_at_end || is_wanted_) || late_s < told_s) return;
  const auto first = std::ranges::find(reports, 0, &Report::is_over) - reports.begin();
  const std::ptrdiff_t others = std::ssize(reports) - pending_->over - 1;
  const std::string late = fmt::format(
      "rank {} on {}{} {} not {} for {:.0f} s", first, hosts_[static_cast<std::size_t>(first)],
      others == 0 ? "" : fmt::format(" and {} other rank{}", others, others == 1 ? "" : "s"),
      others == 0 ? "has" : "have", pending_->is_tidying ? "renamed its file" : "written its part",
      late_s);
  if (is_at_end && late_s >= kPatience * options_.timeout_s) hanging_ = late;
  if (std::exchange(pending_->is_told_late, true) || rank_ != 0) return;
  options_.warn(
      fmt::format("the checkpoint of step {} is not complete: {}; {}", pending_->id.step, late,
                  is_at_end ? "the end of the run waits for it"
                            : "training goes on, but writes no other checkpoint until this "
                              "checkpoint is complete: check the disk of that host"));
}

void Checkpoints::tell_failures() {
  const std::string& mine = writer_->failure();
  const std::vector<std::string> failures =
      reducer_.run([&](Communicator& comm) { return comm.gather(mine); });
  // Removes the file's name from the failure. The name contains the step, so the same failure would
  // otherwise seem new at every checkpoint.
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
    options_.warn(fmt::format(
        "the checkpoint could not be written: rank {} on {}{}: {}; training goes on without it", r,
        hosts_[r], more, failures[r]));
  }
}

}  // namespace dp
