// What the recorder says of codecs with a rate, once each: the link carries less than the floor of
// quality, and too much waits in residuals.
#include <algorithm>

#include "app/output/recorder.hpp"

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
  // Rank 0 knows why of its own link alone.
  const bool is_own = RateWish::of_bits(rate.hidden_bits).bits() <= rate.wished_bits;
  const std::string place = is_own && window.is_by_bucket && rate.binding_bucket
                                ? fmt::format("; from {} on there is no time left",
                                              name_of(buckets, *rate.binding_bucket))
                                : std::string();
  const std::string link =
      is_own ? fmt::format("rank 0's link carries {}/s, which hides {:.2g} bits a value {}",
                           format_bytes(rate.link_bytes_per_s), rate.wished_bits, window.when)
             : fmt::format(
                   "the slowest link of a rank hides {:.2g} bits a value {} (rank 0's link "
                   "carries {}/s, which hides {:.2g})",
                   rate.wished_bits, window.when, format_bytes(rate.link_bytes_per_s),
                   rate.hidden_bits);
  std::string advice = window.remedy;
  if (window.may_send_less) {
    advice += fmt::format(", or --compress auto:min={:.2g} at the price of accuracy",
                          std::max(limits.least_bits / 2, 0.01));
  }
  return fmt::format("{}{}. The least, min={:g}, is sent, and training waits for the rest: try {}",
                     link, place, limits.least_bits, advice);
}

std::string guard_at_work(const RateReport& rate, const std::vector<Bucket>& buckets) {
  if (!(rate.guard_factor > 1.0)) return {};
  const std::string most = rate.grown_bucket
                               ? fmt::format(", most in {}", name_of(buckets, *rate.grown_bucket))
                               : std::string();
  return fmt::format(
      "too much waits in the residual of some rank, more than {:.3g} times what comes in a step "
      "(growth= of ecq; on rank 0 {:.2g} times{}): {:.2g} times the planned bits are sent until it "
      "is less",
      rate.most_growth, rate.residual_growth, most, rate.guard_factor);
}

// What is known of a link after its first exchanges, and while a machine is busy, hangs on single
// steps.
void Recorder::note_rate(const EpochTally& tally) {
  constexpr int kClashes = 10;
  if (has_met_floor_ || !limits_ || !tally.has_exchanged) return;
  clashes_ = tally.rate.wished_bits < limits_->least_bits ? clashes_ + 1 : 0;
  if (clashes_ < kClashes) return;
  has_met_floor_ = true;
  warn(fmt::format("epoch {}: {}", tally.epoch + 1,
                   floor_clash(tally.rate, *limits_, run_.buckets, tally.window)));
}

void Recorder::note_guard(const EpochTally& tally) {
  if (has_seen_guard_) return;
  const std::string text = guard_at_work(tally.rate, run_.buckets);
  if (text.empty()) return;
  has_seen_guard_ = true;
  warn(fmt::format("epoch {}: {}", tally.epoch + 1, text));
}

}  // namespace dp
