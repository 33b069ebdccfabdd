#include "comm/mpi/liveness.hpp"

#include <algorithm>
#include <exception>

#include "comm/mpi/mpi_check.hpp"

namespace dp {
namespace {

constexpr int kTag = 0;

}  // namespace

Liveness::Liveness(MPI_Comm parent) : between_warnings_(std::chrono::seconds(60)) {
  DP_CHECK_MPI(MPI_Comm_dup(parent, &comm_));
  DP_CHECK_MPI(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN));
  DP_CHECK_MPI(MPI_Comm_rank(comm_, &rank_));
  DP_CHECK_MPI(MPI_Comm_size(comm_, &size_));
  const auto ranks = static_cast<std::size_t>(size_);
  questions_.resize(ranks);
  answers_.resize(ranks);
  ends_.resize(ranks);
  answered_at_.resize(ranks);
  where_.resize(ranks);
  if (size_ > 1) post_receive();
}

Liveness::~Liveness() {
  if (receive_ != MPI_REQUEST_NULL) {
    // Waiting for a cancelled receive never depends on another rank, and afterwards MPI no longer
    // writes to its buffer. (If the request were only freed, MPI might write into freed memory.)
    MPI_Cancel(&receive_);
    MPI_Wait(&receive_, MPI_STATUS_IGNORE);
  }
  // A send to a rank that does not answer may never complete, and Open MPI cannot cancel a send.
  // MPI may therefore read the buffer at any time, so buffers of unfinished sends are kept until
  // the process ends.
  using Kept = std::vector<std::vector<Outgoing>>;
  static Kept& kept = *new Kept;
  for (auto* slots : {&questions_, &answers_, &ends_}) {
    bool is_needed = false;
    for (Outgoing& slot : *slots) {
      if (slot.request == MPI_REQUEST_NULL) continue;
      int is_done = 0;
      const int code = MPI_Test(&slot.request, &is_done, MPI_STATUS_IGNORE);
      is_needed = is_needed || code != MPI_SUCCESS || is_done == 0;
    }
    if (is_needed) kept.push_back(std::move(*slots));
  }
  // MPI_Comm_free is collective. While an exception unwinds, the other ranks will not call it.
  if (std::uncaught_exceptions() == 0) MPI_Comm_free(&comm_);
}

void Liveness::post_receive() {
  DP_CHECK_MPI(
      MPI_Irecv(incoming_.data(), kMessageBytes, MPI_BYTE, MPI_ANY_SOURCE, kTag, comm_, &receive_));
}

void Liveness::send(Outgoing& slot, int to, const Message& message) {
  if (slot.request != MPI_REQUEST_NULL) {
    int is_done = 0;
    DP_CHECK_MPI(MPI_Test(&slot.request, &is_done, MPI_STATUS_IGNORE));
    if (is_done == 0) return;  // the earlier ping has not left yet, so another would not help
  }
  slot.message = Sealed(message);
  DP_CHECK_MPI(
      MPI_Isend(slot.message.data(), kMessageBytes, MPI_BYTE, to, kTag, comm_, &slot.request));
  sent_bytes_ += kMessageBytes;
}

void Liveness::serve(const Whereabouts& mine) {
  while (receive_ != MPI_REQUEST_NULL && !damaged_from_) {
    int is_done = 0;
    MPI_Status status;
    DP_CHECK_MPI(MPI_Test(&receive_, &is_done, &status));
    if (is_done == 0) return;
    const auto from = static_cast<std::size_t>(status.MPI_SOURCE);
    if (!incoming_.is_intact()) {
      damaged_from_ = status.MPI_SOURCE;
      break;
    }
    const Message message = incoming_.value();
    post_receive();
    if (message.kind == Kind::question) {
      send(answers_[from], status.MPI_SOURCE,
           {.kind = Kind::answer, .round = message.round, .where = mine});
    } else if (message.kind == Kind::end) {
      is_ending_ = true;
    } else if (message.round == round_) {
      answered_at_[from] = Clock::now();
      where_[from] = message.where;
    }
  }
  // The error is kept, because the calling thread may be unable to report it (Communicator::busy).
  if (damaged_from_) throw_damaged("a sign of life", {.rank = *damaged_from_}, {.rank = rank_});
}

void Liveness::ask() {
  ++round_;
  std::fill(answered_at_.begin(), answered_at_.end(), Clock::time_point{});
  ask_again();
}

void Liveness::ask_again() {
  answered_at_[static_cast<std::size_t>(rank_)] = Clock::now();
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    send(questions_[static_cast<std::size_t>(rank)], rank,
         {.kind = Kind::question, .round = round_, .where = {}});
  }
}

void Liveness::tell_end() {
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_)
      send(ends_[static_cast<std::size_t>(rank)], rank,
           {.kind = Kind::end, .round = 0, .where = {}});
  }
}

bool Liveness::has_answered(int rank) const { return answered_at(rank) != Clock::time_point{}; }

Liveness::Clock::time_point Liveness::answered_at(int rank) const {
  return answered_at_[static_cast<std::size_t>(rank)];
}

const Whereabouts& Liveness::whereabouts(int rank) const {
  return where_[static_cast<std::size_t>(rank)];
}

void Liveness::warn(const std::string& text) {
  constexpr Clock::duration kMostBetween = std::chrono::hours(1);
  next_warning_ = Clock::now() + between_warnings_;
  between_warnings_ = std::min(2 * between_warnings_, kMostBetween);
  warn_(text);
}

}  // namespace dp
