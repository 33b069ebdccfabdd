#include "io/files/console.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <iterator>

namespace dp {
namespace {

constexpr double kLeastInterval_s = 0.1;
constexpr const char* kEraseLine = "\r\x1b[K";

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Breaks a text at blanks into lines of at most `columns` characters. A longer word stays whole.
std::vector<std::string> wrap(const std::string& text, std::size_t columns) {
  std::vector<std::string> lines{""};
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    std::string& line = lines.back();
    if (line.empty()) {
      line = word;
    } else if (text_columns(line) + 1 + text_columns(word) <= columns) {
      line.append(1, ' ').append(word);
    } else {
      lines.push_back(word);
    }
    begin = end + 1;
  }
  return lines;
}

}  // namespace

ConsoleMode choose_console_mode(bool is_quiet) {
  if (is_quiet) return ConsoleMode::quiet;
  const char* term = std::getenv("TERM");
  const bool can_rewrite = term != nullptr && std::strcmp(term, "dumb") != 0;
  return can_rewrite && ::isatty(STDOUT_FILENO) == 1 ? ConsoleMode::live : ConsoleMode::lines;
}

std::size_t terminal_columns() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

Console::Console(ConsoleMode mode)
    : Console(mode, std::cout, std::cerr, terminal_columns, steady_seconds) {}

Console::Console(ConsoleMode mode, std::ostream& out, std::ostream& err,
                 std::function<std::size_t()> columns, std::function<double()> clock)
    : mode_(mode), out_(out), err_(err), columns_(std::move(columns)), clock_(std::move(clock)) {}

Console::~Console() {
  if (has_live_line_) out_ << '\n' << std::flush;
}

void Console::erase_live_line() {
  if (has_live_line_) out_ << kEraseLine;
  has_live_line_ = false;
}

void Console::print(std::string_view text) {
  if (mode_ != ConsoleMode::quiet) answer(text);
}

void Console::answer(std::string_view text) {
  erase_live_line();
  out_ << text << '\n' << std::flush;
}

void Console::warn(std::string_view text) {
  erase_live_line();
  out_ << std::flush;
  err_ << text << '\n' << std::flush;
}

void Console::settings(std::string_view title,
                       const std::vector<std::pair<std::string, std::string>>& rows) {
  if (mode_ == ConsoleMode::quiet) return;
  std::size_t name_columns = 0;
  for (const auto& [name, value] : rows) name_columns = std::max(name_columns, text_columns(name));
  const std::size_t left = 2 + name_columns + 2;
  const std::size_t columns = columns_();
  TextTable table{.header = {}, .rows = {}, .align = {Align::left, Align::left}};
  for (const auto& [name, value] : rows) {
    std::string label = name;
    for (const std::string& line : wrap(value, columns > left + 20 ? columns - left : 20)) {
      table.rows.push_back({label, line});
      label.clear();
    }
  }
  print(std::string(title));
  out_ << format_table(table, 2) << std::flush;
}

void Console::table(std::string_view title, const TextTable& table) {
  if (mode_ == ConsoleMode::quiet) return;
  print(std::string(title));
  out_ << format_table(table, 2) << std::flush;
}

// Formats the live line. Each part has a level of importance, from 0 for the most important one.
// Parts with a level above `least_important` are left out.
void Console::format_step(const StepProgress& p, std::size_t least_important) {
  line_.clear();
  const auto put = [&]<class... Args>(std::size_t importance, bool is_known,
                                      fmt::format_string<Args...> format, Args&&... args) {
    if (importance > least_important || !is_known) return;
    fmt::format_to(std::back_inserter(line_), format, std::forward<Args>(args)...);
  };
  put(0, true, "epoch {}/{}", p.epoch, p.epochs);
  put(1, true, "  step {}/{}", p.step, p.steps);
  put(2, !std::isnan(p.loss), "  loss {:.4f}", p.loss);
  put(4, !std::isnan(p.images_per_s), "  {:.0f} images/s", p.images_per_s);
  put(5, !std::isnan(p.sent_bytes_per_s), "  {:.1f} MB/s", p.sent_bytes_per_s / 1e6);
  if (std::isnan(p.left_s)) return;
  const auto left_s = static_cast<std::int64_t>(std::clamp(p.left_s, 0.0, 1e9) + 0.5);
  if (left_s < 3'600) {
    put(3, true, "  {}:{:02} left", left_s / 60, left_s % 60);
  } else {
    put(3, true, "  {}:{:02}:{:02} left", left_s / 3'600, left_s / 60 % 60, left_s % 60);
  }
}

void Console::step(const StepProgress& progress) {
  if (mode_ != ConsoleMode::live) return;
  const double now_s = clock_();
  if (now_s - last_step_s_ < kLeastInterval_s) return;
  last_step_s_ = now_s;
  // Leave the last column empty, because writing to it may make a terminal wrap the line.
  const std::size_t columns = columns_() - std::min<std::size_t>(columns_(), 1);
  for (std::size_t least_important = 6; least_important-- > 0;) {
    format_step(progress, least_important);
    if (line_.size() <= columns) break;
  }
  out_ << kEraseLine;
  out_.write(line_.data(), static_cast<std::streamsize>(std::min(line_.size(), columns)));
  out_ << std::flush;
  has_live_line_ = true;
}

void Console::epoch(const EpochProgress& p) {
  if (mode_ == ConsoleMode::quiet) return;
  const std::string epochs = fmt::format("{}", p.epochs);
  std::string text =
      fmt::format("epoch {:>{}}/{}  train loss {}  accuracy {}", p.epoch, epochs.size(), epochs,
                  format_number(p.train_loss, 4), format_percent(p.train_accuracy));
  if (!std::isnan(p.test_accuracy)) {
    text += fmt::format("  test loss {}  accuracy {}", format_number(p.test_loss, 4),
                        format_percent(p.test_accuracy));
  }
  text += "  " + format_seconds(p.epoch_s);
  if (!std::isnan(p.images_per_s)) text += fmt::format("  {:.0f} images/s", p.images_per_s);
  if (!std::isnan(p.sent_bytes)) text += "  sent " + format_bytes(p.sent_bytes);
  if (!std::isnan(p.exposed_comm_s))
    text += "  exposed communication " + format_seconds(p.exposed_comm_s);
  if (!std::isnan(p.bits_per_value))
    text += fmt::format("  {:.3g} bits per value", p.bits_per_value);
  print(text);
}

}  // namespace dp
