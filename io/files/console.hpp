// Prints a run's progress and warnings on the terminal.
//
// There are three modes: live (a terminal: one line that is rewritten in place at most ten times a
// second, and a permanent line per epoch), lines (no terminal: permanent lines only) and quiet
// (only warnings). Only one thread of rank 0 uses it. It only formats text: numbers come in plain
// structs and are NaN if unknown.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <functional>
#include <iosfwd>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/files/text_table.hpp"

namespace dp {

enum class ConsoleMode { live, lines, quiet };

// The mode for standard output: live on a terminal that can rewrite a line (TERM is not "dumb").
[[nodiscard]] ConsoleMode choose_console_mode(bool is_quiet);

// The width of the terminal at standard output, in columns; 80 if there is no terminal.
[[nodiscard]] std::size_t terminal_columns();

// The state after a step. Epochs and steps count from 1 here.
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
  double exposed_comm_s = std::numeric_limits<double>::quiet_NaN();  // while training waited
  double bits_per_value = std::numeric_limits<double>::quiet_NaN();  // of codecs with a bit rate
};

class Console {
 public:
  // Writes to standard output and standard error.
  explicit Console(ConsoleMode mode = ConsoleMode::lines);
  // For tests: writes to the given streams; `columns` returns the width, and `clock` the time in
  // seconds.
  Console(ConsoleMode mode, std::ostream& out, std::ostream& err,
          std::function<std::size_t()> columns, std::function<double()> clock);
  ~Console();  // ends the live line with a newline, so that it stays
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  [[nodiscard]] ConsoleMode mode() const noexcept { return mode_; }

  // Prints a text and a newline, but not in quiet mode.
  void print(std::string_view text);
  // Prints in every mode: for output that the user has asked for.
  void answer(std::string_view text);
  // Prints a text and a newline on standard error, in every mode.
  void warn(std::string_view text);
  // Prints a title, and below it names and values in two columns. A long value continues on the
  // next lines.
  void settings(std::string_view title,
                const std::vector<std::pair<std::string, std::string>>& rows);
  void table(std::string_view title, const TextTable& table);

  // Rewrites the live line. Does nothing in other modes, or if less than 0.1 s have passed since
  // the last rewrite. Does not allocate. On a narrow terminal the less important parts are left
  // out.
  void step(const StepProgress& progress);
  // Prints the permanent line of an epoch, which replaces the live line.
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
