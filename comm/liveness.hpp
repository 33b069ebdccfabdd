// Finds out which ranks are alive: a question that every rank answers directly, and a deadline that
// uses it.
//
// In a ring all ranks stop when one stops, so a rank that only looks at its neighbour blames the
// wrong one. Therefore, when nothing has moved for half of the timeout, a rank asks every other
// rank directly ("ping"). On the other rank, the thread that makes MPI calls answers with its place
// in the run. A rank that has not answered when the timeout ends is silent, and the message names
// it. A rank that answers is alive. It may be in a long computation, so the others wait for ten
// timeouts before they give up.
//
// These messages have their own communicator and are sent only in trouble. They do not count as
// wire bytes of an exchange; sent_bytes() counts them.
#pragma once

#include <mpi.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace dp {

// A rank's place in the run, as it tells others. `buckets_begun` counts within `step`.
struct Whereabouts {
  std::uint64_t step = 0;
  std::uint32_t buckets_begun = 0;
  std::uint32_t is_in_step = 0;
};

class Liveness {
 public:
  static constexpr std::size_t kMessageBytes = 24;  // of a question, and of an answer

  // Collective.
  explicit Liveness(MPI_Comm parent);
  ~Liveness();
  Liveness(const Liveness&) = delete;
  Liveness& operator=(const Liveness&) = delete;

  // Answers questions and receives answers that have come. Never waits.
  void serve(const Whereabouts& mine);
  // Asks all other ranks; forgets earlier answers.
  void ask();
  [[nodiscard]] bool has_answered(int rank) const;
  [[nodiscard]] const Whereabouts& whereabouts(int rank) const;
  // The bytes of all questions and answers that this rank has sent.
  [[nodiscard]] std::uint64_t sent_bytes() const { return sent_bytes_; }

 private:
  struct Message {
    std::uint32_t is_answer = 0;
    std::uint32_t round = 0;
    Whereabouts where;
  };
  static_assert(sizeof(Message) == kMessageBytes);
  struct Outgoing {
    Message message;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  void post_receive();
  void send(Outgoing& slot, int to, const Message& message);

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  std::uint32_t round_ = 0;
  std::uint64_t sent_bytes_ = 0;
  Message incoming_;
  MPI_Request receive_ = MPI_REQUEST_NULL;
  std::vector<Outgoing> questions_, answers_;  // one of each per rank
  std::vector<bool> has_answered_;
  std::vector<Whereabouts> where_;
};

// A wait's deadline. Call moved() whenever something has happened and check() when nothing has.
class Deadline {
 public:
  Deadline(Liveness& liveness, const std::vector<std::string>& hosts, int rank, double timeout_s);

  void moved() {
    since_ = Clock::now();
    has_asked_ = false;
  }
  // Throws Error(communication) when the time is over. `what` says what the rank waits for ("the
  // exchange of bucket 3 in step 17"); it is called only then.
  template <class What>
  void check(const Whereabouts& mine, What what) {
    if (is_over(mine)) fail(mine, what());
  }

 private:
  using Clock = std::chrono::steady_clock;
  [[nodiscard]] bool is_over(const Whereabouts& mine);
  [[noreturn]] void fail(const Whereabouts& mine, const std::string& what);

  Liveness* liveness_;
  const std::vector<std::string>* hosts_;
  int rank_;
  double timeout_s_;
  Clock::time_point since_ = Clock::now(), asked_ = since_;
  bool has_asked_ = false;
};

}  // namespace dp
