// When ranks that train in rounds exchange (--sync-every).
//
//   off               there are no rounds: gradients are exchanged at every step
//   H[:key=value,...] each rank trains alone for H steps, a round, and then all exchange what their
//                     parameters have changed by (round_sync.hpp)
//     from=E          rounds begin with epoch E, counted from 1; before it, gradients are exchanged
//                     at every step (post-local SGD, Lin et al. 2020)
//     alpha=X         a round has max(H, floor((X / rate)^2)) steps, with the learning rate of its
//                     first one (the quadratic synchronization rule, Gu et al. 2024)
//     decay=X         what codecs have not delivered yet is multiplied by X before each exchange
//                     (SparseLoCo, Sarfi et al. 2025); 1: nothing is lost
//     state=own|mean  after a round each rank keeps its optimiser's state, or all take the mean
//
// The last round of an epoch ends with it, however short it is.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace dp {

struct RoundSchedule {
  std::size_t least_steps = 0;  // H; 0: no rounds
  std::size_t from = 1;         // an epoch, counted from 1
  double alpha = 0.0;           // 0: all rounds have H steps
  double decay = 1.0;
  bool takes_mean_state = false;

  [[nodiscard]] bool has_rounds() const { return least_steps > 0; }
  [[nodiscard]] bool has_rounds_in(std::size_t epoch) const {  // counted from 0
    return has_rounds() && epoch + 1 >= from;
  }
  // The steps of a round that begins with that learning rate.
  [[nodiscard]] std::size_t steps_at(double learning_rate) const;
  // "every 8 steps from epoch 3 on"; of a schedule with rounds.
  [[nodiscard]] std::string text() const;
};

inline constexpr const char* kRoundSchedules =
    "off or H[:key=value,...], H from 1 to 1000000; keys: from=EPOCH from 1 to 100000, alpha=X "
    "above 0 up to 1000, decay=X from 0 to 1, state=own or mean";

// Throws Error(usage) with the option's name.
[[nodiscard]] RoundSchedule parse_round_schedule(std::string_view option, std::string_view text);

}  // namespace dp
