#include "app/dptrun/dptrun_marks.hpp"

#include <algorithm>
#include <utility>

#include "app/process/run_status.hpp"

namespace dp {
namespace {

constexpr std::string_view kProgram = "dptrun ";
constexpr std::size_t kLongest = 64 + kMostImagesText;  // a mark is shorter

// Whether `text`, which begins with kStatusBegin, may be the beginning of a mark.
bool may_be_mark(std::string_view text) {
  const std::string_view words = text.substr(1);
  const std::size_t count = std::min(words.size(), kProgram.size());
  return text.size() <= kLongest && words.substr(0, count) == kProgram.substr(0, count);
}

}  // namespace

std::string MarkFilter::pass(std::string_view piece) {
  std::string out;
  for (const char c : piece) {
    if (held_.empty() && c != kStatusBegin) {
      out += c;
      continue;
    }
    if (c == kStatusBegin) out += std::exchange(held_, {});
    held_ += c;
    if (!may_be_mark(held_)) {
      out += std::exchange(held_, {});
    } else if (c == kStatusEnd) {
      const std::string mark = std::exchange(held_, {});
      take(std::string_view(mark).substr(1 + kProgram.size(), mark.size() - kProgram.size() - 2));
    }
  }
  return out;
}

void MarkFilter::take(std::string_view mark) const {
  const std::size_t blank = std::min(mark.rfind(' '), mark.size());
  const std::string_view words = mark.substr(0, blank);
  if (blank < mark.size() && mark.substr(blank + 1) == mark_checksum(words)) on_mark_(words);
}

std::string MarkFilter::rest() { return std::exchange(held_, {}); }

}  // namespace dp
