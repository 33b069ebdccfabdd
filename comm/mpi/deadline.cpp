// Outline: look() finds out whether the wait goes on, is slow or is over. It uses the time since
// something last moved and the answers to pings. fail() and warn() write the messages, which name
// the silent ranks or, if there are none, the rank furthest behind. await_turn() makes sure that
// only one of several ranks reports.
#include "comm/mpi/deadline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <tuple>
#include <utility>

#include "comm/mpi/host_ranks.hpp"
#include "kernels/base/setting_error.hpp"

namespace dp {
namespace {

// If nothing has moved for kAsk_s, the other ranks are pinged. At most kAnswer_s later, a warning
// names a slow rank.
constexpr double kAsk_s = 5.0, kAnswer_s = 0.5;
// The number of pings to a rank in one timeout.
constexpr double kQuestions = 8.0;
// All ranks notice a silent rank at about the same time. The lowest rank reports it. If the job has
// not ended kTurn_s later, the next rank reports it, and so on. No rank waits longer than
// kMostTurns_s.
constexpr double kTurn_s = 0.5, kMostTurns_s = 5.0;
// If more than half of the ranks are silent, this rank is probably cut off itself. It then waits
// this long before it reports. By then the other ranks have reported the failure and ended mpirun
// (job_end.hpp).
constexpr double kCutOff_s = 6.5;

double between_s(Liveness::Clock::time_point from, Liveness::Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

double seconds_since(Liveness::Clock::time_point t) { return between_s(t, Liveness::Clock::now()); }

}  // namespace

Deadline::Deadline(Liveness& liveness, const std::vector<std::string>& hosts, PeerLinks* links,
                   int rank, double timeout_s)
    : liveness_(&liveness), hosts_(&hosts), links_(links), rank_(rank), timeout_s_(timeout_s) {}

// True if the timeout is over and the rank has not answered for half of a timeout. The time without
// an answer is counted from the first ping at the earliest.
bool Deadline::is_silent(int rank) const {
  if (rank == rank_ || seconds_since(since_) <= timeout_s_) return false;
  const Clock::time_point heard = std::max(asked_, liveness_->answered_at(rank));
  return seconds_since(heard) > 0.5 * timeout_s_;
}

// If all ranks answer: returns whether the run has made no progress for as long as patience()
// allows.
bool Deadline::is_patience_over() {
  std::uint64_t done = 0;
  bool is_busy = false;
  for (int rank = 0; rank < static_cast<int>(hosts_->size()); ++rank) {
    const Whereabouts& where = liveness_->whereabouts(rank);
    if (rank == rank_ || where.is_busy == 0) continue;
    is_busy = true;
    done += where.buckets_begun + std::uint64_t{1};
  }
  if (std::exchange(work_done_, done) != done) came_on_ = Clock::now();
  const Patience& patience = liveness_->patience();
  return seconds_since(came_on_) >
         timeout_s_ * (is_busy ? patience.with_busy : patience.with_living);
}

Deadline::State Deadline::look(const Whereabouts& mine) {
  const Clock::time_point now = Clock::now();
  const double waited_s = between_s(since_, now);
  const double between_looks_s = between_s(std::exchange(looked_, now), now);
  if (!has_asked_) {
    if (waited_s > std::min(0.5 * timeout_s_, kAsk_s)) {
      if (links_ != nullptr) links_->mark();
      liveness_->ask();
      has_asked_ = true;
      asked_ = asked_again_ = now;
    }
    return State::going;
  }
  liveness_->serve(mine);
  // If this process itself was stopped, the other ranks need time to answer after it continues.
  if (between_looks_s > 0.25 * timeout_s_) asked_ = now;
  if (between_s(asked_again_, now) > timeout_s_ / kQuestions) {
    liveness_->ask_again();
    asked_again_ = now;
  }
  const auto size = static_cast<int>(hosts_->size());
  bool all_answer = true;
  for (int rank = 0; rank < size; ++rank) {
    if (is_silent(rank)) return State::over;
    if (rank != rank_) all_answer = all_answer && liveness_->has_answered(rank);
  }
  if (is_patience_over()) return State::over;
  const bool is_due = waited_s > kAsk_s + kAnswer_s || all_answer;
  if (!has_warned_ && waited_s > kAsk_s && is_due && liveness_->may_warn()) return State::slow;
  return State::going;
}

std::string Deadline::name(int rank) const {
  return fmt::format("rank {} on host {}", rank, (*hosts_)[static_cast<std::size_t>(rank)]);
}

std::string Deadline::place(const Whereabouts& where) const {
  if (where.is_busy != 0) return "it is busy with work of its own";
  return fmt::format("it is in step {} and has begun {} of its buckets", where.step,
                     where.buckets_begun);
}

// Returns the rank that is furthest behind, among this rank and the ranks that answer. The other
// ranks are probably waiting for it.
int Deadline::furthest_behind(const Whereabouts& mine) const {
  const auto progress = [](const Whereabouts& where) {
    return std::tuple(where.is_busy == 0, where.step, where.buckets_begun);
  };
  int least_rank = rank_;
  Whereabouts least = mine;
  const auto size = static_cast<int>(hosts_->size());
  for (int rank = 0; rank < size; ++rank) {
    if (rank == rank_ || !liveness_->has_answered(rank)) continue;
    const Whereabouts& where = liveness_->whereabouts(rank);
    if (progress(where) < progress(least)) {
      least = where;
      least_rank = rank;
    }
  }
  return least_rank;
}

std::string Deadline::about_link(int silent_rank) const {
  const std::string& there = (*hosts_)[static_cast<std::size_t>(silent_rank)];
  const std::string& here = (*hosts_)[static_cast<std::size_t>(rank_)];
  if (there == here) {
    for (const HostRank& other : ranks_on_this_host()) {
      if (other.rank == silent_rank && other.is_stopped) {
        return fmt::format("its process {} is stopped (SIGSTOP or Ctrl-Z); ", other.process);
      }
    }
    return {};
  }
  switch (links_ == nullptr ? LinkFinding::unknown : links_->since_mark(there)) {
    case LinkFinding::unknown:
      break;
    case LinkFinding::acknowledged:
      return fmt::format(
          "host {} acknowledges data from {}, so the process there is stopped or "
          "hangs; ",
          there, here);
    case LinkFinding::one_way:
      return fmt::format(
          "data from {0} does not arrive at {1}, although data from {1} arrives "
          "at {0}: the link from {0} to {1} is dead in this direction; ",
          here, there);
    case LinkFinding::nothing:
      return fmt::format(
          "nothing has arrived from {1} at {0} meanwhile, so host {1} is down, or the "
          "link between {0} and {1} is dead, in both directions or from {1} to {0}; ",
          here, there);
  }
  return {};
}

// Lets lower ranks report first, and answers pings meanwhile.
void Deadline::await_turn(const Whereabouts& mine, int silent_ranks) {
  const Clock::time_point began = Clock::now();
  const bool is_cut_off = 2 * silent_ranks > static_cast<int>(hosts_->size());
  const auto turn_s = [&] {
    if (is_cut_off) return kCutOff_s;
    return liveness_->is_ending() ? kMostTurns_s : std::min(rank_ * kTurn_s, kMostTurns_s);
  };
  for (liveness_->serve(mine); seconds_since(began) < turn_s(); liveness_->serve(mine)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  liveness_->tell_end();
}

void Deadline::fail(const Whereabouts& mine, const std::string& what) {
  const double waited_s = seconds_since(since_);
  const auto size = static_cast<int>(hosts_->size());
  std::string silent, link;
  int silent_ranks = 0;
  for (int rank = 0; rank < size; ++rank) {
    if (!is_silent(rank)) continue;
    if (silent_ranks == 0) link = about_link(rank);
    silent += (silent_ranks++ == 0 ? "" : ", ") + name(rank);
  }
  const int slowest = furthest_behind(mine);
  const Whereabouts& where = slowest == rank_ ? mine : liveness_->whereabouts(slowest);
  await_turn(mine, silent_ranks);
  if (silent_ranks > 0) {
    throw SettingError(
        ErrorKind::communication,
        fmt::format("{} {} been silent for {:.0f} s in {}: {}check that the host is up and its "
                    "link works, or raise the timeout, now {:g} s",
                    silent, silent_ranks == 1 ? "has" : "have", waited_s, what, link, timeout_s_),
        Setting{"timeout"});
  }
  throw SettingError(
      ErrorKind::communication,
      fmt::format(
          "{} has made no progress for {:.0f} s, although every rank answers; "
          "{} is the furthest behind: {}; if a step may take this long, raise the timeout, now "
          "{:g} s (the limit is {:g} timeouts if all ranks answer, {:g} if one is busy)",
          what, waited_s, name(slowest), place(where), timeout_s_,
          liveness_->patience().with_living, liveness_->patience().with_busy),
      Setting{"timeout"});
}

// Only one rank warns: the lowest rank that is not slow itself.
void Deadline::warn(const Whereabouts& mine, const std::string& what) {
  has_warned_ = true;
  warned_of_.clear();
  warned_since_ = since_;
  const int slowest = furthest_behind(mine);
  const auto size = static_cast<int>(hosts_->size());
  std::string silent;
  for (int rank = 0; rank < size; ++rank) {
    if (!liveness_->has_answered(rank)) {
      silent += (silent.empty() ? "" : ", ") + name(rank);
    }
  }
  for (int rank = 0; rank < rank_; ++rank) {
    if (liveness_->has_answered(rank) && rank != slowest) return;
  }
  const double waited_s = seconds_since(since_);
  if (!silent.empty()) {
    warned_of_ = silent;
    liveness_->warn(
        fmt::format("{} has not answered for {:.0f} s in {}; the run waits until "
                    "{:g} s have passed",
                    silent, waited_s, what, timeout_s_));
  } else if (slowest != rank_) {
    warned_of_ = name(slowest);
    liveness_->warn(fmt::format("the other ranks have been waiting for {} for {:.0f} s in {}: {}",
                                warned_of_, waited_s, what,
                                place(liveness_->whereabouts(slowest))));
  }
}

void Deadline::tell_moved() {
  has_warned_ = false;
  if (warned_of_.empty()) return;
  liveness_->say(
      fmt::format("{} continues after {:.0f} s", warned_of_, seconds_since(warned_since_)));
}

}  // namespace dp
