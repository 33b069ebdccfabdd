// A group of ranks: all communication except the exchange of gradients.
//
// It wraps a duplicate of an MPI communicator with MPI_ERRORS_RETURN. One thread at a time uses it:
// the main thread until a Reducer exists, then the reducer's thread (Reducer::run runs functions
// there). All ranks call every method marked "collective", in the same order. Every wait sleeps
// between polls and has a deadline. If a wait is too long, the error names the silent rank
// (deadline.hpp). Failures of MPI and damaged messages throw Error(communication).
//
// Collective calls check received data before they use it (seal.hpp). Sums computed inside MPI
// cannot be checked. Therefore sums and agreements gather all ranks' values, and each rank computes
// the result itself. A checksum travels in a message of its own beside the data, so that the data
// need not be copied; a text's checksum travels with its length.
#pragma once

#include <mpi.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "comm/mpi/deadline.hpp"
#include "comm/mpi/liveness.hpp"
#include "comm/mpi/peer_links.hpp"
#include "comm/mpi/seal.hpp"
#include "kernels/base/error.hpp"

namespace dp {

// An error that every rank throws at the same place with the same message. Rank 0 prints it.
class AgreedError : public Error {
 public:
  using Error::Error;
};

class Communicator {
 public:
  static constexpr double kDefaultTimeout_s = 60.0;

  // Collective.
  explicit Communicator(MPI_Comm parent = MPI_COMM_WORLD);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] const std::string& host() const { return hosts_[static_cast<std::size_t>(rank_)]; }
  [[nodiscard]] const std::vector<std::string>& hosts() const { return hosts_; }  // by rank
  // This rank's index among the ranks with the same host name, and the number of these ranks.
  [[nodiscard]] int local_rank() const { return local_rank_; }
  [[nodiscard]] int local_size() const { return local_size_; }
  [[nodiscard]] MPI_Comm handle() const { return comm_; }

  // Bytes that this rank has handed to MPI in the collective calls below and in liveness notices.
  // Gradients are not included; exchanges count their own. For a collective, this is the minimum
  // that the rank must send. With P ranks and n bytes from each:
  //     broadcast        the root: (P-1)(n + 20); other ranks: nothing
  //     gather of rows   the root: nothing; other ranks: n + 4
  //     gather of texts  the root: 20 (P-1); other ranks: 20 (P-1) + n
  //     all_to_all       all parts but the rank's own, and 4 for each of them
  //     all_gather       (P-1)(n + 4)
  //     sums             the same as an all_gather for every kPart values
  //     agreement        8 (P-1), and the broadcast of a text if the agreement fails
  [[nodiscard]] std::uint64_t control_bytes() const {
    return control_bytes_ + liveness_.sent_bytes();
  }
  // See PeerLinks::sent_on_wire().
  [[nodiscard]] std::optional<double> sent_on_wire() const { return links_.sent_on_wire(); }
  // The bytes that one gather_rows() of `bytes` adds to control_bytes() on this rank.
  [[nodiscard]] std::uint64_t gather_cost(std::size_t bytes) const {
    return rank_ == 0 ? 0 : bytes + kSealBytes;
  }

  void set_timeout_s(double timeout_s) { timeout_s_ = timeout_s; }
  [[nodiscard]] double timeout_s() const { return timeout_s_; }
  // A deadline that starts now, for code that waits without calling wait().
  [[nodiscard]] Deadline deadline() { return {liveness_, hosts_, &links_, rank_, timeout_s_}; }
  // Sets the activity, such as "the loading of data", that the messages of all later waits name. If
  // `activity` is empty, each wait names its own activity.
  void set_activity(std::string activity) { activity_ = std::move(activity); }
  // Sets the receiver of warnings about slow ranks. The thread that owns this object calls it.
  void set_warn(std::function<void(const std::string&)> warn) {
    liveness_.set_warn(std::move(warn));
  }

  void set_patience(const Patience& patience) { liveness_.set_patience(patience); }

  // Runs f, which may take long and must not use MPI. Meanwhile another thread answers the other
  // ranks' pings, so that those ranks keep waiting for this one (up to Patience::with_busy).
  template <class F>
  void busy(F f) {
    const Beats beats(*this);
    f();
  }

