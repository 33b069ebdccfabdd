#include "app/training/setup/run_options.hpp"

#include <algorithm>

#include "app/options/options_values.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

net::ScheduleKind kind_of(Options::LrSchedule schedule) {
  switch (schedule) {
    case Options::LrSchedule::step:
      return net::ScheduleKind::step;
    case Options::LrSchedule::cosine:
      return net::ScheduleKind::cosine;
    case Options::LrSchedule::onecycle:
      return net::ScheduleKind::onecycle;
    case Options::LrSchedule::triangular:
      return net::ScheduleKind::triangular;
    case Options::LrSchedule::poly:
      return net::ScheduleKind::poly;
    case Options::LrSchedule::constant:
      break;
  }
  return net::ScheduleKind::constant;
}

net::OptimizerKind kind_of(Options::Optimizer optimizer) {
  switch (optimizer) {
    case Options::Optimizer::adam:
      return net::OptimizerKind::adam;
    case Options::Optimizer::adamw:
      return net::OptimizerKind::adamw;
    case Options::Optimizer::lars:
      return net::OptimizerKind::lars;
    case Options::Optimizer::muon:
      return net::OptimizerKind::muon;
    case Options::Optimizer::sgd:
      break;
  }
  return net::OptimizerKind::sgd;
}

}  // namespace

net::OptimizerOptions optimizer_options(const Options& options) {
  return {.kind = kind_of(options.optimizer),
          .momentum = static_cast<float>(options.momentum),
          .weight_decay = static_cast<float>(options.weight_decay),
          .has_nesterov = options.nesterov,
          .clip_norm = options.clip_norm,
          .beta1 = options.beta1,
          .beta2 = options.beta2,
          .epsilon = options.epsilon,
          .trust = options.lars_trust,
          .muon_rate_factor = options.muon_lr / options.lr,
          .muon_momentum = static_cast<float>(options.muon_momentum),
          .muon_has_linear = options.muon_linear};
}

bool auto_sends_velocities(const Options& options, DeviceKind device) {
  const net::OptimizerKind kind = kind_of(options.optimizer);
  const bool can_leave = (net::can_leave_momentum(kind) && options.momentum > 0) ||
                         (device == DeviceKind::cpu && net::can_leave_step(kind));
  return can_leave && options.clip_norm == 0 && !options.sync_every.has_rounds();
}

std::vector<std::string> names_in(const std::string& list) {
  std::vector<std::string> names = split_at_commas(list);
  std::erase(names, "");
  return names;
}

net::GroupOptions group_options(const Options& options) {
  net::GroupOptions groups = {.no_decay = names_in(options.no_decay)};
  for (const auto& [name, factor] : options.lr_factors) {
    groups.lr_factors.push_back({name, factor});
  }
  for (const auto& [name, factor] : options.decay_factors) {
    groups.decay_factors.push_back({name, factor});
  }
  return groups;
}

net::ScheduleOptions schedule_options(const Options& options, double scaling,
                                      std::size_t steps_per_epoch) {
  return {.kind = kind_of(options.lr_schedule),
          .learning_rate = options.lr * scaling,
          .steps_per_epoch = steps_per_epoch,
          .epochs = checked_cast<std::size_t>(options.epochs),
          .warmup_epochs = options.warmup_epochs,
          .milestones = options.lr_milestones,
          .gamma = options.lr_gamma,
          .start = options.lr_start,
          .peak_at = options.lr_peak_at,
          .end = options.lr_end,
          .power = options.lr_power,
          .is_by_epoch = options.lr_interval == Options::LrInterval::epoch};
}

std::optional<RoundOptions> round_options(const Options& options, const RoundSchedule& rounds,
                                          std::size_t ranks) {
  if (!rounds.has_rounds()) return std::nullopt;
  return RoundOptions{
      .ranks = ranks,
      .outer = {.learning_rate = options.outer_lr, .momentum = options.outer_momentum},
      .delay = checked_cast<std::size_t>(options.sync_delay),
      .has_longest_delay = rounds.is_auto()};
}

std::optional<AugmentationRule> augmentation_rule(const Options& options) {
  if (!options.augment) return std::nullopt;
  return AugmentationRule{.crop_padding = static_cast<int>(options.crop_padding),
                          .is_reflected = options.crop_fill == Options::CropFill::reflect,
                          .flip = options.flip,
                          .cutout = static_cast<int>(options.cutout)};
}

std::optional<AugmentationRule> augmentation_rule(const Options& options, const ImageShape& shape) {
  const std::optional<AugmentationRule> chosen = augmentation_rule(options);
  if (!chosen) return std::nullopt;
  const AugmentationRule& rule = *chosen;
  const std::size_t side = std::min(shape.height, shape.width);
  if (!fits({.cutout = rule.cutout}, shape)) {
    throw_error(ErrorKind::usage,
                "--augment on:cutout={}: must be at most {}, the side of the images", rule.cutout,
                side);
  }
  if (!fits(rule, shape)) {
    throw_error(ErrorKind::usage,
                "--augment on:padding={}: must be less than {}, the side of the images, because of "
                "fill=reflect",
                rule.crop_padding, side);
  }
  return rule;
}

}  // namespace dp
