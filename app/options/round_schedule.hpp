// When ranks that train in rounds exchange (--sync-every).
//
//   off               there are no rounds: gradients are exchanged at every step
//   H[:key=value,...] each rank trains alone for H steps, a round, and then all exchange what their
//                     parameters have changed by (round_sync.hpp)
//     from=E          rounds begin with epoch E, counted from 1; before it, gradients are exchanged
//                     at every step (post-local SGD, Lin et al. 2020)
//
//   auto[:key=value,...]  gradients are exchanged at every step until an epoch has waited for the
//                     exchange more than a tenth of the time that it computed; from then on rounds
//                     are as long as they must be for a tenth (chosen_steps), at most
//     max=N             64 steps without it
//
// The last round of an epoch ends with it, however short it is.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace dp {

struct RoundSchedule {
  std::size_t steps = 0;  // H, of a round; 0: no rounds
  std::size_t from = 1;   // an epoch, counted from 1
  // The longest round that auto may choose; 0 without auto. With auto, H is 0 and `from` is
  // kNotChosen until the run has chosen them.
  std::size_t most_steps = 0;
  std::string given = "off";  // its text

  static constexpr std::size_t kNotChosen = static_cast<std::size_t>(-1);  // as `from`
  [[nodiscard]] bool is_auto() const { return most_steps > 0; }
  // Whether there may be rounds.
  [[nodiscard]] bool has_rounds() const { return steps > 0 || is_auto(); }
  [[nodiscard]] bool has_rounds_in(std::size_t epoch) const {  // counted from 0
    return has_rounds() && epoch + 1 >= from;
  }
  // "every 8 steps from epoch 3 on"; call it only for a schedule with rounds.
  [[nodiscard]] std::string text() const;
};

// What an epoch has measured, as means over the ranks.
struct EpochOfRounds {
  double compute_s = 0.0;   // of a step, without waiting for the exchange
  double backward_s = 0.0;  // of it; an exchange at every step may have begun so much earlier
  double exposed_s = 0.0;   // of an exchange
  bool is_in_rounds = false;
};

// The steps between two exchanges of the next epoch; 1: an exchange at every step, as before.
//     rounds:      ceil(exposed_s / (share x compute_s))
//     every step:  1 if exposed_s <= share x compute_s, otherwise as above with exposed_s +
//                  backward_s, since nothing of an exchange hides in rounds
// with a share of a tenth, and at most `most`.
inline constexpr double kShareOfWaiting = 0.1;
[[nodiscard]] std::size_t chosen_steps(const EpochOfRounds& epoch, std::size_t most);

inline constexpr const char* kRoundSchedules =
    "off, auto[:key=value,...] or H[:key=value,...], H from 1 to 1000000; keys: from=EPOCH from 1 "
    "to 100000; of auto: max=N from 2 to 1000000";

// Throws Error(usage). For a key of earlier versions the message says that it was removed.
[[nodiscard]] RoundSchedule parse_round_schedule(std::string_view text);

}  // namespace dp