  // Collective: replaces every rank's `text` by the text of rank `root`.
  void broadcast(std::string& text, int root = 0);
  // Collective: returns the texts of all ranks, indexed by rank, on rank 0; an empty list
  // elsewhere.
  [[nodiscard]] std::vector<std::string> gather(const std::string& text);
  // Collective: returns the rows of all ranks, in the order of ranks, on rank 0; an empty list
  // elsewhere. Every rank passes the same number of rows.
  template <class Row>
  requires std::is_trivially_copyable_v<Row>
  [[nodiscard]] std::vector<Row> gather_rows(std::span<const Row> mine) {
    std::vector<Row> all(rank_ == 0 ? mine.size() * static_cast<std::size_t>(size_) : 0);
    gather_bytes(std::as_bytes(mine), all.data());
    return all;
  }
  // Collective: returns the values of all ranks, indexed by rank, on every rank.
  template <class T>
  requires std::is_trivially_copyable_v<T>
  [[nodiscard]] std::vector<T> all_gather(const T& mine) {
    std::vector<T> all(static_cast<std::size_t>(size_));
    all_gather_bytes(std::as_bytes(std::span(&mine, 1)), all.data());
    return all;
  }
  // Collective: writes the values of all ranks, in the order of ranks, into `all` on every rank.
  // Every rank passes the same number of values.
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void all_gather(std::span<const T> mine, std::span<T> all) {
    DP_ASSERT(all.size() == mine.size() * static_cast<std::size_t>(size_),
              "the result has {} values, but there are {} values from each of {} ranks", all.size(),
              mine.size(), size_);
    all_gather_bytes(std::as_bytes(mine), all.data());
  }
  // Collective: divides `mine` into parts and sends one to each rank. The part for rank r begins at
  // first_of_rank[r] and ends before first_of_rank[r + 1]. Writes the parts that this rank receives
  // into `all`, in the order of their senders. first_of_rank is the same on all ranks.
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void all_to_all(std::span<const T> mine, std::span<const std::size_t> first_of_rank,
                  std::span<T> all) {
    DP_ASSERT(first_of_rank.size() == static_cast<std::size_t>(size_) + 1 &&
                  first_of_rank.back() <= mine.size(),
              "{} offsets of parts do not divide {} values among {} ranks", first_of_rank.size(),
              mine.size(), size_);
    all_to_all_bytes(std::as_bytes(mine), first_of_rank, sizeof(T), std::as_writable_bytes(all));
  }
  // Collective: sums over ranks, in place. Values are added in the order of ranks, so the bits are
  // the same on all ranks and in every run. At most kPart values of each rank are gathered at a
  // time, which bounds memory and the wait for one message.
  static constexpr std::size_t kPart = 1 << 18;
  void all_sum(std::span<std::int64_t> values);
  void all_sum(std::span<double> values);
  void all_sum(std::span<float> values);
  [[nodiscard]] std::int64_t all_sum(std::int64_t value);
  [[nodiscard]] double all_sum(double value);
  void barrier();

  // Collective. If any rank has is_ok == false, all ranks throw an AgreedError with the message and
  // kind of the lowest rank that has it.
  void agree(bool is_ok, const std::string& message, ErrorKind kind = ErrorKind::usage);
  // Collective: runs f on every rank, then agrees, so that an exception on one rank is thrown on
  // all. f does not use MPI and may take as long as it needs (busy()).
  template <class F>
  void together(F f) {
    std::string message;
    int exit_code = 0;
    try {
      busy(f);
    } catch (...) {
      exit_code = exit_code_of_current_exception(message);
    }
    agree(exit_code == 0, message, static_cast<ErrorKind>(exit_code));
  }

  // Throws the error for a damaged message that the caller has received on handle(). `what` names
  // the message.
  [[noreturn]] void throw_damaged(std::string_view what, int from) const;
  // Waits for a request that the caller has made on handle(). `what` is the last part of the error
  // message "... silent for 60 s in WHAT".
  void wait(MPI_Request& request, const char* what);
  // Answers other ranks' pings (liveness.hpp). The thread that owns this object calls it a few
  // times a second while it is not waiting in one of the methods above.
  void serve() { liveness_.serve(whereabouts_); }
  // Sets the place in the run that serve() reports to other ranks.
  void set_whereabouts(const Whereabouts& whereabouts) { whereabouts_ = whereabouts; }
  [[nodiscard]] const Whereabouts& whereabouts() const { return whereabouts_; }

  // While a Lent exists, another thread owns the communicator. Only one Lent may exist at a time.
  class Lent {
   public:
    explicit Lent(Communicator& owner) : owner_(owner) {
      DP_ASSERT(!owner.is_lent_, "two exchanges use one communicator at the same time");
      owner.is_lent_ = true;
    }
    ~Lent() { owner_.is_lent_ = false; }
    Lent(const Lent&) = delete;
    Lent& operator=(const Lent&) = delete;

   private:
    Communicator& owner_;
  };

  // While a Busy exists, this rank reports to the other ranks that it is busy with work of its own,
  // and they wait while the work advances. The work must call comes_on() often. Unlike the function
  // that busy() runs, the work may use MPI.
  class Busy {
   public:
    explicit Busy(Communicator& owner) : owner_(owner), before_(owner.whereabouts_) {
      owner_.whereabouts_.is_busy = 1;
    }
    ~Busy() { owner_.whereabouts_ = before_; }
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;
    void comes_on() {
      ++owner_.whereabouts_.buckets_begun;
      owner_.serve();
    }

   private:
    Communicator& owner_;
    Whereabouts before_;
  };

 private:
  // The thread of busy().
  class Beats {
   public:
    explicit Beats(Communicator& owner);
    ~Beats();
    Beats(const Beats&) = delete;
    Beats& operator=(const Beats&) = delete;

   private:
    Communicator& owner_;
    std::mutex mutex_;
    std::condition_variable over_;
    bool is_over_ = false;
    std::thread thread_;
  };

  void gather_bytes(std::span<const std::byte> mine, void* all);
  template <class T>
  void add_in_parts(std::span<T> values);
  void all_gather_bytes(std::span<const std::byte> mine, void* all);
  void all_to_all_bytes(std::span<const std::byte> mine, std::span<const std::size_t> first_of_rank,
                        std::size_t size, std::span<std::byte> all);
  void check_part(std::span<const std::byte> part, int from, const char* what) const;

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1, local_rank_ = 0, local_size_ = 1;
  double timeout_s_ = kDefaultTimeout_s;
  std::string activity_;
  std::uint64_t control_bytes_ = 0;
  bool is_lent_ = false;
  struct Parts {
    std::vector<int> sizes, begins;
  } sent_parts_, received_parts_;  // of all_to_all
  // Checksums of the parts of a collective, by rank.
  std::vector<std::uint32_t> sent_checksums_, received_checksums_;
  std::vector<std::string> hosts_;
  PeerLinks links_;
  Whereabouts whereabouts_;
  Liveness liveness_;
};

}  // namespace dp
