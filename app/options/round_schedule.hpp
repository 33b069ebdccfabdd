// When ranks that train in rounds exchange (--sync-every).
//
//   off               no rounds: gradients are exchanged at every step
//   H[:key=value,...] rounds of H steps: each rank trains alone, and then all ranks exchange the
//                     changes of their parameters (round_sync.hpp)
//     from=E          rounds begin with epoch E, counted from 1; in earlier epochs, gradients are
//                     exchanged at every step (post-local SGD, Lin et al. 2020)
//
//   auto[:key=value,...]  gradients are exchanged at every step until waiting for the exchange
//                     takes more than a tenth of the computing time. Then there are rounds of H
//                     steps, and an exchange runs while the first H - 1 steps of the next round are
//                     computed. In the first epoch, a prediction decides between H = 2 and an
//                     exchange at every step. Later epochs follow the times of the epoch before: H
//                     is the smallest number, at most `max`, with which waiting takes at most a
//                     tenth of the computing time. Rounds that have begun become longer only above
//                     15 % (chosen_steps).
//     max=N           the largest H that may be chosen; 64 if it is not given
//
// The last round of an epoch ends with the epoch, even if it is shorter.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace dp {

struct RoundSchedule {
  std::size_t steps = 0;  // H, the steps of a round; 0: no rounds
  std::size_t from = 1;   // an epoch, counted from 1
  // The longest round that `auto` may choose; 0 without `auto`. With `auto`, H is 0 and `from` is
  // kNotChosen until the run has chosen them.
  std::size_t most_steps = 0;
  std::string given = "off";  // the value as text

  static constexpr std::size_t kNotChosen = static_cast<std::size_t>(-1);  // `from`, until chosen
  [[nodiscard]] bool is_auto() const { return most_steps > 0; }
  // Whether there may be rounds.
  [[nodiscard]] bool has_rounds() const { return steps > 0 || is_auto(); }
  [[nodiscard]] bool has_rounds_in(std::size_t epoch) const {  // counted from 0
    return has_rounds() && epoch + 1 >= from;
  }
  // "every 8 steps from epoch 3 on"; call it only for a schedule with rounds.
  [[nodiscard]] std::string text() const;
};

// Means over an epoch and the ranks.
struct EpochOfRounds {
  std::size_t steps = 1;     // between two exchanges; 1: an exchange at every step
  double compute_s = 0.0;    // of a step, without waiting for the exchange
  double exposed_s = 0.0;    // of an exchange: the time for which training waited
  double in_flight_s = 0.0;  // of an exchange: the time for which at least one bucket was in flight
};

// The steps H between two exchanges of the next epoch, 1 to `most`. An exchange takes at most
//     exchange_s = steps > 1 ? exposed_s + (steps - 1) x compute_s : max(exposed_s, in_flight_s)
// and runs during the first H - 1 steps of the next round. H is the smallest number with
//     exchange_s <= (H - 1) x compute_s + kShareOfWaiting x H x compute_s
// Rounds become longer only if exposed_s > kShareForLonger x steps x compute_s: codecs with a mean
// number of bits send more at the start of a run, and longer rounds can cost accuracy. H is 1 if
// gradients were exchanged at every step with exposed_s <= kShareOfWaiting x compute_s. Rounds of
// up to 10 steps never become shorter if their exchange hides: in_flight_s is not used there,
// because it includes the wait for ranks that end their round later.
inline constexpr double kShareOfWaiting = 0.1, kShareForLonger = 0.15;
[[nodiscard]] std::size_t chosen_steps(const EpochOfRounds& epoch, std::size_t most);

inline constexpr const char* kRoundSchedules =
    "off, auto[:key=value,...] or H[:key=value,...], with H from 1 to 1000000; keys: from=EPOCH "
    "from 1 to 100000; only with auto: max=N from 2 to 1000000";

// Throws Error(usage). For a key of earlier versions the message says that it was removed.
[[nodiscard]] RoundSchedule parse_round_schedule(std::string_view text);

}  // namespace dp
