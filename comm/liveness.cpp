#include "comm/liveness.hpp"

#include <algorithm>
#include <exception>
#include <thread>

#include "comm/check.hpp"
#include "kernels/base/setting_error.hpp"

namespace dp {
namespace {

constexpr int kTag = 0;
// A rank that answers but does not move is given this many timeouts.
constexpr double kPatienceWithTheLiving = 10.0;
// All ranks notice a silent one at the same time. The lowest of them reports it. If the job has not
// ended after this time, the next one does, and so on.
constexpr double kTurn_s = 0.5;
constexpr double kMostTurns_s = 5.0;

double seconds_since(std::chrono::steady_clock::time_point t) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - t).count();
}

}  // namespace

Liveness::Liveness(MPI_Comm parent) {
  DP_CHECK_MPI(MPI_Comm_dup(parent, &comm_));
  DP_CHECK_MPI(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN));
  DP_CHECK_MPI(MPI_Comm_rank(comm_, &rank_));
  DP_CHECK_MPI(MPI_Comm_size(comm_, &size_));
  const auto ranks = static_cast<std::size_t>(size_);
  questions_.resize(ranks);
  answers_.resize(ranks);
  has_answered_.resize(ranks);
  where_.resize(ranks);
  if (size_ > 1) post_receive();
}

Liveness::~Liveness() {
  if (receive_ != MPI_REQUEST_NULL) {
    // Waiting for a receive that is cancelled never depends on another rank; after it MPI does not
    // write any more. (Freeing the request alone would let it write into memory that is gone.)
    MPI_Cancel(&receive_);
    MPI_Wait(&receive_, MPI_STATUS_IGNORE);
  }
  // A send to a rank that does not answer may last until the end, and Open MPI cannot cancel it:
  // MPI reads its buffer until then. What has not left is kept for as long as the process lives.
  using Kept = std::vector<std::vector<Outgoing>>;
  static Kept& kept = *new Kept;
  for (auto* slots : {&questions_, &answers_}) {
    bool is_needed = false;
    for (Outgoing& slot : *slots) {
      if (slot.request == MPI_REQUEST_NULL) continue;
      int is_done = 0;
      const int code = MPI_Test(&slot.request, &is_done, MPI_STATUS_IGNORE);
      is_needed = is_needed || code != MPI_SUCCESS || is_done == 0;
    }
    if (is_needed) kept.push_back(std::move(*slots));
  }
  // Freeing is collective in MPI. While an exception passes, the other ranks will not call it.
  if (std::uncaught_exceptions() == 0) MPI_Comm_free(&comm_);
}

void Liveness::post_receive() {
  DP_CHECK_MPI(
      MPI_Irecv(&incoming_, sizeof incoming_, MPI_BYTE, MPI_ANY_SOURCE, kTag, comm_, &receive_));
}

void Liveness::send(Outgoing& slot, int to, const Message& message) {
  if (slot.request != MPI_REQUEST_NULL) {
    int is_done = 0;
    DP_CHECK_MPI(MPI_Test(&slot.request, &is_done, MPI_STATUS_IGNORE));
    if (is_done == 0) return;  // the earlier question has not left yet, so another would not help
  }
  slot.message = message;
  DP_CHECK_MPI(
      MPI_Isend(&slot.message, sizeof slot.message, MPI_BYTE, to, kTag, comm_, &slot.request));
  sent_bytes_ += sizeof slot.message;
}

void Liveness::serve(const Whereabouts& mine) {
  while (receive_ != MPI_REQUEST_NULL) {
    int is_done = 0;
    MPI_Status status;
    DP_CHECK_MPI(MPI_Test(&receive_, &is_done, &status));
    if (is_done == 0) return;
    const auto from = static_cast<std::size_t>(status.MPI_SOURCE);
    const Message message = incoming_;
    post_receive();
    if (message.is_answer == 0) {
      send(answers_[from], status.MPI_SOURCE,
           {.is_answer = 1, .round = message.round, .where = mine});
    } else if (message.round == round_) {
      has_answered_[from] = true;
      where_[from] = message.where;
    }
  }
}

