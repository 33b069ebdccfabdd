// Tests the console's three modes, numbers and tables as text, and JSON objects.
#include "io/files/console.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "io/files/json_object.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

// A console on strings, with a clock and a width that the test sets.
struct Fixture {
  explicit Fixture(ConsoleMode mode)
      : console(
            mode, out, err, [this] { return columns; }, [this] { return now_s; }) {}
  std::string take() {
    std::string text = out.str();
    out.str("");
    return text;
  }
  std::ostringstream out, err;
  std::size_t columns = 80;
  double now_s = 100;
  Console console;
};

const StepProgress kStep{.epoch = 2,
                         .epochs = 5,
                         .step = 17,
                         .steps = 100,
                         .loss = 1.25,
                         .images_per_s = 812.4,
                         .sent_bytes_per_s = 3.46e6,
                         .left_s = 83};
const EpochProgress kEpoch{.epoch = 2,
                           .epochs = 10,
                           .train_loss = 1.25,
                           .train_accuracy = 0.5,
                           .test_loss = 1.5,
                           .test_accuracy = 0.625,
                           .epoch_s = 12.34,
                           .images_per_s = 1'037.3,
                           .sent_bytes = 3.4e7,
                           .exposed_comm_s = 0.5};

TEST(Format, Numbers) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(999), "999 B");
  EXPECT_EQ(format_bytes(1'000), "1.00 kB");
  EXPECT_EQ(format_bytes(44'695'848), "44.7 MB");
  EXPECT_EQ(format_bytes(999'700), "1.00 MB");
  EXPECT_EQ(format_bytes(9'996), "10.0 kB");
  EXPECT_EQ(format_bytes(1.2e9), "1.20 GB");
  EXPECT_EQ(format_bit_rate(95.7e6), "95.7 Mbit/s");
  EXPECT_EQ(format_bit_rate(6.38e9), "6.38 Gbit/s");
  EXPECT_EQ(format_bit_rate(999.6e6), "1.00 Gbit/s");
  EXPECT_EQ(format_seconds(0), "0 s");
  EXPECT_EQ(format_seconds(35e-6), "35 us");
  EXPECT_EQ(format_seconds(0.00421), "4.21 ms");
  EXPECT_EQ(format_seconds(0.99999), "1.00 s");
  EXPECT_EQ(format_seconds(12.34), "12.3 s");
  EXPECT_EQ(format_seconds(1234.5), "1234 s");
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1'000), "1,000");
  EXPECT_EQ(format_count(11'173'962), "11,173,962");
  EXPECT_EQ(format_count(-123'456), "-123,456");
  EXPECT_EQ(format_percent(0.8314), "83.1 %");
  EXPECT_EQ(format_number(1.0 / 3, 4), "0.3333");
  for (const std::string& text :
       {format_bytes(NAN), format_seconds(NAN), format_percent(NAN), format_number(NAN, 3)}) {
    EXPECT_EQ(text, "-");
  }
}

TEST(Format, TablesAlignByCharacters) {
  const TextTable table{.header = {"host", "s", "note"},
                        .rows = {{"bêta", "1.5", ""}, {"a", "10.25", "slow"}},
                        .align = {Align::left, Align::right, Align::left}};
  EXPECT_EQ(format_table(table, 1),
            " host      s  note\n"
            " ----  -----  ----\n"
            " bêta    1.5\n"
            " a     10.25  slow\n");
  EXPECT_EQ(format_table({.header = {}, .rows = {{"a", "1"}, {"bb", "22"}}}), "a    1\nbb  22\n");
  EXPECT_EQ(format_table({.header = {}, .rows = {}}), "");
  EXPECT_THROW(static_cast<void>(format_table({.header = {"a"}, .rows = {{"1", "2"}}})), Error);
}

TEST(Console, TheLiveLineIsRewrittenAtMostTenTimesASecond) {
  Fixture f(ConsoleMode::live);
  f.console.step(kStep);
  EXPECT_EQ(f.take(),
            "\r\x1b[Kepoch 2/5  step 17/100  loss 1.2500  812 images/s  3.5 MB/s  1:23 left");
  f.now_s += 0.09;
  f.console.step(kStep);
  EXPECT_EQ(f.take(), "");
  f.now_s += 0.02;
  f.console.step({.epoch = 2, .epochs = 5, .step = 18, .steps = 100, .left_s = 3'723});
  EXPECT_EQ(f.take(), "\r\x1b[Kepoch 2/5  step 18/100  1:02:03 left");
}

TEST(Console, ANarrowTerminalLosesTheLeastImportantParts) {
  Fixture f(ConsoleMode::live);
  const std::vector<std::string> expected{
      "epoch 2/5  step 17/100  loss 1.2500  812 images/s  1:23 left",
      "epoch 2/5  step 17/100  loss 1.2500  1:23 left",
      "epoch 2/5  step 17/100  loss 1.2500",
      "epoch 2/5  step 17/100",
      "epoch 2/5",
      "epo",
      ""};
  for (const std::size_t columns : {70u, 60u, 40u, 30u, 20u, 4u, 0u}) {
    f.columns = columns;
    f.now_s += 1;
    f.console.step(kStep);
    const std::string text = f.take().substr(4);
    EXPECT_LT(text.size(), std::max<std::size_t>(columns, 1));
    EXPECT_NE(std::find(expected.begin(), expected.end(), text), expected.end()) << text;
  }
}

TEST(Console, LastingLinesReplaceTheLiveLine) {
  Fixture f(ConsoleMode::live);
  f.console.step(kStep);
  f.take();
  f.console.epoch(kEpoch);
  EXPECT_EQ(f.take(),
            "\r\x1b[Kepoch  2/10  train loss 1.2500  accuracy 50.0 %  test loss 1.5000  accuracy "
            "62.5 %  12.3 s  1037 images/s  sent 34.0 MB  exposed communication 500 ms\n");
  f.console.print("hello");
  EXPECT_EQ(f.take(), "hello\n");
  f.now_s += 1;
  f.console.step(kStep);
  f.take();
  f.console.warn("careful");
  EXPECT_EQ(f.take(), "\r\x1b[K");
  EXPECT_EQ(f.err.str(), "careful\n");
}

TEST(Console, TheEndLeavesTheLiveLineStanding) {
  std::ostringstream out, err;
  {
    Console console(
        ConsoleMode::live, out, err, [] { return 80u; }, [] { return 1.0; });
    console.step(kStep);
  }
  EXPECT_EQ(out.str().back(), '\n');
}

TEST(Console, WithoutATerminalOnlyLastingLines) {
  Fixture f(ConsoleMode::lines);
  f.console.step(kStep);
  EXPECT_EQ(f.take(), "");
  EpochProgress unknown{.epoch = 1, .epochs = 1, .train_loss = 2};
  f.console.epoch(unknown);
  EXPECT_EQ(f.take(), "epoch 1/1  train loss 2.0000  accuracy -  -\n");
}

TEST(Console, QuietSaysNothingButWarnings) {
  Fixture f(ConsoleMode::quiet);
  f.console.step(kStep);
  f.console.epoch(kEpoch);
  f.console.print("text");
  f.console.settings("title", {{"a", "b"}});
  f.console.table("title", {.header = {"a"}, .rows = {{"b"}}});
  EXPECT_EQ(f.take(), "");
  f.console.warn("careful");
  EXPECT_EQ(f.err.str(), "careful\n");
}

TEST(Console, SettingsWrapLongValues) {
  Fixture f(ConsoleMode::lines);
  f.columns = 40;
  f.console.settings(
      "settings",
      {{"model", "resnet20"}, {"hosts", "alpha beta gamma delta epsilon zeta"}, {"log", ""}});
  EXPECT_EQ(f.take(),
            "settings\n"
            "  model  resnet20\n"
            "  hosts  alpha beta gamma delta epsilon\n"
            "         zeta\n"
            "  log\n");
  f.console.table("costs", {.header = {"epoch", "s"}, .rows = {{"1", "2"}}});
  EXPECT_EQ(f.take(), "costs\n  epoch  s\n  -----  -\n  1      2\n");
}

TEST(JsonObject, IsValidWhateverItHolds) {
  EXPECT_EQ(JsonObject().str(), "{}");
  const std::string texts[] = {"a", "b\"c"};
  const JsonObject inner[] = {JsonObject().whole("n", std::int64_t{-3}), JsonObject()};
  EXPECT_EQ(
      JsonObject()
          .text("a \"b\"", "line\n\t\\\x7f")
          .real("half", 0.5)
          .real("nan", std::nan(""))
          .real("inf", -INFINITY)
          .real("large", 1e300)
          .whole("most", std::uint64_t{18446744073709551615u})
          .hash("hash", 255)
          .flag("yes", true)
          .text_or_null("none", "")
          .texts("texts", texts)
          .objects("objects", inner)
          .object("object", inner[0])
          .str(),
      R"({"a \"b\"":"line\u000a\u0009\\\u007f","half":0.5,"nan":null,"inf":null,"large":1e+300,)"
      R"("most":18446744073709551615,"hash":"00000000000000ff","yes":true,"none":null,)"
      R"("texts":["a","b\"c"],"objects":[{"n":-3},{}],"object":{"n":-3}})");
}

TEST(JsonObject, ReplacesWhatIsNoUtf8) {
  const std::string good = "\xc3\xa4\xe2\x82\xac\xf0\x9f\x99\x82";  // 2, 3 and 4 bytes
  EXPECT_EQ(json_escaped(good), good);
  EXPECT_EQ(json_escaped("a\xff\x62"), "a\\ufffdb");
  EXPECT_EQ(json_escaped("\xc3"), "\\ufffd");                           // cut off
  EXPECT_EQ(json_escaped("\xc0\x80"), "\\ufffd\\ufffd");                // too long
  EXPECT_EQ(json_escaped("\xed\xa0\x80"), "\\ufffd\\ufffd\\ufffd");     // a surrogate
  EXPECT_EQ(json_escaped("\xf4\x90\x80\x80").substr(0, 6), "\\ufffd");  // above U+10FFFF
}

}  // namespace
}  // namespace dp
