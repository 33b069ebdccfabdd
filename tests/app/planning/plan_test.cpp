// The tables of --plan, made by hand, and what it compares and reads from its options.
#include "app/planning/plan_table.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "app/planning/plan_choices.hpp"
#include "app/training/setup/run_options.hpp"
#include "kernels/codecs/codec_spec.hpp"

namespace dp {
namespace {

PlanRow row(const char* topology, const char* codec, double step_s, double exposed_s,
            double sent_bytes) {
  return {.topology = topology,
          .codec = codec,
          .step_s = step_s,
          .exposed_s = exposed_s,
          .sent_bytes = sent_bytes};
}

TEST(PlanTable, IsRankedByTimeAndThenByBytes) {
  std::vector<PlanRow> rows = {row("ring", "none", 2.0, 1.0, 4e6), row("ring", "q8", 1.0, 0, 1e6),
                               row("direct", "q4", 1.0, 0, 5e5), row("direct", "q8", 1.0, 0, 1e6),
                               row("ring", "topk", 0.5, 0, 1e4)};
  rank_rows(rows);
  std::vector<std::string> order;
  for (const PlanRow& one : rows) order.push_back(one.topology + " " + one.codec);
  EXPECT_EQ(order, (std::vector<std::string>{"ring topk", "direct q4", "ring q8", "direct q8",
                                             "ring none"}));
}

TEST(PlanTable, NamesTheQuickestAndWhatSendsMoreInAboutTheSameTime) {
  const std::string text =
      quickest_text({row("ring", "q4", 1.0, 0.01, 5e5), row("ring", "q8", 1.03, 0.04, 1e6),
                     row("tree", "none", 1.04, 0.0, 9e6), row("ring", "fp16", 1.051, 0.06, 2e6)});
  EXPECT_EQ(text,
            "--topology ring --compress q4: 1.00 s per step, including 10.0 ms waiting for "
            "the network; within 5 % of that, q8 sends the most (1.00 MB, 1.03 s per step)");
}

TEST(PlanTable, SaysWhatWaitsLessOften) {
  const std::string text =
      quickest_text({row("ring", "q8", 3.0, 2.0, 1e6), row("ring", "none", 9.0, 8.0, 4e6)});
  EXPECT_TRUE(
      text.ends_with("for the network. With a larger batch, --accumulate or --sync-every, "
                     "training waits less often"))
      << text;
}

TEST(PlanTable, RoundsAreNamedIfTheyAreQuickerAndNotTakenForAsGood) {
  std::vector<PlanRow> rows = {row("ring", "q8", 1.1, 0.1, 5e4), row("ring", "none", 1.5, 0.5, 2e5),
                               row("ring", "q8", 3.0, 2.0, 1e6),
                               row("ring", "none", 9.0, 8.0, 4e6)};
  rows[0].sync_every = rows[1].sync_every = 16;
  const std::string text = quickest_text(rows);
  EXPECT_TRUE(text.starts_with("--topology ring --compress q8: 3.00 s per step")) << text;
  EXPECT_NE(text.find(". --topology ring --compress q8 --sync-every 16 would take 1.10 s."),
            std::string::npos)
      << text;
  // All rows are of rounds: the run's own.
  rows.resize(2);
  EXPECT_TRUE(quickest_text(rows).starts_with(
      "--topology ring --compress q8 --sync-every 16: 1.10 s per step"))
      << quickest_text(rows);
}

TEST(PlanTable, AutoShowsItsBits) {
  PlanRow shown = row("direct", "auto", 1.0, 0.0, 1e5);
  shown.bits = 0.1;
  EXPECT_EQ(shown.text(), "auto (0.1 bits)");
  const TextTable table = table_of({shown});
  EXPECT_EQ(table.rows[0][1], "auto (0.1 bits)");
  EXPECT_EQ(table.header.size(), table.rows[0].size());
}

std::vector<std::string> texts_of(const std::vector<CompressChoice>& choices) {
  std::vector<std::string> texts;
  for (const CompressChoice& choice : choices) texts.push_back(choice.text);
  return texts;
}

// A codec that is added to the list is in the plan, too.
TEST(PlanChoices, AreAllCodecsOfTheListThatTheOptimiserAllows) {
  Options options;
  options.compress = parse_compress("q4:block=512");
  std::vector<std::string> expected = codec_samples();
  for (const CodecInfo& info : codec_list()) {
    EXPECT_TRUE(std::ranges::any_of(expected, [&](const std::string& spec) {
      return parse_codec_spec(spec).name == info.name;
    })) << info.name;
  }
  expected.insert(expected.end(), {"auto", "q4:block=512"});
  EXPECT_EQ(texts_of(codecs_of(options)), expected);
  // Adam keeps its momentum, which dgc would take.
  options.optimizer = Options::Optimizer::adam;
  std::erase(expected, "dgc");
  EXPECT_EQ(texts_of(codecs_of(options)), expected);
  options.plan.codecs = {parse_compress("q8"), {}, parse_compress("q8:block=2048")};
  EXPECT_EQ(texts_of(codecs_of(options)), (std::vector<std::string>{"q8", "none"}));
}

TEST(PlanChoices, GridIsComparedWhereRanksAreMany) {
  Options options;
  EXPECT_EQ(topologies_of(options, 8), (std::vector<std::string>{"ring", "direct"}));
  EXPECT_EQ(topologies_of(options, 9), (std::vector<std::string>{"ring", "direct", "grid"}));
  options.plan.topologies = {"tree"};
  EXPECT_EQ(topologies_of(options, 64), std::vector<std::string>{"tree"});
}

TEST(AutoSendsVelocities, WhereTheOptimiserCanLeaveItsMomentum) {
  const Options sgd;
  EXPECT_TRUE(auto_sends_velocities(sgd, DeviceKind::cpu));
  EXPECT_TRUE(auto_sends_velocities(sgd, DeviceKind::cuda));
  Options adam = sgd;
  adam.optimizer = Options::Optimizer::adamw;
  adam.momentum = 0;
  EXPECT_TRUE(auto_sends_velocities(adam, DeviceKind::cpu));
  EXPECT_FALSE(auto_sends_velocities(adam, DeviceKind::cuda));
  std::vector<Options> others(4, sgd);
  others[0].optimizer = Options::Optimizer::lars;
  others[1].momentum = 0;
  others[2].clip_norm = 1;
  others[3].sync_every = parse_round_schedule("4");
  for (const Options& options : others) {
    EXPECT_FALSE(auto_sends_velocities(options, DeviceKind::cpu));
  }
}

TEST(PlanOptions, SpecsAreJoinedByCommasAndHaveSome) {
  EXPECT_EQ(split_specs("q8"), std::vector<std::string>{"q8"});
  EXPECT_EQ(split_specs("q8:block=512,ef=off,none,topk:ratio=0.1"),
            (std::vector<std::string>{"q8:block=512,ef=off", "none", "topk:ratio=0.1"}));
}

}  // namespace
}  // namespace dp
