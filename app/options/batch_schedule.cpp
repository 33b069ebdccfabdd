#include "app/options/batch_schedule.hpp"

#include <algorithm>
#include <cmath>

#include "app/options/options_values.hpp"
#include "kernels/base/error.hpp"

namespace dp {

namespace {

constexpr WholeRange kBatch{1, 16'777'216}, kEpoch{1, 100'000};

std::size_t whole(std::string_view text, const WholeRange& range) {
  return checked_cast<std::size_t>(parse_whole("", text, range));
}

BatchSchedule parse(std::string_view text) {
  if (text == "fixed") return {};
  constexpr std::string_view kDynamic = "dynamic:max=";
  if (text.starts_with(kDynamic)) {
    return {.kind = BatchSchedule::Kind::dynamic,
            .most = whole(text.substr(kDynamic.size()), kBatch),
            .given = std::string(text)};
  }
  BatchSchedule schedule = {.kind = BatchSchedule::Kind::list, .given = std::string(text)};
  for (const std::string& part : split_at_commas(text)) {
    const std::size_t colon = std::min(part.find(':'), part.size());
    const std::string_view batch = std::string_view(part).substr(std::min(colon + 1, part.size()));
    const std::size_t epoch = whole(std::string_view(part).substr(0, colon), kEpoch);
    if (!schedule.list.empty() && epoch <= schedule.list.back().first) {
      throw_error(ErrorKind::usage, "not increasing");
    }
    schedule.list.emplace_back(epoch, whole(batch, kBatch));
  }
  return schedule;
}

}  // namespace

BatchSchedule parse_batch_schedule(std::string_view text) {
  try {
    return parse(text);
  } catch (const Error&) {
    throw_error(ErrorKind::usage, "--batch-schedule {}: must be {}", shown(text), kBatchSchedules);
  }
}

std::size_t BatchSchedule::batch_of(std::size_t epoch, std::size_t base, double first_loss,
                                    double last_loss) const {
  if (kind == Kind::list) {
    std::size_t batch = base;
    for (const auto& [from, size] : list) {
      if (epoch + 1 >= from) batch = size;
    }
    return batch;
  }
  if (kind == Kind::fixed || epoch == 0) return base;
  // If a loss is zero or not finite, these lines still keep the batch between `base` and `most`.
  const double ratio = std::floor(first_loss / last_loss);
  const double factor = std::exp2(std::min(ratio - 1.0, 40.0));
  const double batch = static_cast<double>(base) * (factor > 1.0 ? factor : 1.0);
  return std::max(base, static_cast<std::size_t>(std::min(batch, static_cast<double>(most))));
}

std::vector<std::size_t> BatchSchedule::all(std::size_t base) const {
  std::vector<std::size_t> sizes = {base};
  if (kind == Kind::dynamic) {
    for (std::size_t size = 2 * base; size < most; size *= 2) sizes.push_back(size);
    if (most > base) sizes.push_back(most);
  }
  for (const auto& [epoch, size] : list) sizes.push_back(size);
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

}  // namespace dp
