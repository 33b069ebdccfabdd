#include "app/training/shares/share_control.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "kernels/base/error.hpp"

namespace dp {
namespace {

// The largest fraction of a step's time that a model may take as fixed, independent of the number
// of images.
constexpr double kMostFixed = 0.6;
// Two measurements determine both parameters of a model only if their numbers of images differ by
// more than this fraction, because times differ by a few per cent by chance.
constexpr double kDistinct = 0.3;
// If a measured time differs from the model's by more than this fraction, the model is scaled to
// that time alone. Otherwise the model is scaled to the mean of the times since the last such jump,
// or of the last kMostInMean times.
constexpr double kJump = 0.1;
constexpr std::size_t kMostInMean = 5;
// The fraction of the expected gain that a trial must achieve to succeed. If the expected gain is
// below kSureGain, the trial lasts kTrialIntervals, because the times of steps differ by chance.
constexpr double kFairPart = 0.3;
constexpr std::size_t kTrialIntervals = 3;

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}
// A machine's speed has changed if its time differs from the time before by a factor of more than
// kOtherSpeed. If the machine's share has changed, the time is compared with the model's instead,
// and the factor is kOtherThanModel.
constexpr double kOtherSpeed = 1.2, kOtherThanModel = 1.6;

bool is_beyond(double ratio, double factor) { return ratio > factor || ratio < 1.0 / factor; }

}  // namespace

ShareControl::ShareControl(std::vector<std::size_t> machine_of_rank, std::size_t least)
    : machine_of_rank_(std::move(machine_of_rank)),
      least_(least),
      machines_(std::ranges::max(machine_of_rank_) + 1),
      models_(machine_of_rank_.size()) {}

bool ShareControl::learn_one(Machine& machine, double images, double seconds) {
  StepModel& model = machine.model;
  bool has_changed = false;
  if (machine.images == 0) {
    model = StepModel::guess(images, seconds);
  } else {
    const double change = images - machine.images;
    const double predicted = model.fixed_s + model.image_s * images;
    const double slope = (seconds - machine.seconds) / change;
    const double fixed = seconds - slope * images;
    has_changed = change == 0.0 ? is_beyond(seconds / machine.seconds, kOtherSpeed)
                                : is_beyond(seconds / predicted, kOtherThanModel);
    if (std::abs(change) > kDistinct * machine.images && fixed >= 0.0 &&
        fixed <= kMostFixed * seconds) {
      model = {fixed, slope};
      machine.agreeing = 1;
    } else {
      const double ratio = seconds / predicted;
      const bool jumps = std::abs(ratio - 1.0) > kJump;
      machine.agreeing = jumps ? 1 : std::min(machine.agreeing + 1, kMostInMean);
      const double factor = 1.0 + (ratio - 1.0) / static_cast<double>(machine.agreeing);
      model = {factor * model.fixed_s, factor * model.image_s};
    }
  }
  machine.images = images;
  machine.seconds = seconds;
  return has_changed;
}

bool ShareControl::learn(std::span<const ShareMeasurement> measured,
                         std::span<const std::size_t> images) {
  std::vector<double> ranks(machines_.size()), sum_images(machines_.size()),
      sum_s(machines_.size());
  for (std::size_t r = 0; r < measured.size(); ++r) {
    const std::size_t m = machine_of_rank_[r];
    ranks[m] += 1.0;
    sum_images[m] += static_cast<double>(images[r]);
    sum_s[m] += measured[r].compute_s;
  }
  bool has_changed = false;
  for (std::size_t m = 0; m < machines_.size(); ++m) {
    if (learn_one(machines_[m], sum_images[m] / ranks[m], sum_s[m] / ranks[m])) has_changed = true;
  }
  for (std::size_t r = 0; r < models_.size(); ++r) {
    models_[r] = machines_[machine_of_rank_[r]].model;
  }
  return has_changed;
}

std::vector<double> ShareControl::seconds_of_machines() const {
  std::vector<double> seconds;
  for (const Machine& machine : machines_) seconds.push_back(machine.seconds);
  return seconds;
}

bool ShareControl::has_changed_since_failure() const {
  for (std::size_t m = 0; m < seconds_at_failure_.size(); ++m) {
    const double ratio = machines_[m].seconds / seconds_at_failure_[m];
    if (is_beyond(ratio, kOtherSpeed)) return true;
  }
  return false;
}

