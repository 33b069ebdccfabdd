// Options of any table: what dpbench's benches have, and the names of settings.
#include "app/options/options_words.hpp"

#include <gtest/gtest.h>

#include <new>

#include "app/options/options_print.hpp"
#include "app/options/options_table.hpp"
#include "app/process/option_names.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

using Words = std::vector<std::string>;

struct Settings {
  std::int64_t repeats = 5;
  double size_mb = 44.7;
  bool is_verbose = false;
  BitRate rate;
  std::string model = "small";
};

OptionTable table(Settings& settings) {
  return {{"Options",
           {whole_row("repeats", settings.repeats, {1, 100}, "how often"),
            real_row("mb", settings.size_mb, {.least = 0, .most = 4000}, "size"),
            rate_row("throttle", settings.rate, "rate of the link"),
            name_row("model", settings.model, "model", {"small", "large"}, "the network"),
            flag_row("verbose", settings.is_verbose, "tell more")}}};
}

// The message of the Error(usage) that f throws.
template <class F>
std::string refusal(F f) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.what();
  }
  return "nothing was refused";
}

// Sets what the arguments say; returns the other words.
Words read(Settings& settings, const Words& arguments, bool takes_words) {
  const OptionTable rows = table(settings);
  const RemovedOption removed[] = {{"loud", "--verbose prints as much"}};
  const CommandLine line = {
      .table = rows, .program = "bench", .takes_words = takes_words, .removed = removed};
  GivenWords given = line.split(arguments);
  for (const auto& [row, value] : given.options) set_option(*row, value);
  return given.others;
}

TEST(OptionsWords, OptionsAndOtherWordsMayBeMixed) {
  Settings settings;
  EXPECT_EQ(read(settings, {"q8", "--repeats", "7", "q4", "--mb=0.5", "--verbose", "none"}, true),
            (Words{"q8", "q4", "none"}));
  EXPECT_EQ(settings.repeats, 7);
  EXPECT_EQ(settings.size_mb, 0.5);
  EXPECT_TRUE(settings.is_verbose);
  EXPECT_EQ(read(settings, {"--throttle", "100mbit", "--model", "large"}, false), Words{});
  EXPECT_EQ(settings.rate.given, "100mbit");
  EXPECT_EQ(settings.rate.bit_per_s, 1e8);
  EXPECT_EQ(settings.model, "large");
}

// options_test.cpp has the rest for dptrain's table, with the same code.
TEST(OptionsWords, WhatIsWrongIsToldWithTheProgramsName) {
  const std::pair<Words, const char*> cases[] = {
      {{"--repeat", "1"}, "--repeat: unknown option; did you mean --repeats?"},
      {{"--frob"}, "--frob: unknown option; see bench --help"},
      {{"--loud=1"}, "--loud: unknown option; it was removed; --verbose prints as much"}};
  for (const auto& [arguments, message] : cases) {
    Settings settings;
    EXPECT_EQ(refusal([&] { read(settings, arguments, true); }), message);
  }
  Settings settings;
  EXPECT_EQ(refusal([&] { read(settings, {"q8"}, false); }),
            "'q8': stray word; every setting is an option with two dashes; see bench --help");
}

TEST(OptionsWords, HelpShowsDefaultAndRange) {
  Settings settings;
  std::string help;
  append_options(help, table(settings));
  EXPECT_EQ(help,
            "\nOptions\n"
            "  --repeats N             how often (1 to 100) [5]\n"
            "  --mb X                  size (0 to 4000) [44.7]\n"
            "  --throttle RATE         rate of the link [off]\n"
            "  --model NAME            the network: small, large [small]\n"
            "  --verbose               tell more\n");
}

// What the users of a program read when f throws.
template <class F>
std::string told(const OptionNames& names, ErrorKind kind, F f) {
  try {
    with_option_names(names, f);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind);
    return error.what();
  }
  return "nothing was thrown";
}

TEST(OptionNames, ARefusedSettingIsToldAsItsOption) {
  const auto refuse = [] { throw SettingError(Setting{"codec"}, "q7", "unknown; known: q8"); };
  EXPECT_EQ(told(kDptrainNames, ErrorKind::usage, refuse), "--compress q7: unknown; known: q8");
  // Codecs are words of dpbench's, so that the library's name stays.
  EXPECT_EQ(told(kDpbenchNames, ErrorKind::usage, refuse), "codec q7: unknown; known: q8");
  EXPECT_EQ(told(kDpbenchNames, ErrorKind::device,
                 [] {
                   throw SettingError(Setting{"device"}, "cuda", "no GPU; allowed: cpu",
                                      ErrorKind::device);
                 }),
            "--device cuda: no GPU; allowed: cpu");
}

TEST(OptionNames, TheOptionOfARemedyStandsAtTheEnd) {
  const auto fail = [] {
    throw SettingError(ErrorKind::communication, "rank 1 is silent: raise the timeout, now 60 s",
                       Setting{"timeout"});
  };
  EXPECT_EQ(told(kDptrainNames, ErrorKind::communication, fail),
            "rank 1 is silent: raise the timeout, now 60 s (option --comm-timeout)");
  EXPECT_EQ(told(kDpbenchNames, ErrorKind::communication, fail),
            "rank 1 is silent: raise the timeout, now 60 s");
  EXPECT_EQ(told(kDptrainNames, ErrorKind::data,
                 [] {
                   throw SettingError(Setting{"data folder"}, "d", "holds CIFAR-10: use cifar10",
                                      ErrorKind::data, Setting{"data set"});
                 }),
            "--data-dir d: holds CIFAR-10: use cifar10 (option --dataset)");
}

TEST(OptionNames, FullMemoryIsToldWithWhatTakesIt) {
  const auto fill = [] { throw OutOfMemory("out of memory: try a smaller batch or model"); };
  EXPECT_EQ(told(kDptrainNames, ErrorKind::device, fill),
            "out of memory: try a smaller batch or model (option --batch-size or --model)");
  EXPECT_EQ(told(kDptrainNames, ErrorKind::device, [] { throw std::bad_alloc(); }),
            told(kDptrainNames, ErrorKind::device, fill));
}

TEST(OptionNames, OtherErrorsStay) {
  EXPECT_EQ(told(kDptrainNames, ErrorKind::usage,
                 [] { throw_error(ErrorKind::usage, "--lr 0: too small"); }),
            "--lr 0: too small");
  EXPECT_EQ(with_option_names(kDptrainNames, [] { return 7; }), 7);
}

// check_option_names.py compares the words with those of the libraries. The pack is an argument of
// dptrain-pack, without an option's name.
TEST(OptionNames, EverySettingHasAnOption) {
  Options options;
  const OptionTable table = option_table({}, options);
  for (const auto& [word, option] : kDptrainNames.rows) {
    EXPECT_EQ(kDptrainNames.option_of(Setting(word)), option) << word;  // each word once
    if (word == "pack") continue;
    ASSERT_TRUE(option.starts_with("--")) << word;
    EXPECT_NE(find_option(table, option.substr(2)), nullptr) << option;
  }
  EXPECT_EQ(kDptrainNames.option_of({}), "");
}

}  // namespace
}  // namespace dp
