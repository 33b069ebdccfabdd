// The table of algorithm choices. It says which algorithm this run uses for each operation that has
// several.
//
// A choice is made once per key (an operation's shape and direction, without the batch size): by
// measurement, or by the operation's fixed rule if tuning is off. Different algorithms round
// differently, so the bits of a run depend on the table. It is therefore logged, and all ranks use
// rank 0's table.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace dp {

class Tuning {
 public:
  explicit Tuning(bool measure) : measure_(measure) {}

  // Returns the index of the chosen candidate. `candidates` are names, the fixed rule's choice
  // first; `seconds(i)` runs candidate i once and returns its time. Call this while planning only.
  std::size_t choose(const std::string& key, std::span<const std::string> candidates,
                     const std::function<double(std::size_t)>& seconds);

  // One "key = choice" per line, sorted. Importing replaces choices with the same key; it throws
  // Error(data) for text that export_text() did not write.
  [[nodiscard]] std::string export_text() const;
  void import_text(std::string_view text);

 private:
  bool measure_;
  std::map<std::string, std::string> choices_;
};

}  // namespace dp
