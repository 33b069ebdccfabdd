// Finds out which ranks are alive: a question that every rank answers directly, and a deadline that
// uses it.
//
// In a ring all ranks stop when one stops, so a rank that only looks at its neighbour blames the
// wrong one. Therefore, when nothing has moved for half of the timeout, or for 5 s, a rank asks
// every other rank directly ("ping"), again and again. On the other rank, the thread that makes MPI
// calls answers with its place in the run. What the answers say:
//
//     no answer for half of the timeout   that rank is silent: the run ends; the message names the
//                                         rank and what the kernel knows of the link to it
//     all answer, one of them is busy     it loads, measures or sends to one rank: it is waited for
//                                         while it comes on, and 60 timeouts when it does not
//     all answer, nothing moves           after ten timeouts the run ends
//
// Meanwhile a slow rank is named in a warning. Of several ranks that notice the same, the lowest
// speaks: it tells the others first, which then keep quiet.
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

#include "comm/mpi/peer_links.hpp"
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

// A wait's deadline. Call moved() whenever something has happened and check() when nothing has.
class Deadline {
 public:
  // `links` may be null. All but the last two live longer than the deadline.
  Deadline(Liveness& liveness, const std::vector<std::string>& hosts, PeerLinks* links, int rank,
           double timeout_s);

  void moved() {
    since_ = came_on_ = Clock::now();
    has_asked_ = false;
    if (has_warned_) tell_moved();
  }
  // Throws Error(communication) when the time is over. `what` says what the rank waits for ("the
  // exchange of bucket 3 in step 17"); it is called only then, and for a warning.
  template <class What>
  void check(const Whereabouts& mine, What what) {
    const State state = look(mine);
    if (state == State::over) fail(mine, what());
    if (state == State::slow) warn(mine, what());
  }

 private:
  using Clock = Liveness::Clock;
  enum class State { going, slow, over };
  [[nodiscard]] State look(const Whereabouts& mine);
  [[nodiscard]] bool is_silent(int rank) const;
  [[nodiscard]] bool is_patience_over();
  [[nodiscard]] int furthest_behind(const Whereabouts& mine) const;
  [[nodiscard]] std::string name(int rank) const;
  [[nodiscard]] std::string place(const Whereabouts& where) const;
  [[nodiscard]] std::string about_link(int silent_rank) const;
  void await_turn(const Whereabouts& mine, int silent_ranks);
  [[noreturn]] void fail(const Whereabouts& mine, const std::string& what);
  void warn(const Whereabouts& mine, const std::string& what);
  void tell_moved();

  Liveness* liveness_;
  const std::vector<std::string>* hosts_;
  PeerLinks* links_;
  int rank_;
  double timeout_s_;
  // `asked_` is when the others were first asked, or when this process went on after it had been
  // stopped itself.
  Clock::time_point since_ = Clock::now(), asked_ = since_, asked_again_ = since_, looked_ = since_;
  // When busy ranks were last seen to come on, or to become or end being busy; what they had done.
  Clock::time_point came_on_ = since_;
  std::uint64_t work_done_ = 0;
  bool has_asked_ = false, has_warned_ = false;
  std::string warned_of_;
  Clock::time_point warned_since_;
};

}  // namespace dp