void Liveness::ask() {
  ++round_;
  std::fill(has_answered_.begin(), has_answered_.end(), false);
  has_answered_[static_cast<std::size_t>(rank_)] = true;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    send(questions_[static_cast<std::size_t>(rank)], rank,
         {.is_answer = 0, .round = round_, .where = {}});
  }
}

bool Liveness::has_answered(int rank) const {
  return has_answered_[static_cast<std::size_t>(rank)];
}
const Whereabouts& Liveness::whereabouts(int rank) const {
  return where_[static_cast<std::size_t>(rank)];
}

Deadline::Deadline(Liveness& liveness, const std::vector<std::string>& hosts, int rank,
                   double timeout_s)
    : liveness_(&liveness), hosts_(&hosts), rank_(rank), timeout_s_(timeout_s) {}

bool Deadline::is_over(const Whereabouts& mine) {
  const double waited_s = seconds_since(since_);
  if (!has_asked_) {
    if (waited_s > 0.5 * timeout_s_) {
      liveness_->ask();
      has_asked_ = true;
      asked_ = Clock::now();
    }
    return false;
  }
  liveness_->serve(mine);
  // The time counts from the question: a process that was stopped for longer than the timeout and
  // continues must give the others time to answer.
  if (seconds_since(asked_) <= 0.5 * timeout_s_) return false;
  const auto size = static_cast<int>(hosts_->size());
  for (int rank = 0; rank < size; ++rank) {
    if (!liveness_->has_answered(rank)) return true;
  }
  return waited_s > kPatienceWithTheLiving * timeout_s_;
}

void Deadline::fail(const Whereabouts& mine, const std::string& what) {
  const double waited_s = seconds_since(since_);
  const auto size = static_cast<int>(hosts_->size());
  const auto name = [&](int rank) {
    return fmt::format("rank {} on host {}", rank, (*hosts_)[static_cast<std::size_t>(rank)]);
  };
  std::string silent, behind;
  int silent_ranks = 0, turn = 0;
  Whereabouts least = mine;
  int least_rank = rank_;
  for (int rank = 0; rank < size; ++rank) {
    if (!liveness_->has_answered(rank)) {
      silent += (silent_ranks++ == 0 ? "" : ", ") + name(rank);
      continue;
    }
    if (rank < rank_) ++turn;
    if (rank == rank_) continue;
    const Whereabouts& where = liveness_->whereabouts(rank);
    if (std::pair(where.step, where.buckets_begun) < std::pair(least.step, least.buckets_begun)) {
      least = where;
      least_rank = rank;
    }
  }
  // While the others have their turn, this rank still answers them.
  const auto turn_began = std::chrono::steady_clock::now();
  while (seconds_since(turn_began) < std::min(turn * kTurn_s, kMostTurns_s)) {
    liveness_->serve(mine);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  if (silent_ranks > 0) {
    throw SettingError(
        ErrorKind::communication,
        fmt::format("{} {} been silent for {:.0f} s in {}: look whether the host runs and its link "
                    "works, or raise the timeout, now {:g} s",
                    silent, silent_ranks == 1 ? "has" : "have", waited_s, what, timeout_s_),
        Setting::timeout);
  }
  throw SettingError(
      ErrorKind::communication,
      fmt::format(
          "{} has made no progress for {:.0f} s, although every rank answers when it is asked; "
          "{} is the furthest behind: it is in step {} and has begun {} buckets of it; if one "
          "step may take so long, raise the timeout, now {:g} s (ranks that answer are "
          "waited for {:g} times as long)",
          what, waited_s, name(least_rank), least.step, least.buckets_begun, timeout_s_,
          kPatienceWithTheLiving),
      Setting::timeout);
}

}  // namespace dp
