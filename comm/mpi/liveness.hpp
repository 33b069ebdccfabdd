// Finds out which ranks are alive: a question ("ping") that every rank answers directly.
//
// In a ring all ranks stop when one stops, so a rank that only looks at its neighbour blames the
// wrong one. A rank whose wait is long asks every other rank (deadline.hpp). On the other rank, the
// thread that makes MPI calls answers with its place in the run.
//
// These messages have their own communicator and are sent only in trouble. They do not count as
// wire bytes of an exchange; sent_bytes() counts them.
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

// A rank's place in the run, as it tells others. `buckets_begun` counts within `step`; while
// `is_busy`, it counts what else the rank has done, if it knows.
struct Whereabouts {
  std::uint64_t step = 0;
  std::uint32_t buckets_begun = 0;
  std::uint32_t is_in_step = 0;
  std::uint32_t is_busy = 0;  // works without the others
};

// How long ranks that answer are waited for, in timeouts.
struct Patience {
  double with_living = 10.0;
  double with_busy = 60.0;  // since it has come on
};

class Liveness {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t kMessageBytes = 32 + kSealBytes;  // of a question or an answer

  // Collective.
  explicit Liveness(MPI_Comm parent);
  ~Liveness();
  Liveness(const Liveness&) = delete;
  Liveness& operator=(const Liveness&) = delete;

  // Answers questions and receives answers that have come. Never waits. If one of them was damaged,
  // this call and all later ones throw Error(communication).
  void serve(const Whereabouts& mine);
  // Asks all other ranks; forgets earlier answers.
  void ask();
  // Asks them once more; keeps earlier answers.
  void ask_again();
  [[nodiscard]] bool has_answered(int rank) const;
  // When its last answer came; the beginning of time if it has not answered since ask().
  [[nodiscard]] Clock::time_point answered_at(int rank) const;
  [[nodiscard]] const Whereabouts& whereabouts(int rank) const;
  // Tells the others that this rank ends the job and says why.
  void tell_end();
  // Whether another rank has told it.
  [[nodiscard]] bool is_ending() const { return is_ending_; }
  // The bytes of all questions and answers that this rank has sent.
  [[nodiscard]] std::uint64_t sent_bytes() const { return sent_bytes_; }

  // Where warnings about slow ranks go; empty: nowhere. One is due now and then, at most.
  void set_warn(std::function<void(const std::string&)> warn) { warn_ = std::move(warn); }
  [[nodiscard]] bool may_warn() const { return warn_ && Clock::now() >= next_warning_; }
  void warn(const std::string& text);
  void say(const std::string& text) const { warn_(text); }  // what follows a warning

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
