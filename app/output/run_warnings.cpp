#include "app/output/run_warnings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "io/files/console.hpp"
#include "kernels/codecs/codec.hpp"

namespace dp {
namespace {

// "bucket 3 (layer3.0.conv1.weight to layer2.2.conv2.weight)"
std::string name_of(const std::vector<Bucket>& buckets, std::size_t b) {
  std::string name = fmt::format("bucket {}", b);
  const std::vector<TensorSlot>& tensors = buckets[b].tensors;
  if (tensors.empty() || tensors.front().name.empty()) return name;
  name += fmt::format(" ({}", tensors.front().name);
  if (tensors.size() > 1) name += fmt::format(" to {}", tensors.back().name);
  return name + ")";
}

}  // namespace

std::string floor_clash(const RateReport& rate, const RateLimits& limits,
                        const std::vector<Bucket>& buckets, const ExchangeWindow& window) {
  if (!(rate.wished_bits < limits.least_bits)) return {};
  // Rank 0 knows the reason for its own link only.
  const bool is_own = RateWish::of_bits(rate.hidden_bits).bits() <= rate.wished_bits;
  const std::string place = is_own && window.is_by_bucket && rate.binding_bucket
                                ? fmt::format("; from {} on there is no time left",
                                              name_of(buckets, *rate.binding_bucket))
                                : std::string();
  const std::string link =
      is_own ? fmt::format("rank 0's link carries {}/s, enough to hide {:.2g} bits per value {}",
                           format_bytes(rate.link_bytes_per_s), rate.wished_bits, window.when)
             : fmt::format(
                   "the slowest link of all ranks is enough to hide {:.2g} bits per value {} (rank "
                   "0's link carries {}/s, enough to hide {:.2g})",
                   rate.wished_bits, window.when, format_bytes(rate.link_bytes_per_s),
                   rate.hidden_bits);
  std::string advice = window.remedy;
  if (window.may_send_less) {
    advice += fmt::format(", or --compress auto:min={:.2g} at the price of accuracy",
                          std::max(limits.least_bits / 2, 0.01));
  }
  return fmt::format(
      "{}{}. The run sends the minimum, min={:g}, and training waits for the rest: try {}", link,
      place, limits.least_bits, advice);
}

std::string guard_at_work(const RateReport& rate, const std::vector<Bucket>& buckets) {
  if (!(rate.guard_factor > 1.0)) return {};
  const std::string most = rate.grown_bucket
                               ? fmt::format(", most in {}", name_of(buckets, *rate.grown_bucket))
                               : std::string();
  return fmt::format(
      "the residual of some rank is too large, more than {:.3g} times a step's values (growth= of "
      "ecq; on rank 0 {:.2g} times{}): {:.2g} times the planned bits are sent until it shrinks",
      rate.most_growth, rate.residual_growth, most, rate.guard_factor);
}

RunWarnings::RunWarnings(const RunDescription& run, RunSink& console)
    : run_(run), console_(console), limits_(run.rate_limits) {}

void RunWarnings::note_skipped_step(std::uint64_t global_step, const std::string& where,
                                    bool is_of_all) {
  const bool is_first = !std::exchange(has_skipped_, true);
  warn(fmt::format("step {}: the gradient is not finite on {}{}{}", global_step, where,
                   is_of_all ? "; all ranks skip this step" : "; this rank skips the step",
                   is_first ? "; if it happens again, try a smaller --lr, --clip-norm or "
                              "--warmup-epochs"
                            : ""));
}

void RunWarnings::note_skipped_by_others(std::size_t epoch, std::span<const std::int64_t> steps) {
  for (std::size_t r = 1; r < steps.size(); ++r) {
    if (steps[r] == 0) continue;
    warn(fmt::format("epoch {}: rank {} skipped {} step{}, because the gradient was not finite",
                     epoch + 1, r, steps[r], steps[r] == 1 ? "" : "s"));
  }
}

void RunWarnings::note_lost_round(std::uint64_t global_step, const std::string& where) {
  warn(
      fmt::format("step {}: the change of the parameters in this round is not finite on {}; all "
                  "ranks go back to the start of the round",
                  global_step, where));
}

void RunWarnings::note_loss(const EpochRow& row) {
  constexpr double kTimes = 2.0, kLeastRise = 0.5;
  const double guessing = std::log(static_cast<double>(run_.data->train->classes()));
  const double before = least_loss_;
  if (std::isfinite(row.train_loss)) least_loss_ = std::min(least_loss_, row.train_loss);
  const double usual = std::min(before, guessing);
  if (has_exploded_ || !(row.train_loss > std::max(kTimes * usual, usual + kLeastRise))) return;
  has_exploded_ = true;
  warn(fmt::format(
      "epoch {}: the training loss is {:.3g}, {}: try a smaller --lr, "
      "--warmup-epochs 1 or "
      "--clip-norm 1{}",
      row.epoch + 1, row.train_loss,
      before < guessing ? fmt::format("after {:.3g} in an earlier epoch", before)
                        : fmt::format("far above the loss of random guessing ({:.3g})", guessing),
      run_.options->compress.codec.is_exact() ? "" : ", or a finer --compress"));
}

void RunWarnings::note_images(const std::vector<std::string>& notes) {
  constexpr std::size_t kMostNamed = 5;
  std::size_t unnamed = 0;
  for (const std::string& note : notes) {
    // Another rank may meet the same image in a later epoch; an image is reported only once.
    if (!replaced_images_.insert(note).second) continue;
    if (replaced_images_.size() <= kMostNamed) {
      warn(note);
    } else {
      ++unnamed;
    }
  }
  if (unnamed > 0) {
    warn(
        fmt::format("{} more images cannot be decoded; the next images of their classes replace "
                    "them",
                    unnamed));
  }
}

void RunWarnings::note_rate(const EpochTally& tally) {
  if (limits_ && !has_met_floor_ && tally.has_exchanged) {
    // Warns only after several clashes in a row, because a single one may be an accident: after the
    // first exchanges the link is not known yet, and a busy machine may hang on single steps.
    constexpr int kClashes = 10;
    clashes_ = tally.rate.wished_bits < limits_->least_bits ? clashes_ + 1 : 0;
    has_met_floor_ = clashes_ >= kClashes;
    if (has_met_floor_) {
      warn(fmt::format("epoch {}: {}", tally.epoch + 1,
                       floor_clash(tally.rate, *limits_, run_.buckets, tally.window)));
    }
  }
  if (has_seen_guard_) return;
  const std::string text = guard_at_work(tally.rate, run_.buckets);
  has_seen_guard_ = !text.empty();
  if (has_seen_guard_) warn(fmt::format("epoch {}: {}", tally.epoch + 1, text));
}

void RunWarnings::warn_once(const std::string& line) {
  if (lines_.insert(line).second) warn(line);
}

}  // namespace dp
