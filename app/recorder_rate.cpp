// What the recorder says of codecs with a rate, once each: the link carries less than the floor of
// quality, and too much waits in residuals.
#include <algorithm>

#include "app/recorder.hpp"

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
                        const std::vector<Bucket>& buckets, bool is_in_rounds) {
  if (!(rate.hidden_bits < limits.least_bits)) return {};
  const std::string place = rate.binding_bucket
                                ? fmt::format("; from {} on there is no time left",
                                              name_of(buckets, *rate.binding_bucket))
                                : std::string();
  if (is_in_rounds) {
    return fmt::format(
        "rank 0's link carries {}/s, which is {:.2g} bits a value in {:.0f} % of a round's time. "
        "The least, min={:g}, is sent, and training waits for the rest: try longer rounds "
        "(--sync-every) or --sync-delay",
        format_bytes(rate.link_bytes_per_s), rate.hidden_bits, 100 * AutoRate::kSlack,
        limits.least_bits);
  }
  return fmt::format(
      "rank 0's link carries {}/s, which hides {:.2g} bits a value behind backward{}. The least, "
      "min={:g}, is sent, and training waits for the rest: try fewer exchanges (--sync-every 4, or "
      "--sync-every auto), a larger --batch-size or --accumulate, fewer hosts, or --compress "
      "auto:min={:.2g} at the price of "
      "accuracy",
      format_bytes(rate.link_bytes_per_s), rate.hidden_bits, place, limits.least_bits,
      std::max(limits.least_bits / 2, 0.01));
}

std::string guard_at_work(const RateReport& rate, const std::vector<Bucket>& buckets) {
  if (!(rate.guard_factor > 1.0)) return {};
  const std::string most = rate.grown_bucket
                               ? fmt::format(", most in {}", name_of(buckets, *rate.grown_bucket))
                               : std::string();
  return fmt::format(
      "too much waits in the residual of some rank (growth= of ecq is the limit; rank 0's residual "
      "is {:.2g} times its gradient{}): {:.2g} times the planned bits are sent until it is less",
      rate.residual_growth, most, rate.guard_factor);
}

void Recorder::note_rate(const EpochTally& tally) {
  const std::optional<RateLimits> limits = parse_compress(run_.options->compress).limits;
  if (has_met_floor_ || !limits) return;
  const std::string text = floor_clash(tally.rate, *limits, run_.buckets, tally.is_in_rounds);
  if (text.empty()) return;
  has_met_floor_ = true;
  warn(fmt::format("epoch {}: {}", tally.epoch + 1, text));
}

void Recorder::note_guard(const EpochTally& tally) {
  if (has_seen_guard_) return;
  const std::string text = guard_at_work(tally.rate, run_.buckets);
  if (text.empty()) return;
  has_seen_guard_ = true;
  warn(fmt::format("epoch {}: {}", tally.epoch + 1, text));
}

}  // namespace dp
