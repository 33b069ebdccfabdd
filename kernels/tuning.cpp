#include "kernels/tuning.hpp"

#include <algorithm>
#include <limits>

#include "kernels/base/error.hpp"

namespace dp {

namespace {

// A candidate's time is the minimum of up to three interleaved runs after a warm-up, because other
// work on the machine can only add time. A candidate must win by 3 % to displace the fixed rule's
// choice. A candidate that is far behind is not run again. Long operations are run fewer times,
// because their times differ little from run to run.
std::size_t fastest_of(std::size_t candidates, const std::function<double(std::size_t)>& seconds) {
  constexpr int kRounds = 3;
  constexpr double kFarBehind = 1.3, kLong_s = 0.25;
  double spent_s = 0;
  const auto run = [&](std::size_t i) {
    const double taken_s = seconds(i);
    spent_s += taken_s;
    return taken_s;
  };
  std::vector<double> least(candidates, std::numeric_limits<double>::infinity());
  for (std::size_t i = 0; i < candidates; ++i) run(i);
  std::vector<bool> is_behind(candidates, false);
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < candidates; ++i) {
      if (!is_behind[i]) least[i] = std::min(least[i], run(i));
    }
    const double fastest = *std::min_element(least.begin(), least.end());
    for (std::size_t i = 0; i < candidates; ++i) is_behind[i] = least[i] > kFarBehind * fastest;
    if (std::count(is_behind.begin(), is_behind.end(), false) < 2) break;
    if (spent_s > kLong_s) break;
  }
  std::size_t best = 0;
  for (std::size_t i = 1; i < candidates; ++i) {
    if (least[i] < 0.97 * least[0] && least[i] < least[best]) best = i;
  }
  return best;
}

}  // namespace

std::size_t Tuning::choose(const std::string& key, std::span<const std::string> candidates,
                           const std::function<double(std::size_t)>& seconds) {
  DP_ASSERT(!candidates.empty(), "no way to compute {}", key);
  if (const auto known = choices_.find(key); known != choices_.end()) {
    const auto it = std::find(candidates.begin(), candidates.end(), known->second);
    // A choice that is not offered for this batch size falls back to the fixed rule.
    return it == candidates.end() ? 0 : static_cast<std::size_t>(it - candidates.begin());
  }
  std::size_t best = 0;
  if (measure_ && candidates.size() > 1) {
    best = fastest_of(candidates.size(), seconds);
  }
  choices_[key] = candidates[best];
  return best;
}

std::string Tuning::export_text() const {
  std::string text;
  for (const auto& [key, choice] : choices_) text += key + " = " + choice + "\n";
  return text;
}

void Tuning::import_text(std::string_view text) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::size_t equals = line.find(" = ");
    if (equals == std::string_view::npos) {
      throw_error(ErrorKind::data, "tuning table: the line '{}' has no choice", line);
    }
    choices_[std::string(line.substr(0, equals))] = std::string(line.substr(equals + 3));
  }
}

}  // namespace dp
