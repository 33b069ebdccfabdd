// What --plan advises, on tables made by hand, and what it reads from its options.
#include "app/planning/plan.hpp"

#include <gtest/gtest.h>

#include "app/planning/codec_accuracy.hpp"
#include "app/training/run_options.hpp"

namespace dp {
namespace {

PlanRow row(const char* topology, const char* codec, double step_s, double exposed_s) {
  return {.topology = topology, .codec = codec, .step_s = step_s, .exposed_s = exposed_s};
}

TEST(PlanAdvice, TheFinestThatIsNearlyTheFastest) {
  // topk is faster, but no study had it near fp32.
  const std::vector<PlanRow> rows = {row("ring", "none", 2.0, 1.0), row("ring", "fp16", 1.04, 0.05),
                                     row("ring", "q8", 1.0, 0.01),
                                     row("ring", "topk:ratio=0.01", 0.5, 0.0)};
  const PlanAdvice advice = advise(rows);
  EXPECT_EQ(advice.row, 1u);
  EXPECT_TRUE(advice.text.starts_with("--topology ring --compress fp16: 1.04 s a step"))
      << advice.text;
  EXPECT_EQ(advice.text.find("topk"), std::string::npos) << "hardly waits";
}

TEST(PlanAdvice, SaysWhatACoarserCodecWouldTakeAndCost) {
  const PlanAdvice advice = advise(
      {row("ring", "none", 9.0, 8.0), row("ring", "q8", 3.0, 2.0), row("direct", "q2", 1.1, 0.1)});
  EXPECT_EQ(advice.row, 1u);
  EXPECT_NE(advice.text.find("q2 would take 1.10 s, with +16 % loss"), std::string::npos)
      << advice.text;
  EXPECT_NE(advice.text.find("A larger batch"), std::string::npos) << advice.text;
}

TEST(PlanAdvice, RoundsAreNamedWhereTheyAreQuickerAndNotTakenForAsGood) {
  std::vector<PlanRow> rows = {row("ring", "none", 9.0, 8.0), row("ring", "q8", 3.0, 2.0),
                               row("ring", "none", 1.5, 0.5), row("ring", "q8", 1.1, 0.1)};
  rows[2].sync_every = rows[3].sync_every = 16;
  const PlanAdvice advice = advise(rows);
  EXPECT_EQ(advice.row, 1u);
  EXPECT_NE(advice.text.find("q8 --sync-every 16 would take 1.10 s."), std::string::npos)
      << advice.text;
  // All rows are of rounds: the run's own.
  rows.erase(rows.begin(), rows.begin() + 2);
  EXPECT_TRUE(
      advise(rows).text.starts_with("--topology ring --compress q8 --sync-every 16: 1.10 s"))
      << advise(rows).text;
}

TEST(PlanAdvice, WithoutAStudyTheFastestCounts) {
  const PlanAdvice advice = advise({row("ring", "q16", 2.0, 0.0), row("ring", "fp8", 1.0, 0.0)});
  EXPECT_EQ(advice.row, 1u);
  EXPECT_NE(advice.text.find("no study has tried"), std::string::npos) << advice.text;
}

// auto is as good as what it sends.
TEST(PlanAdvice, AutoIsJudgedByWhatItSends) {
  std::vector<PlanRow> rows = {row("direct", "q8", 3.0, 2.0), row("direct", "auto", 1.0, 0.0)};
  rows[1].sent_as = "ecq:bits=0.1";
  rows[1].bits = 0.1;
  EXPECT_EQ(advise(rows).row, 0u);
  EXPECT_EQ(rows[1].text(), "auto (0.1 bits)");
  rows[1].sent_as = "q4";
  EXPECT_EQ(advise(rows).row, 1u);
}

TEST(AutoSendsVelocities, WhereTheOptimiserCanLeaveItsMomentum) {
  const Options sgd;
  EXPECT_TRUE(auto_sends_velocities(sgd, DeviceKind::cpu));
  EXPECT_FALSE(auto_sends_velocities(sgd, DeviceKind::cuda));
  std::vector<Options> others(4, sgd);
  others[0].optimizer = Options::Optimizer::adam;
  others[1].momentum = 0;
  others[2].clip_norm = 1;
  others[3].sync_every = "4";
  for (const Options& options : others) {
    EXPECT_FALSE(auto_sends_velocities(options, DeviceKind::cpu));
  }
}

TEST(PlanOptions, SpecsAreJoinedByCommasAndHaveSome) {
  EXPECT_EQ(split_specs("q8"), std::vector<std::string>{"q8"});
  EXPECT_EQ(split_specs("q8:block=512,ef=off,none,topk:ratio=0.1"),
            (std::vector<std::string>{"q8:block=512,ef=off", "none", "topk:ratio=0.1"}));
}

TEST(LossOfStudies, IsThatOfTheTable) {
  const auto loss = [](const char* spec, const char* topology) {
    return loss_of_studies(parse_codec_spec(spec), topology);
  };
  EXPECT_EQ(loss("none", "tree"), 1.0);
  EXPECT_NEAR(*loss("fp16", "ring"), 0.838 / 0.855, 1e-12);
  EXPECT_NEAR(*loss("q8", "ring"), 0.840 / 0.855, 1e-12);
  EXPECT_NEAR(*loss("q4", "ring"), 0.867 / 0.855, 1e-12);
  EXPECT_NEAR(*loss("powersgd:rank=4", "ring"), 0.914 / 0.855, 1e-12);
  EXPECT_NEAR(*loss("topk:ratio=0.01", "ring"), 1.130 / 0.855, 1e-12);
  EXPECT_NEAR(*loss("topk:ratio=0.01", "direct"), 1.081 / 0.855, 1e-12);
  EXPECT_NEAR(*loss("q2", "ring"), 1.004 / 0.855, 1e-12);
  EXPECT_NEAR(*loss("q2", "direct"), 0.992 / 0.855, 1e-12);
  EXPECT_FALSE(loss("q2:block=512", "ring").has_value());
  // The rate's points, between them, and beyond them.
  EXPECT_NEAR(*loss("ecq:bits=0.35", "direct"), 0.859 / 0.872, 1e-12);
  EXPECT_NEAR(*loss("ecq:bits=0.35", "ring"), 0.879 / 0.872, 1e-12);
  EXPECT_GT(*loss("ecq:bits=0.25", "direct"), *loss("ecq:bits=0.35", "direct"));
  EXPECT_LT(*loss("ecq:bits=0.25", "direct"), *loss("ecq:bits=0.12", "direct"));
  EXPECT_FALSE(loss("ecq:bits=2", "direct").has_value());
  EXPECT_FALSE(loss("ecq:bits=0.04", "direct").has_value());
  EXPECT_FALSE(loss("ecq:bits=0.35", "tree").has_value());
  // Velocities have figures of their own, and other settings none.
  EXPECT_NEAR(*loss("ecq:bits=0.35,velocity=masked", "direct"), 0.828 / 0.872, 1e-12);
  EXPECT_NEAR(*loss("ecq:bits=1.2,velocity=on", "direct"), 0.813 / 0.872, 1e-12);
  EXPECT_FALSE(loss("ecq:bits=0.35,velocity=masked", "ring").has_value());
  EXPECT_FALSE(loss("ecq:bits=0.35,ef=off", "direct").has_value());
  EXPECT_FALSE(loss("ecq:bits=0.35,growth=0", "direct").has_value());
  // As many bits in every step do less than as many in the mean of a run that begins finer.
  const auto even = loss_of_studies(parse_codec_spec("ecq:bits=0.2"), "direct", true);
  EXPECT_GT(*even, *loss("ecq:bits=0.2", "direct"));
  EXPECT_FALSE(loss_of_studies(parse_codec_spec("ecq:bits=0.2"), "ring", true).has_value());
}

}  // namespace
}  // namespace dp
