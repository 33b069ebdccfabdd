// What a run says on the terminal while it goes on.
//
// Three modes: live (a terminal: one line that is rewritten in place, at most ten times a second,
// and a lasting line per epoch), lines (no terminal: lasting lines only) and quiet (nothing but
// warnings). One thread, rank 0, uses it. Only text: numbers come in plain structs, NaN where
// unknown.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/text_table.hpp"

namespace dp {

enum class ConsoleMode { live, lines, quiet };

// The mode for standard output: live on a terminal that can rewrite a line (TERM is not "dumb").
[[nodiscard]] ConsoleMode choose_console_mode(bool is_quiet);

// Columns of the terminal at standard output; 80 where there is none.
[[nodiscard]] std::size_t terminal_columns();

// One moment of an epoch. Epochs and steps count from 1 here.
struct StepProgress {
  std::size_t epoch = 0, epochs = 0;
  std::size_t step = 0, steps = 0;
  double loss = std::numeric_limits<double>::quiet_NaN();
  double images_per_s = std::numeric_limits<double>::quiet_NaN();
  double sent_bytes_per_s = std::numeric_limits<double>::quiet_NaN();
  double left_s = std::numeric_limits<double>::quiet_NaN();
};

struct EpochProgress {
  std::size_t epoch = 0, epochs = 0;
  double train_loss = std::numeric_limits<double>::quiet_NaN();
  double train_accuracy = std::numeric_limits<double>::quiet_NaN();
  double test_loss = std::numeric_limits<double>::quiet_NaN();
  double test_accuracy = std::numeric_limits<double>::quiet_NaN();
  double epoch_s = std::numeric_limits<double>::quiet_NaN();
  double images_per_s = std::numeric_limits<double>::quiet_NaN();
  double sent_bytes = std::numeric_limits<double>::quiet_NaN();      // of all ranks
  double exposed_comm_s = std::numeric_limits<double>::quiet_NaN();  // waited for the network
};

class Console {
 public:
  // Standard output and standard error.
  explicit Console(ConsoleMode mode = ConsoleMode::lines);
  // For tests: other streams, a fixed width, a clock in seconds.
  Console(ConsoleMode mode, std::ostream& out, std::ostream& err,
          std::function<std::size_t()> columns, std::function<double()> clock);
  ~Console();  // leaves the live line standing, with a newline after it
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  [[nodiscard]] ConsoleMode mode() const noexcept { return mode_; }

  // A lasting text; a newline is added. Nothing in quiet mode.
  void print(std::string_view text);
  // A lasting text on standard error, in every mode.
  void warn(std::string_view text);
  // A title, and under it names and values in two columns; a long value goes on in lines below.
  void settings(std::string_view title,
                const std::vector<std::pair<std::string, std::string>>& rows);
  void table(std::string_view title, const TextTable& table);

  // The live line: nothing in other modes, and nothing if the last one was less than 0.1 s ago.
  // Does not allocate. Where the terminal is narrow, the less important parts go.
  void step(const StepProgress& progress);
  // One lasting line for the epoch; it replaces the live line.
  void epoch(const EpochProgress& progress);

 private:
  void erase_live_line();
  void format_step(const StepProgress& progress, std::size_t least_important);

  ConsoleMode mode_;
  std::ostream& out_;
  std::ostream& err_;
  std::function<std::size_t()> columns_;
  std::function<double()> clock_;
  fmt::memory_buffer line_;
  bool has_live_line_ = false;
  double last_step_s_ = -std::numeric_limits<double>::infinity();
};

}  // namespace dp