bool ShareControl::can_learn(std::span<const ShareMeasurement> measured,
                             std::span<const std::size_t> images) const {
  DP_ASSERT(measured.size() == models_.size() && images.size() == models_.size(),
            "{} measurements of {} ranks", measured.size(), models_.size());
  return std::ranges::all_of(measured, [](const auto& m) { return m.compute_s > 0.0; }) &&
         std::ranges::all_of(images, [](std::size_t n) { return n > 0; });
}

ShareControl::Best ShareControl::best(std::span<const ShareMeasurement> measured,
                                      std::span<const std::size_t> images) const {
  const std::size_t ranks = images.size();
  const std::size_t all = std::accumulate(images.begin(), images.end(), std::size_t{0});
  const std::size_t even = (all + ranks - 1) / ranks;
  constexpr std::size_t kMostLeast = 8;
  const std::size_t asked = least_ > 0 ? least_ : std::min(kMostLeast, all / ranks / 4);
  std::vector<ShareBounds> bounds;
  for (const ShareMeasurement& each : measured) {
    bounds.push_back(
        {std::max<std::size_t>(std::min(asked, all / ranks), 1), std::max(each.most_images, even)});
  }
  Best best{.images = divide_images(all, models_, bounds)};
  best.gain_s = slowest_s(models_, images) - slowest_s(models_, best.images);
  return best;
}

std::optional<std::vector<std::size_t>> ShareControl::begin(
    std::span<const ShareMeasurement> measured, std::span<const std::size_t> images) {
  if (!can_learn(measured, images)) return std::nullopt;
  static_cast<void>(learn(measured, images));
  Best found = best(measured, images);
  if (found.gain_s < kSureGain * slowest_s(models_, images)) return std::nullopt;
  return std::move(found.images);
}

std::optional<ShareControl::Decision> ShareControl::decide(
    std::span<const ShareMeasurement> measured, std::span<const std::size_t> images) {
  if (!can_learn(measured, images)) return std::nullopt;
  if (learn(measured, images)) {  // earlier measurements no longer hold
    trial_.reset();
    steps_s_.clear();
    pause_ = 0;
    next_pause_ = kFirstPause;
  }
  const auto ranks = measured.size();
  double step_now_s = 0;
  for (const ShareMeasurement& each : measured) {
    step_now_s += each.step_s / static_cast<double>(ranks);
  }
  steps_s_.push_back(step_now_s);
  if (steps_s_.size() > kTrialIntervals) steps_s_.erase(steps_s_.begin());

  if (trial_) {
    const bool is_sure = trial_->gain_s >= kSureGain * trial_->step_s;
    if (!is_sure && steps_s_.size() < kTrialIntervals) return std::nullopt;
    const auto trial = std::exchange(trial_, std::nullopt);
    const double step_s = mean_of(steps_s_);
    if (step_s > trial->step_s - kFairPart * trial->gain_s) {
      steps_s_.clear();
      pause_ = next_pause_;
      next_pause_ = std::min(2 * next_pause_, kLongestPause);
      seconds_at_failure_ = trial->seconds;
      return Decision{.images = trial->before,
                      .is_undone = true,
                      .step_s = step_s,
                      .expected_s = trial->step_s};
    }
    next_pause_ = kFirstPause;
  }
  if (pause_ > 0) {
    --pause_;
    if (!has_changed_since_failure()) return std::nullopt;
    pause_ = 0;
    next_pause_ = kFirstPause;
  }

  Best next = best(measured, images);
  const double gain_s = next.gain_s;
  const double step_s = mean_of(steps_s_);
  const bool had_wish = std::exchange(has_wish_, gain_s >= kLeastGain * step_s);
  if (!has_wish_ || (!had_wish && gain_s < kSureGain * step_s)) return std::nullopt;
  has_wish_ = false;
  steps_s_.clear();
  trial_ = Trial{{images.begin(), images.end()}, step_s, gain_s, seconds_of_machines()};
  return Decision{
      .images = std::move(next.images), .step_s = step_s, .expected_s = step_s - gain_s};
}

}  // namespace dp
