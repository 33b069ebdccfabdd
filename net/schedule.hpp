// Learning-rate schedules. The learning rate depends only on the position in the run, so there is
// no state to save.
#pragma once

#include <cstddef>
#include <vector>

namespace dp::net {

enum class ScheduleKind { constant, step, cosine, onecycle, triangular, poly };

struct ScheduleOptions {
  ScheduleKind kind = ScheduleKind::constant;
  double learning_rate = 0.1;  // the peak
  std::size_t steps_per_epoch = 1, epochs = 1;
  // Warm-up: over the n steps of the first warmup_epochs epochs, the learning rate rises linearly
  // from learning_rate / n to learning_rate (Goyal et al. 2017). Not for onecycle and triangular,
  // which rise by themselves.
  double warmup_epochs = 0;
  std::vector<double> milestones;  // step: epochs at which the rate is multiplied by gamma
  double gamma = 0.1;
  // triangular: the learning rate at the start and at the end, as fractions of learning_rate, and
  // the position of the peak, as a fraction of all steps.
  double start = 0.2, peak_at = 0.23, end = 0.07;
  double power = 2.0;        // poly
  bool is_by_epoch = false;  // the rate changes only between epochs (a warm-up: at every step)
};

// The learning rate of a global step, counted from 0. If some epochs have another number of steps
// than steps_per_epoch, `step` is steps_per_epoch times the epochs done, a fraction of an epoch
// included.
//   constant  learning_rate
//   step      learning_rate * gamma ^ (milestones passed)
//   cosine    learning_rate * (1 + cos(pi * t)) / 2, t from 0 to 1 after the warm-up;
//             Loshchilov and Hutter 2017, without restarts
//   onecycle  torch.optim.lr_scheduler.OneCycleLR(max_lr, pct_start 0.3, div_factor 25,
//             final_div_factor 1e4, cosine, momentum left alone); Smith 2018
//   triangular  learning_rate times a factor that rises linearly from start to 1 until step
//             floor(peak_at * steps) and then falls linearly to end; the default numbers are from
//             airbench94 (Jordan 2024)
//   poly      learning_rate * (1 - t) ^ power, t as for cosine; You et al. 2017 with power 2
[[nodiscard]] double learning_rate_at(const ScheduleOptions& options, double step);

}  // namespace dp::net
