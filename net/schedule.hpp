// Learning-rate schedules. They are functions of the step, so they have no state to save.
#pragma once

#include <cstddef>
#include <vector>

namespace dp::net {

enum class ScheduleKind { constant, step, cosine, onecycle };

struct ScheduleOptions {
  ScheduleKind kind = ScheduleKind::constant;
  double learning_rate = 0.1;  // the peak
  std::size_t steps_per_epoch = 1, epochs = 1;
  // The rate rises linearly from learning_rate / steps to learning_rate over the first epochs (not
  // for onecycle, which rises by itself); Goyal et al. 2017.
  double warmup_epochs = 0;
  std::vector<double> milestones;  // step: epochs at which the rate is multiplied by gamma
  double gamma = 0.1;
};

// The rate of a global step, counted from 0.
//   constant  learning_rate
//   step      learning_rate * gamma ^ (milestones passed)
//   cosine    learning_rate * (1 + cos(pi * t)) / 2, t from 0 to 1 after the warm-up;
//             Loshchilov and Hutter 2017, without restarts
//   onecycle  torch.optim.lr_scheduler.OneCycleLR(max_lr, pct_start 0.3, div_factor 25,
//             final_div_factor 1e4, cosine, momentum left alone); Smith 2018
[[nodiscard]] double learning_rate_at(const ScheduleOptions& options, std::size_t step);

}  // namespace dp::net
