// Options with keys, NAME[:key=value,...], and those of earlier versions that are keys today.
#include "app/options/options_keyed.hpp"

#include <gtest/gtest.h>

#include "app/options/options_removed.hpp"
#include "app/options/options_table.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

using Words = std::vector<std::string>;

Options parse(const Words& words) { return parse_options(words, {}); }

std::string value_of(const Options& options, const std::string& name) {
  for (const auto& [other, value] : options.resolved()) {
    if (other == name) return value;
  }
  return "no such option";
}

std::string refusal(const Words& words) {
  try {
    static_cast<void>(parse(words));
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.what();
  }
  return "accepted";
}

TEST(KeyedOptions, KeysAreFieldsAndPrintedIfTheyDifferFromTheirDefaults) {
  const Options muon = parse({"--optimizer", "muon:lr=0.1,momentum=0.6,linear=on"});
  EXPECT_EQ(muon.optimizer, Options::Optimizer::muon);
  EXPECT_EQ(muon.muon_lr, 0.1);
  EXPECT_TRUE(muon.muon_linear);
  EXPECT_EQ(value_of(muon, "optimizer"), "muon:lr=0.1,linear=on");
  EXPECT_EQ(value_of(parse({"--optimizer", "adamw:beta1=0.9"}), "optimizer"), "adamw");
  const Options again = parse_config_text(config_text(muon), "printed", {});
  EXPECT_EQ(again.resolved(), muon.resolved());
  EXPECT_EQ(again.muon_lr, 0.1);
}

TEST(KeyedOptions, AValueStandsAlone) {
  OptionContext context;
  Options options;
  const OptionTable table = option_table(context, options);
  const OptionRow& row = *find_option(table, "optimizer");
  row.set("muon:lr=0.1");
  row.set("muon:linear=on");
  EXPECT_EQ(options.muon_lr, 0.24);
  row.set("adam:epsilon=0.1");
  EXPECT_FALSE(options.muon_linear);
  EXPECT_EQ(row.get(), "adam:epsilon=0.1");
}

// --plan alone, with keys, and with keys of codecs inside.
TEST(KeyedOptions, ThePlanMayHaveNoValue) {
  EXPECT_EQ(parse({"--plan"}).action, Options::Action::plan);
  EXPECT_EQ(value_of(parse({"--plan", "--epochs", "2"}), "plan"), "on");
  const std::string text = "ranks=4/8,rates=10mbit,codecs=none/topk:ratio=0.1,ef=off/q8,sync=1/16";
  const Options options = parse({"--plan", text, "--epochs", "2"});
  EXPECT_EQ(options.action, Options::Action::plan);
  EXPECT_EQ(options.plan.ranks, (std::vector<std::int64_t>{4, 8}));
  EXPECT_EQ(options.plan.sync, (std::vector<std::int64_t>{1, 16}));
  EXPECT_EQ(options.plan.codecs.size(), 3u);
  EXPECT_EQ(options.plan.codecs[1].text, "topk:ratio=0.1,ef=off");
  EXPECT_EQ(value_of(options, "plan"),
            "ranks=4/8,rates=10mbit,sync=1/16,codecs=none/topk:ratio=0.1,ef=off/q8");
  // The other ranks read this.
  const Options other = parse_config_text(config_text(options), "printed", {});
  EXPECT_EQ(other.action, Options::Action::plan);
  EXPECT_EQ(other.resolved(), options.resolved());
  EXPECT_EQ(value_of(parse({"--epochs", "2"}), "plan"), "");
}

// The schedule of rounds reads its own keys.
TEST(KeyedOptions, RoundsHaveKeysOfTheirOuterOptimiser) {
  const Options options = parse({"--sync-every", "8:outer-lr=0.7,from=2,outer-momentum=0.5"});
  EXPECT_EQ(options.sync_every.given, "8:from=2");
  EXPECT_EQ(options.outer_lr, 0.7);
  EXPECT_EQ(options.outer_momentum, 0.5);
  EXPECT_EQ(value_of(options, "sync-every"), "8:from=2,outer-lr=0.7,outer-momentum=0.5");
  EXPECT_EQ(value_of(parse({"--sync-every", "auto:outer-lr=0.7"}), "sync-every"),
            "auto:outer-lr=0.7");
  EXPECT_EQ(refusal({"--sync-every", "8:outer-lr=11"}),
            "--sync-every 8:outer-lr=11: outer-lr= must be a number above 0, up to 10");
}

struct Bad {
  Words words;
  std::string message;
};

class KeyedRefused : public testing::TestWithParam<Bad> {};

