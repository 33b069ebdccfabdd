// Tests the table of algorithm choices, and that it reproduces a convolution's choices.
#include "kernels/tuning.hpp"

#include "kernels/base/error.hpp"
#include "kernels/conv2d.hpp"
#include "tests/kernels/kernel_testing.hpp"

namespace dp::test {
namespace {

const std::vector<std::string> kNames = {"a", "b", "c"};

// Reports a fixed time for every candidate and counts the measurements.
struct Clock {
  std::vector<double> times;
  int calls = 0;
  double operator()(std::size_t i) {
    ++calls;
    return times[i];
  }
};

TEST(Tuning, MeasuresOncePerKey) {
  Tuning tuning(true);
  Clock clock{{3.0, 1.0, 2.0}};
  EXPECT_EQ(tuning.choose("k", kNames, std::ref(clock)), 1u);
  const int calls = clock.calls;
  EXPECT_GT(calls, 0);
  clock.times = {1.0, 9.0, 9.0};
  EXPECT_EQ(tuning.choose("k", kNames, std::ref(clock)), 1u);
  EXPECT_EQ(clock.calls, calls) << "known";
  EXPECT_EQ(tuning.choose("other", kNames, std::ref(clock)), 0u);
}

TEST(Tuning, FixedRuleComesFirstWithinNoise) {
  Tuning tuning(true);
  Clock clock{{1.0, 0.98, 0.99}};
  EXPECT_EQ(tuning.choose("k", kNames, std::ref(clock)), 0u);
}

// A candidate that is far behind after the first round is not run again; neither is a candidate
// that is left alone as the winner.
TEST(Tuning, SkipsWhatCannotWin) {
  Tuning tuning(true);
  Clock clock{{1.0e-3, 0.95e-3, 2.0e-3}};
  EXPECT_EQ(tuning.choose("k", kNames, std::ref(clock)), 1u);
  EXPECT_EQ(clock.calls, 3 + 3 + 2 + 2) << "a warm-up, then three rounds, two of them without c";
  clock = {{3.0e-3, 1.0e-3, 9.0e-3}};
  EXPECT_EQ(tuning.choose("clear", kNames, std::ref(clock)), 1u);
  EXPECT_EQ(clock.calls, 3 + 3);
  clock = {{0.50, 0.45, 0.47}};
  EXPECT_EQ(tuning.choose("long", kNames, std::ref(clock)), 1u);
  EXPECT_EQ(clock.calls, 3 + 3) << "one round of long runs";
}

TEST(Tuning, OffMeasuresNothing) {
  Tuning tuning(false);
  Clock clock{{3.0, 1.0, 2.0}};
  EXPECT_EQ(tuning.choose("k", kNames, std::ref(clock)), 0u);
  EXPECT_EQ(clock.calls, 0);
  EXPECT_EQ(tuning.export_text(), "k = a\n");
}

TEST(Tuning, ExportAndImport) {
  Tuning first(true), second(true);
  Clock clock{{3.0, 1.0, 2.0}};
  first.choose("x y -> z", kNames, std::ref(clock));
  first.choose("a", kNames, std::ref(clock));
  EXPECT_EQ(first.export_text(), "a = b\nx y -> z = b\n");
  second.import_text("a = c\n");
  second.import_text(first.export_text());
  EXPECT_EQ(second.export_text(), first.export_text());
  const int calls = clock.calls;
  EXPECT_EQ(second.choose("a", kNames, std::ref(clock)), 1u);
  EXPECT_EQ(clock.calls, calls) << "imported, not measured";
  EXPECT_EQ(second.choose("a", std::vector<std::string>{"x", "y"}, std::ref(clock)), 0u)
      << "a choice that is not offered falls back to the fixed rule";
}

TEST(Tuning, ImportRejectsWhatExportDidNotWrite) {
  Tuning tuning(true);
  for (const char* text : {"nonsense\n", "a = b\nnonsense"}) {
    try {
      tuning.import_text(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      // It comes from a log or a checkpoint.
      EXPECT_EQ(error.kind(), ErrorKind::data);
    }
  }
}

// Two ranks: one measures, and the other takes over its choices whatever it would have measured
// itself.
TEST(Tuning, ConvolutionsTakeTheTableOver) {
  const auto measuring = make_test_device({.tune = true});
  const auto receiving = make_test_device({.tune = true});
  const auto fixed_a = make_test_device({.tune = false}),
             fixed_b = make_test_device({.tune = false});
  const auto make = [](Device& device) {
    const std::size_t block = device.channel_block(64);
    return make_conv2d(device, {.x = {{2, 8, 8, 64}, DataType::f32, block},
                                .y = {{2, 8, 8, 64}, DataType::f32, block}});
  };
  const std::string chosen = make(*measuring)->algorithms();
  receiving->tuning().import_text(measuring->tuning().export_text());
  EXPECT_EQ(make(*receiving)->algorithms(), chosen);
  EXPECT_EQ(receiving->tuning().export_text(), measuring->tuning().export_text());
  EXPECT_EQ(make(*fixed_a)->algorithms(), make(*fixed_b)->algorithms());
  EXPECT_EQ(fixed_a->tuning().export_text(), fixed_b->tuning().export_text());
}

}  // namespace
}  // namespace dp::test
