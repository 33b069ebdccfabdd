#include "net/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace dp::net {

namespace {

double total_steps(const ScheduleOptions& options) {
  return static_cast<double>(options.steps_per_epoch) * static_cast<double>(options.epochs);
}

// If the learning rate changes only between epochs, rounds `step` down to the first step of its
// epoch. (A warm-up changes the learning rate at every step, so it uses `step` itself.)
double place_of_rate(const ScheduleOptions& options, double step) {
  const auto per_epoch = static_cast<double>(options.steps_per_epoch);
  return options.is_by_epoch ? std::floor(step / per_epoch) * per_epoch : step;
}

// The step at which the learning rate stops rising. This is the end of the warm-up, the last step
// of OneCycleLR's first phase, or the peak of `triangular`.
double end_of_rise(const ScheduleOptions& options) {
  const double total = total_steps(options);
  if (options.kind == ScheduleKind::onecycle) return 0.3 * total - 1.0;
  if (options.kind == ScheduleKind::triangular) return std::floor(options.peak_at * total);
  return std::min(options.warmup_epochs * static_cast<double>(options.steps_per_epoch), total);
}

// From `start` at t = 0 to `end` at t = 1 along half a cosine.
double anneal(double start, double end, double t) {
  return end + (start - end) / 2.0 * (1.0 + std::cos(std::numbers::pi * t));
}

double onecycle(const ScheduleOptions& options, double step, double total) {
  const double initial = options.learning_rate / 25.0, last = initial / 1e4;
  const double rise_end = end_of_rise(options), fall_end = total - 1.0;
  if (step <= rise_end) return anneal(initial, options.learning_rate, step / rise_end);
  if (fall_end <= rise_end) return options.learning_rate;
  return anneal(options.learning_rate, last, (step - rise_end) / (fall_end - rise_end));
}

double triangular(const ScheduleOptions& options, double step, double total) {
  const double peak = end_of_rise(options);
  const double share = step < peak ? options.start + (1.0 - options.start) * step / peak
                                   : 1.0 + (options.end - 1.0) * (step - peak) / (total - peak);
  return options.learning_rate * share;
}

}  // namespace

double learning_rate_at(const ScheduleOptions& options, double step) {
  const auto per_epoch = static_cast<double>(options.steps_per_epoch);
  const double total = total_steps(options);
  double now = place_of_rate(options, step);
  if (options.kind == ScheduleKind::onecycle) return onecycle(options, now, total);
  if (options.kind == ScheduleKind::triangular) return triangular(options, now, total);

  const double warmup = end_of_rise(options);
  // If the warm-up ends within a step, that step has the full learning rate.
  if (step < warmup) return options.learning_rate * std::min(1.0, (step + 1.0) / warmup);
  now = std::max(now, warmup);  // an epoch may begin during the warm-up
  switch (options.kind) {
    case ScheduleKind::step: {
      const auto passed =
          std::count_if(options.milestones.begin(), options.milestones.end(),
                        [&](double milestone) { return now >= milestone * per_epoch; });
      return options.learning_rate * std::pow(options.gamma, static_cast<double>(passed));
    }
    case ScheduleKind::cosine:
      return anneal(options.learning_rate, 0.0, (now - warmup) / std::max(total - warmup, 1.0));
    case ScheduleKind::poly: {
      const double t = (now - warmup) / std::max(total - warmup, 1.0);
      return options.learning_rate * std::pow(1.0 - t, options.power);
    }
    case ScheduleKind::constant:
    case ScheduleKind::onecycle:
    case ScheduleKind::triangular:
      break;
  }
  return options.learning_rate;
}

}  // namespace dp::net