TEST_P(KeyedRefused, SaysWhatAndWhatIsAllowed) {
  EXPECT_EQ(refusal(GetParam().words), GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    Values, KeyedRefused,
    testing::Values(
        Bad{{"--optimizer", "sdg:lr=1"},
            "--optimizer sdg: must be sgd, adam, adamw, lars or muon; did you mean sgd?"},
        Bad{{"--optimizer", "adam:lr=1"},
            "--optimizer adam:lr=1: unknown key 'lr' of adam; known: beta1, beta2, epsilon"},
        Bad{{"--optimizer", "sgd:beta1=0.5"},
            "--optimizer sgd:beta1=0.5: unknown key 'beta1' of sgd; sgd has no keys"},
        Bad{{"--optimizer", "adam:beta1=1"},
            "--optimizer adam:beta1=1: beta1= must be a number from 0 to below 1"},
        Bad{{"--optimizer", "adam:beta1="},
            "--optimizer adam:beta1=: beta1= must be a number from 0 to below 1"},
        Bad{{"--plan", "ranks=0"},
            "--plan ranks=0: ranks= must be whole numbers joined by /, each from 1 to 64"},
        Bad{{"--plan", "rnks=4"},
            "--plan rnks=4: unknown key 'rnks' of --plan; known: ranks, batches, rates, delay-ms, "
            "sync, codecs, topologies"},
        Bad{{"--plan", "of"}, "--plan of: must be on; did you mean on?"},
        Bad{{"--lr-schedule", "step:power=2"},
            "--lr-schedule step:power=2: unknown key 'power' of step; known: milestones, gamma, "
            "by"},
        Bad{{"--optimizer", "adam:"},
            "--optimizer adam:: '' must be key=value; known: beta1, beta2, epsilon"},
        Bad{{"--optimizer", "adam:beta1=0,beta1=0"},
            "--optimizer adam:beta1=0,beta1=0: beta1= is given twice"}));

INSTANTIATE_TEST_SUITE_P(
    Removed, KeyedRefused,
    testing::Values(
        Bad{{"--muon-lr", "0.24"}, "--muon-lr 0.24: write --optimizer muon:lr=0.24"},
        Bad{{"--muon-lr=0.1", "--optimizer", "muon", "--muon-linear", "on"},
            "--muon-lr 0.1: write --optimizer muon:lr=0.1,linear=on"},
        Bad{{"--optimizer", "adamw", "--beta2", "0.99"},
            "--beta2 0.99: write --optimizer adamw:beta2=0.99"},
        Bad{{"--optimizer", "sgd", "--epsilon", "1e-7"},
            "--epsilon 1e-7: write --optimizer adam:epsilon=1e-7"},
        Bad{{"--lars-trust"}, "--lars-trust: write --optimizer lars:trust=..."},
        Bad{{"--lr-milestones", "60,120", "--lr-gamma", "0.2"},
            "--lr-milestones 60,120: write --lr-schedule step:milestones=60/120,gamma=0.2"},
        Bad{{"--lr-schedule", "poly", "--lr-interval", "epoch"},
            "--lr-interval epoch: write --lr-schedule poly:by=epoch"},
        Bad{{"--lr-triangle", "0,0.5,0.1"},
            "--lr-triangle 0,0.5,0.1: write --lr-schedule triangular:start=0,peak=0.5,end=0.1"},
        Bad{{"--lr-power", "3"}, "--lr-power 3: write --lr-schedule poly:power=3"},
        Bad{{"--crop-padding", "2", "--cutout", "8", "--flip", "off"},
            "--crop-padding 2: write --augment on:padding=2,flip=off,cutout=8"},
        Bad{{"--plan", "--plan-ranks", "4,8", "--plan-codecs", "none,topk:ratio=0.1,ef=off"},
            "--plan-ranks 4,8: write --plan ranks=4/8,codecs=none/topk:ratio=0.1,ef=off"},
        Bad{{"--sync-every", "4:from=2", "--outer-lr", "0.7", "--outer-momentum", "0.5"},
            "--outer-lr 0.7: write --sync-every 4:from=2,outer-lr=0.7,outer-momentum=0.5"},
        Bad{{"--outer-momentum", "0.5"},
            "--outer-momentum 0.5: write --sync-every 16:outer-momentum=0.5"},
        Bad{{"--plan-sync", "4"}, "--plan-sync 4: write --plan sync=4"},
        Bad{{"--crop-fill", "reflect"}, "--crop-fill reflect: write --augment on:fill=reflect"}));

TEST(RemovedOptions, AFileIsRefusedInTheSameWords) {
  try {
    static_cast<void>(parse_config_text("optimizer = muon\nmuon-momentum = 0.5\n", "run.ini", {}));
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "run.ini:2: --muon-momentum 0.5: write --optimizer muon:momentum=0.5");
  }
}

// Checkpoints of earlier versions have these.
TEST(RemovedOptions, AreTranslated) {
  using Map = std::map<std::string, std::string>;
  EXPECT_EQ(with_keys(Map{{"optimizer", "muon"},
                          {"muon-lr", "0.1"},
                          {"muon-momentum", "0.6"},
                          {"beta1", ""},
                          {"epochs", "3"}}),
            (Map{{"optimizer", "muon:lr=0.1"}, {"epochs", "3"}}));
  EXPECT_EQ(with_keys(Map{{"optimizer", "sgd"}, {"muon-lr", "0.24"}}), (Map{{"optimizer", "sgd"}}));
  EXPECT_EQ(with_keys(Map{{"lr-schedule", "step"},
                          {"lr-milestones", "15,22.5"},
                          {"lr-gamma", "0.1"},
                          {"lr-interval", "step"},
                          {"lr-triangle", "0,0,0"}}),
            (Map{{"lr-schedule", "step:milestones=15/22.5"}}));
  EXPECT_EQ(
      with_keys(Map{{"sync-every", "4:from=2"}, {"outer-lr", "1"}, {"outer-momentum", "0.5"}}),
      (Map{{"sync-every", "4:from=2,outer-momentum=0.5"}}));
  EXPECT_EQ(with_keys(Map{{"sync-every", "off"}, {"outer-lr", ""}, {"outer-momentum", ""}}),
            (Map{{"sync-every", "off"}}));
  EXPECT_EQ(with_keys(Map{{"augment", "on"}, {"crop-padding", "4"}, {"flip", "alternate"}}),
            (Map{{"augment", "on:flip=alternate"}}));
  EXPECT_EQ(with_keys(Map{{"augment", "off"}, {"crop-padding", "2"}}), (Map{{"augment", "off"}}));
  EXPECT_EQ(with_keys(Map{{"epochs", "3"}}), (Map{{"epochs", "3"}}));
}

}  // namespace
}  // namespace dp
