// Takes the marks of run_status.hpp out of a run's output.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace dp {

class MarkFilter {
 public:
  // on_mark receives the words of each mark, such as "step 120", without the checksum. A mark with
  // a wrong checksum is dropped.
  explicit MarkFilter(std::function<void(std::string_view)> on_mark)
      : on_mark_(std::move(on_mark)) {}

  // Returns the output without marks. Text that may be the beginning of a mark is held back until
  // the next piece; if it turns out to be no mark, it is output.
  [[nodiscard]] std::string pass(std::string_view piece);
  // At the end of the output: the text that was held back.
  [[nodiscard]] std::string rest();

 private:
  void take(std::string_view mark) const;  // the text between the control characters

  std::function<void(std::string_view)> on_mark_;
  std::string held_;  // begins with kStatusBegin, or is empty
};

}  // namespace dp
