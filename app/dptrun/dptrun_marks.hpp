// Takes the marks of run_status.hpp out of a run's output.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace dp {

class MarkFilter {
 public:
  // Gets the words of each mark, "step 120", without its checksum. A mark whose checksum is wrong
  // is dropped.
  explicit MarkFilter(std::function<void(std::string_view)> on_mark)
      : on_mark_(std::move(on_mark)) {}

  // The part of the output without marks. What begins like a mark and goes on in the next piece is
  // kept back until then; what only begins like one is output.
  [[nodiscard]] std::string pass(std::string_view piece);
  // At the end of the output: what was kept back.
  [[nodiscard]] std::string rest();

 private:
  void take(std::string_view mark) const;  // what stands between the control characters

  std::function<void(std::string_view)> on_mark_;
  std::string held_;  // begins with kStatusBegin, or is empty
};

}  // namespace dp
