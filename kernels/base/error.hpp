// Errors and checks for the whole program.
//
// Every failure is a dp::Error: a one-sentence message and a kind, which decides the program's exit
// code. The message names the subject, the value, and what is allowed or what to do. DP_ASSERT is
// for our own mistakes only: no user input may trigger it.
#pragma once

#include <fmt/format.h>

#include <concepts>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace dp {

// The kind of failure; its value is the program's exit code.
enum class ErrorKind : int {
  usage = 2,          // options, configuration
  data = 3,           // data sets, logs, checkpoints
  communication = 4,  // MPI, a silent or lost rank
  device = 5,         // no such device, out of device memory, unsupported precision
  internal = 70,      // a bug of ours
  stopped = 75,       // not a failure: the run was asked to stop, and can be resumed
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  [[nodiscard]] ErrorKind kind() const noexcept { return kind_; }
  [[nodiscard]] int exit_code() const noexcept { return static_cast<int>(kind_); }

 private:
  ErrorKind kind_;
};

// A device, or the host, has too little memory.
class OutOfMemory : public Error {
 public:
  explicit OutOfMemory(const std::string& message) : Error(ErrorKind::device, message) {}
};

// throw_error(ErrorKind::usage, "--batch-size {}: must be 1 to {}", given, most)
template <class... Args>
[[noreturn]] void throw_error(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(kind, fmt::format(format, std::forward<Args>(args)...));
}

// Throws Error(internal) "file:line: expression: message". Used by DP_ASSERT.
[[noreturn]] void assertion_failed(const char* expression, const std::string& message,
                                   const char* file, int line);

// The exit code for the exception being handled: an Error's own, 70 for anything else. Writes the
// exception's message into `message`. Call only inside a catch block.
[[nodiscard]] int exit_code_of_current_exception(std::string& message);

// Converts between integer types. Throws Error(internal) if the value does not fit.
template <std::integral To, std::integral From>
[[nodiscard]] constexpr To checked_cast(From value) {
  if (!std::in_range<To>(value)) {
    throw_error(ErrorKind::internal, "the number {} does not fit into a type of {} bytes", value,
                sizeof(To));
  }
  return static_cast<To>(value);
}

}  // namespace dp

// DP_ASSERT(condition, "format {}", args...): an invariant of ours. The condition must not have
// side effects.
#ifdef DP_NO_ASSERT
#define DP_ASSERT(condition, ...) static_cast<void>(sizeof((condition) ? 1 : 0))
#else
#define DP_ASSERT(condition, ...)                                                         \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      ::dp::assertion_failed(#condition, ::fmt::format(__VA_ARGS__), __FILE__, __LINE__); \
    }                                                                                     \
  } while (false)
#endif
