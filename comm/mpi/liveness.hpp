// Pings: finds out which ranks are alive. Every rank answers a ping directly.
//
// In a ring all ranks stop when one stops, so a rank that watched only its neighbour would blame
// the wrong rank. Instead, a rank that has waited for long pings every other rank (deadline.hpp).
// On each of them, the thread that makes MPI calls answers with the rank's place in the run.
//
// Pings have their own communicator and are sent only when something is late. They are not part of
// an exchange's wire bytes; sent_bytes() counts them.
#pragma once

#include <mpi.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/mpi/seal.hpp"

namespace dp {

// A rank's place in the run, as the rank reports it. `buckets_begun` counts the buckets of training
// step `step`. While `is_busy` is set, `buckets_begun` counts finished pieces of the rank's other
// work instead, if the rank counts them.
struct Whereabouts {
  std::uint64_t step = 0;
  std::uint32_t buckets_begun = 0;
  std::uint32_t is_in_step = 0;
  std::uint32_t is_busy = 0;  // 1: the rank is busy with work of its own
};

// How long to wait for ranks that answer, in timeouts.
struct Patience {
  double with_living = 10.0;
  double with_busy = 60.0;  // for a busy rank, since its work last advanced
};

class Liveness {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t kMessageBytes = 32 + kSealBytes;  // of a ping or an answer

  // Collective.
  explicit Liveness(MPI_Comm parent);
  ~Liveness();
  Liveness(const Liveness&) = delete;
  Liveness& operator=(const Liveness&) = delete;

  // Answers pings and takes answers that have arrived. Never waits. If a ping or an answer was
  // damaged, this call and all later ones throw Error(communication).
  void serve(const Whereabouts& mine);
  // Pings all other ranks and forgets their earlier answers.
  void ask();
  // Pings all other ranks again and keeps their earlier answers.
  void ask_again();
  [[nodiscard]] bool has_answered(int rank) const;
  // The time of the rank's last answer; the clock's epoch if it has not answered since ask().
  [[nodiscard]] Clock::time_point answered_at(int rank) const;
  [[nodiscard]] const Whereabouts& whereabouts(int rank) const;
  // Notifies the other ranks that this rank will report the failure and end the job.
  void tell_end();
  // Whether another rank has sent that notification.
  [[nodiscard]] bool is_ending() const { return is_ending_; }
  // The bytes of all pings and answers that this rank has sent.
  [[nodiscard]] std::uint64_t sent_bytes() const { return sent_bytes_; }

  // Sets the receiver of warnings about slow ranks; empty: none. Warnings are rate-limited
  // (may_warn).
  void set_warn(std::function<void(const std::string&)> warn) { warn_ = std::move(warn); }
  [[nodiscard]] bool may_warn() const { return warn_ && Clock::now() >= next_warning_; }
  void warn(const std::string& text);
  void say(const std::string& text) const { warn_(text); }  // a follow-up to a warning

  void set_patience(const Patience& patience) { patience_ = patience; }
  [[nodiscard]] const Patience& patience() const { return patience_; }

 private:
  enum class Kind : std::uint32_t { question, answer, end };
  struct Message {
    Kind kind = Kind::question;
    std::uint32_t round = 0;
    Whereabouts where;
  };
  static_assert(Sealed<Message>::kBytes == kMessageBytes);
  struct Outgoing {
    Sealed<Message> message;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  void post_receive();
  void send(Outgoing& slot, int to, const Message& message);

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  std::uint32_t round_ = 0;
  std::uint64_t sent_bytes_ = 0;
  Sealed<Message> incoming_;
  std::optional<int> damaged_from_;  // the sender of a damaged message
  MPI_Request receive_ = MPI_REQUEST_NULL;
  std::vector<Outgoing> questions_, answers_, ends_;  // one of each per rank
  std::vector<Clock::time_point> answered_at_;
  std::vector<Whereabouts> where_;
  bool is_ending_ = false;
  std::function<void(const std::string&)> warn_;
  Clock::time_point next_warning_;
  Clock::duration between_warnings_;
  Patience patience_;
};

}  // namespace dp
