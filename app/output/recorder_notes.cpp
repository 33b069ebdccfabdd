// What the recorder warns of, and what the run could not write.
#include <algorithm>
#include <cmath>
#include <utility>

#include "app/output/recorder.hpp"

namespace dp {

void Recorder::note_skipped_step(std::uint64_t global_step, const std::string& where,
                                 bool is_of_all) {
  if (!is_speaker()) return;
  const bool is_first = !std::exchange(has_skipped_, true);
  warn(fmt::format("step {}: the gradient is not finite on {}{}{}", global_step, where,
                   is_of_all ? "; all ranks skip this step" : "; it skips this step",
                   is_first ? "; if it happens again, try a smaller --lr, --clip-norm or "
                              "--warmup-epochs"
                            : ""));
}

// Rank 0 has told of its own steps.
void Recorder::note_skipped_by_others(const EpochTally& tally,
                                      const std::vector<RankRecord>& ranks) {
  if (!tally.is_judged_alone) return;
  for (std::size_t r = 1; r < ranks.size(); ++r) {
    const std::int64_t skipped = ranks[r].own_skipped_steps;
    if (skipped == 0) continue;
    warn(fmt::format("epoch {}: rank {} has skipped {} step{}, whose gradients were not finite",
                     tally.epoch + 1, r, skipped, skipped == 1 ? "" : "s"));
  }
}

void Recorder::note_lost_round(std::uint64_t global_step, const std::string& where) {
  if (!is_speaker()) return;
  warn(
      fmt::format("step {}: what the parameters changed by in this round is not finite on "
                  "{}; all ranks go back to where the round began",
                  global_step, where));
}

// A loss that grows again, far above what it was, or that is far above that of guessing.
void Recorder::note_loss(const EpochRow& row) {
  constexpr double kTimes = 2.0, kLeastRise = 0.5;
  const double guessing = std::log(static_cast<double>(run_.data->train->classes()));
  const double before = least_loss_;
  if (std::isfinite(row.train_loss)) least_loss_ = std::min(least_loss_, row.train_loss);
  const double usual = std::min(before, guessing);
  if (has_exploded_ || !(row.train_loss > std::max(kTimes * usual, usual + kLeastRise))) return;
  has_exploded_ = true;
  warn(
      fmt::format("epoch {}: the training loss is {:.3g}, {}: try a smaller --lr, "
                  "--warmup-epochs 1 or "
                  "--clip-norm 1{}",
                  row.epoch + 1, row.train_loss,
                  before < guessing ? fmt::format("after {:.3g} in an earlier epoch", before)
                                    : fmt::format("far above that of guessing ({:.3g})", guessing),
                  run_.options->compress.codec.is_exact() ? "" : ", or a finer --compress"));
}

void Recorder::note_images(const std::vector<std::string>& notes) {
  constexpr std::size_t kMostNamed = 5;
  if (!is_speaker()) return;
  std::size_t unnamed = 0;
  for (const std::string& note : notes) {
    // Other ranks may meet an image in other epochs.
    if (!replaced_images_.insert(note).second) continue;
    if (replaced_images_.size() <= kMostNamed) {
      warn(note);
    } else {
      ++unnamed;
    }
  }
  if (unnamed > 0) {
    warn(
        fmt::format("{} more images cannot be decoded; the next ones of their "
                    "classes stand in for them",
                    unnamed));
  }
}

void Recorder::warn_once(const std::string& line) {
  if (is_speaker() && warnings_.insert(line).second) warn(line);
}

void Recorder::note_missing(const std::string& what, const std::string& why,
                            const std::string& outlook) {
  const bool is_news = missing_.insert_or_assign(what, why).second;
  if (is_news && is_speaker()) warn(fmt::format("{}; {}", why, outlook));
}

std::string Recorder::missing_files() const {
  std::string files;
  for (const auto& [what, why] : missing_) {
    files += (files.empty() ? "" : "; ") + what;
    if (why.empty()) continue;
    files += fmt::format(" {} ({})", what == kLogName ? missing_part_of_log() : "is missing", why);
  }
  if (files.empty() || !is_speaker()) return {};
  return "the training is complete, but not all of its files: " + files;
}

}  // namespace dp
