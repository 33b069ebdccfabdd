#include "kernels/base/error.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <new>

#include "kernels/base/setting_error.hpp"

namespace dp {
namespace {

// The exit code and message that a program derives from something thrown.
struct Verdict {
  int exit_code;
  std::string message;
};

Verdict verdict_of(const std::function<void()>& body) {
  try {
    body();
  } catch (...) {
    Verdict verdict;
    verdict.exit_code = exit_code_of_current_exception(verdict.message);
    return verdict;
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

TEST(Error, KindIsTheExitCode) {
  const std::pair<ErrorKind, int> kinds[] = {{ErrorKind::usage, 2},
                                             {ErrorKind::data, 3},
                                             {ErrorKind::communication, 4},
                                             {ErrorKind::device, 5},
                                             {ErrorKind::internal, 70}};
  for (const auto& [kind, exit_code] : kinds) {
    const Error error(kind, "what happened");
    EXPECT_EQ(error.kind(), kind);
    EXPECT_EQ(error.exit_code(), exit_code);
    const Verdict verdict = verdict_of([&] { throw error; });
    EXPECT_EQ(verdict.exit_code, exit_code);
    EXPECT_EQ(verdict.message, "what happened");
  }
}

TEST(Error, MessageIsFormatted) {
  const Verdict verdict = verdict_of(
      [] { throw_error(ErrorKind::usage, "--batch-size {}: must be {} to {}", 0, 1, "many"); });
  EXPECT_EQ(verdict.exit_code, 2);
  EXPECT_EQ(verdict.message, "--batch-size 0: must be 1 to many");
}

// A user's text that contains braces is not a format string.
TEST(Error, MessageIsTakenAsItIs) {
  const std::string braces = "{} {0} {name} %s";
  EXPECT_EQ(verdict_of([&] { throw Error(ErrorKind::data, braces); }).message, braces);
  EXPECT_EQ(verdict_of([&] { throw_error(ErrorKind::data, "{}", braces); }).message, braces);
}

TEST(Error, MemoryThatDoesNotSufficeIsTheDevices) {
  const Verdict ours = verdict_of([] { throw OutOfMemory("the GPU has 2 GiB"); });
  EXPECT_EQ(ours.exit_code, 5);
  EXPECT_EQ(ours.message, "the GPU has 2 GiB");
  const Verdict standard = verdict_of([] { throw std::bad_alloc(); });
  EXPECT_EQ(standard.exit_code, 5);
  EXPECT_NE(standard.message.find("out of memory"), std::string::npos) << standard.message;
  EXPECT_NE(standard.message.find("try a smaller batch"), std::string::npos) << standard.message;
}

TEST(SettingError, SaysTheSettingByTheLibrarysName) {
  const SettingError refused(Setting{"exact tensors"}, "x*", "no tensor has such a name");
  EXPECT_STREQ(refused.what(), "exact tensors x*: no tensor has such a name");
  EXPECT_EQ(refused.complaint(), "x*: no tensor has such a name");
  EXPECT_EQ(refused.kind(), ErrorKind::usage);
  EXPECT_EQ(refused.refused(), Setting{"exact tensors"});
  EXPECT_EQ(refused.remedy(), Setting{});
  const SettingError advice(ErrorKind::communication, "raise the timeout", Setting{"timeout"});
  EXPECT_STREQ(advice.what(), "raise the timeout");
  EXPECT_EQ(advice.kind(), ErrorKind::communication);
  EXPECT_EQ(advice.refused(), Setting{});
  EXPECT_EQ(advice.remedy(), Setting{"timeout"});
}

TEST(Error, WhatIsNotOursIsInternal) {
  const Verdict standard = verdict_of([] { throw std::length_error("too long"); });
  EXPECT_EQ(standard.exit_code, 70);
  EXPECT_EQ(standard.message, "too long");
  const Verdict number = verdict_of([] { throw 7; });
  EXPECT_EQ(number.exit_code, 70);
  EXPECT_EQ(number.message, "an exception of unknown type");
}

// The exception stays in flight, so the caller may still rethrow it.
TEST(Error, ExceptionCanBeThrownOn) {
  EXPECT_THROW(
      {
        try {
          throw Error(ErrorKind::data, "short file");
        } catch (...) {
          std::string message;
          EXPECT_EQ(exit_code_of_current_exception(message), 3);
          throw;
        }
      },
      Error);
}

#ifdef DP_NO_ASSERT
TEST(Assert, IsNotEvenEvaluated) {
  int evaluated = 0;
  DP_ASSERT(++evaluated == 0, "{}", ++evaluated);
  EXPECT_EQ(evaluated, 0);
}
#else
TEST(Assert, SaysWhereAndWhat) {
  const int ranks = 3;
  const int line = __LINE__ + 1;
  const Verdict verdict = verdict_of([&] { DP_ASSERT(ranks == 4, "{} ranks", ranks); });
  EXPECT_EQ(verdict.exit_code, 70);
  EXPECT_EQ(verdict.message,
            fmt::format("{}:{}: the condition ranks == 4 does not hold: 3 ranks (a bug in "
                        "dptrain: please report it)",
                        __FILE__, line));
}

TEST(Assert, WhereItHoldsNothingIsFormatted) {
  int evaluated = 0, formatted = 0;
  DP_ASSERT(++evaluated == 1, "{}", ++formatted);
  EXPECT_EQ(evaluated, 1);
  EXPECT_EQ(formatted, 0);
}
#endif

// DP_ASSERT is a single statement: it may precede an else.
TEST(Assert, IsOneStatement) {
  bool is_else = false;
  if (is_else)
    DP_ASSERT(!is_else, "never");
  else
    is_else = true;
  EXPECT_TRUE(is_else);
}

template <class To, class From>
void expect_fits(From value) {
  EXPECT_EQ(checked_cast<To>(value), static_cast<To>(value));
}

template <class To, class From>
void expect_does_not_fit(From value) {
  const Verdict verdict = verdict_of([&] { static_cast<void>(checked_cast<To>(value)); });
  EXPECT_EQ(verdict.exit_code, 70);
  EXPECT_EQ(verdict.message,
            fmt::format("the number {} does not fit into a type of {} bytes", value, sizeof(To)));
}

TEST(CheckedCast, KeepsEveryValueThatFits) {
  static_assert(checked_cast<int>(std::size_t{7}) == 7);
  constexpr int kMost = std::numeric_limits<int>::max(), kLeast = std::numeric_limits<int>::min();
  expect_fits<int>(std::size_t{0});
  expect_fits<int>(static_cast<std::size_t>(kMost));
  expect_fits<int>(static_cast<std::int64_t>(kLeast));
  expect_fits<std::uint8_t>(255);
  expect_fits<std::int8_t>(-128);
  expect_fits<std::uint64_t>(kMost);
  expect_fits<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
}

TEST(CheckedCast, NamesAValueThatDoesNotFit) {
  constexpr auto kMost = static_cast<std::int64_t>(std::numeric_limits<int>::max());
  expect_does_not_fit<int>(kMost + 1);
  expect_does_not_fit<int>(static_cast<std::size_t>(kMost) + 1);
  expect_does_not_fit<int>(-kMost - 2);
  expect_does_not_fit<int>(std::numeric_limits<std::uint64_t>::max());
  expect_does_not_fit<std::uint8_t>(256);
  expect_does_not_fit<std::uint8_t>(-1);
  expect_does_not_fit<std::int8_t>(128u);
  // A plain cast, and a comparison of different signs, would let this one pass.
  expect_does_not_fit<std::size_t>(-1);
  expect_does_not_fit<std::int64_t>(std::numeric_limits<std::uint64_t>::max());
}

}  // namespace
}  // namespace dp
