// The deadline of a wait: when nothing has moved for too long, the deadline identifies the rank at
// fault and ends the run.
//
// When nothing has moved for half of the timeout (5 s at most), this rank pings every other rank
// repeatedly (liveness.hpp). The answers decide what happens:
//
//     no answer for half of the timeout   that rank is silent: the run ends, and the message names
//                                         the rank and the state of the link to it (peer_links.hpp)
//     all answer, one of them is busy     the busy rank loads, measures or sends to a single rank:
//                                         the wait goes on while this work advances, and ends after
//                                         60 timeouts without an advance
//     all answer, nothing moves           the run ends after ten timeouts
//
// Meanwhile a warning names a slow rank. If several ranks notice a failure, the lowest of them
// reports it. It first notifies the others, which then stay silent.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/mpi/liveness.hpp"
#include "comm/mpi/peer_links.hpp"

namespace dp {

// Call moved() whenever something has happened and check() when nothing has.
class Deadline {
 public:
  // `links` may be null. The first three arguments must outlive the deadline.
  Deadline(Liveness& liveness, const std::vector<std::string>& hosts, PeerLinks* links, int rank,
           double timeout_s);

  void moved() {
    since_ = came_on_ = Clock::now();
    has_asked_ = false;
    if (has_warned_) tell_moved();
  }
  // Throws Error(communication) when the time is over. what() describes what the caller waits for
  // ("the exchange of bucket 3 in step 17"). It is called only for the error and for a warning.
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
  // `asked_` is the time of the first ping, or the time when this process continued after it had
  // been stopped itself.
  Clock::time_point since_ = Clock::now(), asked_ = since_, asked_again_ = since_, looked_ = since_;
  // `work_done_` is the sum of the busy ranks' work. `came_on_` is the last time when this sum
  // changed, because work advanced or because a rank became or ceased to be busy.
  Clock::time_point came_on_ = since_;
  std::uint64_t work_done_ = 0;
  bool has_asked_ = false, has_warned_ = false;
  std::string warned_of_;
  Clock::time_point warned_since_;
};

}  // namespace dp
