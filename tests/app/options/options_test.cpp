// The options: what is accepted, what is refused and with which words, and that all that is printed
// from the table agrees with what is parsed from it.
#include "app/options/options.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "app/options/batch_schedule.hpp"
#include "app/options/options_schedule.hpp"
#include "app/options/options_table.hpp"
#include "app/options/recipes.hpp"
#include "app/options/round_schedule.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

using Words = std::vector<std::string>;

OptionContext context() {
  OptionContext result;
  result.models = {"resnet18", "resnet20", "resnet20b", "resnet110"};
  result.datasets = {{"synthetic", "drawn"},
                     {"cifar10", "ten classes"},
                     {"cifar100", "a hundred"},
                     {"folder", "files"}};
  result.codecs = {{"none", "fp32"}, {"q8", "8-bit bins; block=2048: values that share a scale"}};
  result.parse_compress = [](std::string_view spec) {
    if (spec != "none" && spec != "q8") {
      throw_error(ErrorKind::usage, "--compress {}: unknown codec; known: none, q8", spec);
    }
    return CompressChoice{.text = std::string(spec)};
  };
  return result;
}

Options parse(const Words& words) { return parse_options(words, context()); }

// The message of the error that the words give; fails the test where there is none or where it is
// not one of usage.
std::string refusal(const Words& words) {
  try {
    static_cast<void>(parse(words));
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.what();
  }
  ADD_FAILURE() << "accepted";
  return "";
}

// A file in the working folder that is gone after the test.
class File {
 public:
  explicit File(const std::string& text)
      : path_("options_test." + std::to_string(::getpid()) + ".ini") {
    std::ofstream(path_) << text;
  }
  ~File() {
    std::error_code code;
    std::filesystem::remove(path_, code);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(Options, WithoutAnyWordTheSyntheticSetIsLearntInMinutes) {
  const Options options = parse({});
  EXPECT_EQ(options.dataset, "synthetic");
  EXPECT_EQ(options.model, "resnet20");
  EXPECT_EQ(options.batch_size, 32);
  EXPECT_EQ(options.epochs, 5);
  EXPECT_EQ(options.limit_train, 12800);
  EXPECT_EQ(options.limit_test, 2000);
  EXPECT_EQ(options.lr_schedule, Options::LrSchedule::onecycle);
  EXPECT_EQ(options.lr, 0.2);
  EXPECT_EQ(options.momentum, 0.9);
  EXPECT_EQ(options.weight_decay, 5e-4);
  EXPECT_EQ(options.compress.text, "none");
  EXPECT_EQ(options.log, "auto");
  EXPECT_EQ(options.action, Options::Action::train);
}

TEST(Options, RealDataHasTheDefaultsOfTheExperiments) {
  const Options options = parse({"--data-dir", "somewhere"});
  EXPECT_EQ(options.dataset, "cifar10");
  EXPECT_EQ(options.model, "resnet18");
  EXPECT_EQ(options.batch_size, 128);
  EXPECT_EQ(options.lr, 0.1);
  EXPECT_EQ(options.limit_train, 0);
  EXPECT_EQ(options.lr_schedule, Options::LrSchedule::cosine);
}

TEST(Options, WhatIsGivenStaysWithTheSyntheticSet) {
  const Options options = parse({"--model=resnet110", "--epochs", "7", "--lr", "0.1",
                                 "--lr-schedule", "constant", "--limit-train", "0"});
  EXPECT_EQ(options.dataset, "synthetic");
  EXPECT_EQ(options.model, "resnet110");
  EXPECT_EQ(options.epochs, 7);
  EXPECT_EQ(options.lr, 0.1);
  EXPECT_EQ(options.lr_schedule, Options::LrSchedule::constant);
  EXPECT_EQ(options.limit_train, 0);
  EXPECT_EQ(options.batch_size, 32);
}

TEST(Options, DataSetsAreThoseOfTheContext) {
  OptionContext other = context();
  other.datasets = {{"synthetic", "drawn"}, {"photos", "of birds"}};
  EXPECT_EQ(parse_options({"--data-dir", "d", "--dataset", "photos"}, other).dataset, "photos");
  EXPECT_NE(help_text(other, "all").find("--dataset synthetic|photos"), std::string::npos);
  try {
    static_cast<void>(parse_options({"--data-dir", "d", "--dataset", "cifar10"}, other));
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "--dataset cifar10: must be synthetic or photos");
  }
}

TEST(Options, TheFolderTellsItsDataSet) {
  OptionContext with_detection = context();
  with_detection.detect_dataset = [](const std::string& folder) {
    return folder == "hundred" ? "cifar100" : "";
  };
  EXPECT_EQ(parse_options({"--data-dir", "hundred"}, with_detection).dataset, "cifar100");
  EXPECT_EQ(parse_options({"--data-dir", "other"}, with_detection).dataset, "cifar10");
  EXPECT_EQ(
      parse_options({"--data-dir", "hundred", "--dataset", "cifar10"}, with_detection).dataset,
      "cifar10");
}

TEST(Options, SomeAreForImagesInFoldersOnly) {
  const Options options =
      parse({"--dataset", "folder", "--data-dir", "d", "--image-size", "64", "--crop", "resized",
             "--validation-share", "0.2", "--split-seed", "3", "--bad-images", "skip"});
  EXPECT_EQ(options.image_size, 64);
  EXPECT_EQ(options.crop, Options::Crop::resized);
  EXPECT_EQ(options.validation_share, 0.2);
  EXPECT_EQ(options.split_seed, 3);
  EXPECT_EQ(options.bad_images, Options::BadImages::skip);
  const Options again = parse_config_text(config_text(options), "printed", context());
  EXPECT_EQ(again.resolved(), options.resolved());
  EXPECT_EQ(refusal({"--data-dir", "d", "--dataset", "cifar10", "--crop", "pad"}),
            "--crop: only with images in folders (--dataset folder), not cifar10");
  EXPECT_EQ(refusal({"--dataset", "folder"}),
            "--dataset folder: needs --data-dir, the path of a folder with one folder of images "
            "per class, or the path of a pack");
  // Where the folder does not tell its data set, they do, so that its loader says what is wrong.
  EXPECT_EQ(parse({"--data-dir", "d", "--crop", "pad"}).dataset, "folder");
  // A file's give way to the command line's data set; what is at its default is not told.
  const File file("dataset = folder\ndata-dir = d\nimage-size = 64\nbad-images = skip\n");
  const Options cifar = parse({"--config", file.path(), "--dataset", "cifar10"});
  EXPECT_EQ(cifar.image_size, 0);
  EXPECT_EQ(cifar.bad_images, Options::BadImages::fail);
  for (const auto& [name, value] : parse({"--dataset", "folder", "--data-dir", "d"}).changed()) {
    EXPECT_TRUE(name == "dataset" || name == "data-dir") << name << " " << value;
  }
}

TEST(Options, MeanAndDeviationAreThreeNumbers) {
  const Options options = parse({"--mean", "0.5,0.25,0", "--std", "1,0.5,0.125"});
  EXPECT_EQ(options.mean, (std::vector<double>{0.5, 0.25, 0}));
  EXPECT_EQ(options.deviation, (std::vector<double>{1, 0.5, 0.125}));
  EXPECT_EQ(parse_config_text(config_text(options), "printed", context()).mean, options.mean);
  for (const char* bad : {"0.5", "0.5,0.5", "0.5,0.5,0.5,0.5", "0.5,x,0.5", "0.5,2,0.5"}) {
    EXPECT_EQ(refusal({"--mean", bad}),
              std::string("--mean ") + bad +
                  ": must be three numbers joined by commas, for red, green and blue, each 0 to 1");
  }
  EXPECT_NE(refusal({"--std", "0,1,1"}).find("each above 0"), std::string::npos);
}

TEST(Options, GlobalBatchStandsInsteadOfBatchSize) {
  const Options global = parse({"--global-batch", "100"});
  EXPECT_EQ(global.batch_size, 0);
  EXPECT_EQ(global.global_batch_of(3), 100);
  EXPECT_EQ(parse({"--batch-size", "8"}).global_batch_of(3), 24);
  EXPECT_EQ(parse({"--batch-size", "8", "--planned-ranks", "4"}).global_batch_of(3), 32);
  EXPECT_EQ(global.planned_ranks_of(3), 3);
  EXPECT_THROW(
      static_cast<void>(parse({"--batch-size", "2", "--planned-ranks", "1"}).global_batch_of(3)),
      Error);
  EXPECT_THROW(static_cast<void>(global.global_batch_of(101)), Error);
}

TEST(Options, StepHasMilestonesAtAHalfAndThreeQuarters) {
  EXPECT_EQ(parse({"--lr-schedule", "step", "--epochs", "10"}).lr_milestones,
            (std::vector<double>{5, 7.5}));
  EXPECT_EQ(parse({"--lr-schedule", "step:milestones=2/3.5/60"}).lr_milestones,
            (std::vector<double>{2, 3.5, 60}));
  EXPECT_TRUE(parse({}).lr_milestones.empty());
}

TEST(Options, EdgesOfRangesAreAccepted) {
  EXPECT_EQ(parse({"--momentum", "0"}).momentum, 0);
  EXPECT_EQ(parse({"--lr", "1e-30"}).lr, 1e-30);
  EXPECT_EQ(parse({"--lr", "100"}).lr, 100);
  EXPECT_EQ(parse({"--batch-size", "1"}).batch_size, 1);
  EXPECT_EQ(parse({"--batch-size", "65536"}).batch_size, 65536);
}

TEST(Options, HelpAndVersionWinOverAllElse) {
  EXPECT_EQ(parse({"--epochs", "x", "--help"}).action, Options::Action::help);
  EXPECT_EQ(parse({"--version", "stray"}).action, Options::Action::version);
  EXPECT_EQ(parse({"--print-config"}).action, Options::Action::print_config);
}

struct Bad {
  Words words;
  std::string message;
};

class Refused : public testing::TestWithParam<Bad> {};

TEST_P(Refused, SaysWhatAndWhatIsAllowed) {
  EXPECT_EQ(refusal(GetParam().words), GetParam().message);
}

const char* const kBatch = "must be a whole number from 1 to 65536";
const char* const kCadence =
    "must be a whole number of epochs or steps, or a time, with its unit: 1epoch, 500steps, 30s, "
    "10min, 2h";

INSTANTIATE_TEST_SUITE_P(
    Numbers, Refused,
    testing::Values(
        Bad{{"--batch-size", "0"}, std::string("--batch-size 0: ") + kBatch},
        Bad{{"--batch-size", "-5"}, std::string("--batch-size -5: ") + kBatch},
        Bad{{"--batch-size=-5"}, std::string("--batch-size -5: ") + kBatch},
        Bad{{"--batch-size", "nan"}, std::string("--batch-size nan: ") + kBatch},
        Bad{{"--batch-size", "inf"}, std::string("--batch-size inf: ") + kBatch},
        Bad{{"--batch-size", "1e3"}, std::string("--batch-size 1e3: ") + kBatch},
        Bad{{"--batch-size", "8.0"}, std::string("--batch-size 8.0: ") + kBatch},
        Bad{{"--batch-size", " 8"}, std::string("--batch-size  8: ") + kBatch},
        Bad{{"--batch-size", "8k"}, std::string("--batch-size 8k: ") + kBatch},
        Bad{{"--batch-size", "0x8"}, std::string("--batch-size 0x8: ") + kBatch},
        Bad{{"--batch-size", "65537"}, std::string("--batch-size 65537: ") + kBatch},
        Bad{{"--batch-size", "4294967297"}, std::string("--batch-size 4294967297: ") + kBatch},
        Bad{{"--batch-size", "99999999999999999999"},
            std::string("--batch-size 99999999999999999999: ") + kBatch},
        Bad{{"--batch-size", ""}, std::string("--batch-size: empty value; ") + kBatch},
        Bad{{"--batch-size="}, std::string("--batch-size: empty value; ") + kBatch},
        Bad{{"--lr", "nan"}, "--lr nan: must be a number above 0, up to 100"},
        Bad{{"--lr", "inf"}, "--lr inf: must be a number above 0, up to 100"},
        Bad{{"--lr", "-inf"}, "--lr -inf: must be a number above 0, up to 100"},
        Bad{{"--epochs", "0"},
            "--epochs 0: evaluates the weights of --init FILE.h5, which is missing; to train, "
            "give at least 1"},
        Bad{{"--init-from", "last"}, "--init-from: only with --init FILE.h5"},
        Bad{{"--init-except", "fc.*"}, "--init-except: only with --init FILE.h5"},
        Bad{{"--init", "w.h5", "--epochs", "0", "--export", "x.h5"},
            "--export x.h5: not with --epochs 0, which only evaluates"},
        Bad{{"--lr", "0"}, "--lr 0: must be a number above 0, up to 100"},
        Bad{{"--lr", "1e999"}, "--lr 1e999: must be a number above 0, up to 100"},
        Bad{{"--lr", "0,1"}, "--lr 0,1: must be a number above 0, up to 100"},
        Bad{{"--momentum", "1"}, "--momentum 1: must be a number from 0 to below 1"},
        Bad{{"--weight-decay", "-1e-4"}, "--weight-decay -1e-4: must be a number from 0 to 1"},
        Bad{{"--lr-schedule", "step:milestones=3/2"},
            "--lr-schedule step:milestones=3/2: milestones= must be increasing numbers joined by "
            "/, each above 0, up to 100000"},
        Bad{{"--lr-schedule", "step:milestones=3/"},
            "--lr-schedule step:milestones=3/: milestones= must be increasing numbers joined by "
            "/, each above 0, up to 100000"}));

INSTANTIATE_TEST_SUITE_P(
    Names, Refused,
    testing::Values(
        Bad{{"--batchsize", "5"}, "--batchsize: unknown option; did you mean --batch-size?"},
        Bad{{"--batch_size=5"}, "--batch_size: unknown option; did you mean --batch-size?"},
        Bad{{"--epcohs", "5"}, "--epcohs: unknown option; did you mean --epochs?"},
        Bad{{"--comp", "q8"}, "--comp: unknown option; did you mean --compress?"},
        Bad{{"--batch", "8"}, "--batch: unknown option; did you mean --batch-size?"},
        Bad{{"--Epochs", "8"}, "--Epochs: unknown option; did you mean --epochs?"},
        Bad{{"-epochs", "8"}, "-epochs: unknown option; did you mean --epochs?"},
        Bad{{"-h"}, "-h: unknown option; see dptrain --help"},
        Bad{{"--frobnicate=1"}, "--frobnicate: unknown option; see dptrain --help"},
        Bad{{"resnet18"},
            "'resnet18': stray word; every setting is an option with two dashes; see dptrain "
            "--help"},
        Bad{{"epochs=5"},
            "'epochs=5': stray word; every setting is an option with two dashes; did you mean "
            "--epochs?"},
        Bad{{"--", "--log", "x"},
            "--: every word must belong to an option; leave these dashes out"},
        Bad{{"--quiet", "on"},
            "'on': stray word; every setting is an option with two dashes; see dptrain --help"},
        Bad{{"--epochs", "5", "--epochs", "6"}, "--epochs: given twice, as 5 and as 6"},
        Bad{{"--quiet", "--quiet"}, "--quiet: given twice"},
        Bad{{"--quiet=on"}, "--quiet: takes no value"},
        Bad{{"--epochs"}, "--epochs: needs a value, a whole number from 0 to 100000"},
        Bad{{"--epochs", "--lr", "0.1"},
            "--epochs: needs a value, a whole number from 0 to 100000, before --lr"}));

INSTANTIATE_TEST_SUITE_P(
    Choices, Refused,
    testing::Values(
        Bad{{"--device", "cdua"}, "--device cdua: must be auto, cpu or cuda; did you mean cuda?"},
        Bad{{"--device", "gpu"}, "--device gpu: must be auto, cpu or cuda; did you mean cuda?"},
        Bad{{"--device", "CPU"}, "--device CPU: must be auto, cpu or cuda; did you mean cpu?"},
        Bad{{"--topology", "star"}, "--topology star: must be ring"},
        Bad{{"--nesterov", "1"}, "--nesterov 1: must be on or off"},
        Bad{{"--model", "resnet1"},
            "--model resnet1: unknown model; known: resnet18, resnet20, resnet20b, resnet110; did "
            "you mean resnet18?"},
        Bad{{"--model", "vgg"},
            "--model vgg: unknown model; known: resnet18, resnet20, resnet20b, resnet110"},
        Bad{{"--compress", "q7"}, "--compress q7: unknown codec; known: none, q8"},
        Bad{{"--log", "a\nb"},
            "--log a?b: holds a control character; must be a path, auto or none"},
        Bad{{"--model", std::string(500, 'x')},
            "--model " + std::string(60, 'x') +
                "...: unknown model; known: resnet18, resnet20, resnet20b, resnet110"}));

INSTANTIATE_TEST_SUITE_P(
    Contradictions, Refused,
    testing::Values(
        Bad{{"--batch-size", "8", "--global-batch", "32"},
            "--global-batch 32: not together with --batch-size 8; give one of the two"},
        Bad{{"--dataset", "cifar10"},
            "--dataset cifar10: needs --data-dir, the path of a folder with its files; "
            "experiments/get_cifar.sh downloads them"},
        Bad{{"--dataset", "synthetic", "--data-dir", "d"},
            "--dataset synthetic: is built in and reads no files; leave out --data-dir d"},
        Bad{{"--dataset", "folder", "--data-dir", "d", "--crop", "resized", "--augment",
             "on:padding=9"},
            "--augment padding=: only with --crop pad or auto, not resized"},
        Bad{{"--dataset", "folder", "--data-dir", "d", "--crop", "resized", "--augment",
             "on:fill=reflect"},
            "--augment fill=: only with --crop pad or auto, not resized"},
        Bad{{"--checkpoint", "d", "--accept-build"}, "--accept-build: only with --resume"},
        Bad{{"--resume"}, "--resume: only with --checkpoint DIR"},
        Bad{{"--checkpoint", "d", "--checkpoint-every", "10"},
            std::string("--checkpoint-every 10: ") + kCadence},
        Bad{{"--checkpoint", "d", "--checkpoint-every", "0.5steps"},
            std::string("--checkpoint-every 0.5steps: ") + kCadence},
        Bad{{"--checkpoint", "d", "--checkpoint-every", "0min"},
            std::string("--checkpoint-every 0min: ") + kCadence},
        Bad{{"--plan", "rates=10mbit/10"},
            "--plan rates=10mbit/10: rates= must be rates joined by /, such as "
            "10mbit/100mbit/1gbit"},
        Bad{{"--check", "--progress", "json"},
            "--progress json: not with --check, which prints tables"},
        Bad{{"--quiet", "--progress", "json"},
            "--progress json: not with --quiet, which prints no events"},
        Bad{{"--warmup-epochs", "1"},
            "--warmup-epochs 1: not with --lr-schedule onecycle, which has its own warm-up; "
            "choose constant, step, cosine or poly"},
        Bad{{"--compress-warmup", "2"}, "--compress-warmup: only with --compress CODEC"},
        Bad{{"--compress", "q8", "--compress-warmup", "5"},
            "--compress-warmup 5: must be below the run's --epochs 5; otherwise nothing is ever "
            "sent as q8"},
        Bad{{"--bucket-mb", "0"}, "--bucket-mb 0: must be auto or a number above 0, up to 4096"},
        Bad{{"--throttle", "fast"},
            "--throttle fast: must be off or a rate from 10kbit to 400gbit, such as 100mbit"},
        Bad{{"--throttle", "9kbit"},
            "--throttle 9kbit: must be off or a rate from 10kbit to 400gbit, such as 100mbit"},
        Bad{{"--throttle", "nanmbit"},
            "--throttle nanmbit: must be off or a rate from 10kbit to 400gbit, such as 100mbit"},
        Bad{{"--throttle", "100 mbit"},
            "--throttle 100 mbit: must be off or a rate from 10kbit to 400gbit, such as 100mbit"},
        Bad{{"--lr-schedule", "cosine", "--warmup-epochs", "6"},
            "--warmup-epochs 6: must be at most the run's --epochs 5"},
        Bad{{"--trace-steps", "1:2"}, "--trace-steps: only with --trace FILE.json"},
        Bad{{"--trace", "none", "--trace-steps", "1:2"},
            "--trace-steps: only with --trace FILE.json"},
        Bad{{"--comm-timeout", "0.001"},
            "--comm-timeout 0.001: must be a number from 1 to 86400, because a busy rank answers "
            "only a few times a second"},
        Bad{{"--nesterov", "on", "--momentum", "0"}, "--nesterov on: needs a --momentum above 0"},
        Bad{{"--optimizer", "adam", "--momentum", "0.9"},
            "--momentum: only with --optimizer sgd, lars or muon, not adam"},
        Bad{{"--lr-factors", "bias"},
            "--lr-factors bias: must be names with * and ?, bn or bias, each with =X, joined by "
            "commas; X is a number from 0 to 10000"},
        Bad{{"--batch-schedule", "dynamic"},
            "--batch-schedule dynamic: must be fixed, dynamic:max=N or E:N,... (N images from "
            "epoch E on, with increasing epochs), with N from 1 to 16777216"},
        Bad{{"--batch-schedule", "3:64,2:128"},
            "--batch-schedule 3:64,2:128: must be fixed, dynamic:max=N or E:N,... (N images "
            "from epoch E on, with increasing epochs), with N from 1 to 16777216"},
        Bad{{"--lookahead", "5"},
            "--lookahead 5: must be off, N:X or N:ramp, with N a whole number from 1 to 1000000 "
            "and X "
            "a number above 0, up to 1"},
        Bad{{"--decay-factors", "bias=2,=1"},
            "--decay-factors bias=2,=1: must be names with * and ?, bn or bias, each with =X, "
            "joined by commas; X is a number from 0 to 10000"}));

TEST(Options, AnOptimizerHasDefaultsOfItsOwn) {
  const Options adam = parse({"--optimizer", "adam"});
  EXPECT_EQ(adam.lr, 1e-3);
  EXPECT_EQ(adam.weight_decay, 0);
  EXPECT_EQ(parse({"--optimizer", "adamw"}).weight_decay, 0.01);
  EXPECT_EQ(parse({"--optimizer", "adamw", "--lr", "0.1", "--weight-decay", "0"}).lr, 0.1);
  EXPECT_TRUE(parse({"--optimizer", "muon"}).nesterov);
  EXPECT_FALSE(parse({"--optimizer", "muon", "--nesterov", "off"}).nesterov);
  EXPECT_FALSE(parse({"--optimizer", "muon", "--momentum", "0"}).nesterov);
  // What differs from the optimiser's defaults is shown, and nothing else.
  using Changed = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(adam.changed(), (Changed{{"dataset", "synthetic"}, {"optimizer", "adam"}}));
  EXPECT_EQ(parse({"--optimizer", "muon:lr=0.1"}).changed(),
            (Changed{{"dataset", "synthetic"}, {"optimizer", "muon:lr=0.1"}}));
  // A file may be for another optimiser than the command line's.
  const File file("momentum = 0.5\noptimizer = adam:epsilon=0.1\nlr = 0.5\n");
  EXPECT_EQ(parse({"--config", file.path(), "--optimizer", "lars"}).momentum, 0.5);
  EXPECT_EQ(parse({"--config", file.path(), "--optimizer", "lars"}).epsilon, 1e-8);
  EXPECT_EQ(parse({"--config", file.path(), "--optimizer", "adam"}).epsilon, 1e-8);
}

TEST(Options, AccumulationMultipliesTheBatch) {
  EXPECT_EQ(parse({"--batch-size", "8", "--accumulate", "5"}).global_batch_of(3), 120);
  EXPECT_EQ(parse({"--global-batch", "100", "--accumulate", "5"}).global_batch_of(3), 100);
  EXPECT_THROW(
      static_cast<void>(parse({"--global-batch", "14", "--accumulate", "5"}).global_batch_of(3)),
      Error);
}

TEST(Options, LookaheadAndTriangleReadBack) {
  const Options options = parse({"--lookahead", "5:ramp", "--lr-schedule",
                                 "triangular:start=0,peak=0.25,end=0.1", "--ema", "0.99"});
  EXPECT_EQ(options.lookahead_every, 5);
  EXPECT_EQ(options.lookahead_share, 0);
  EXPECT_EQ(options.lr_peak_at, 0.25);
  const Options again = parse_config_text(config_text(options), "text", context());
  EXPECT_EQ(again.resolved(), options.resolved());
  EXPECT_EQ(parse({"--lookahead", "off"}).lookahead_every, 0);
}

TEST(BatchSchedule, FollowsTheLoss) {
  const BatchSchedule schedule = parse_batch_schedule("dynamic:max=1000");
  EXPECT_EQ(schedule.batch_of(0, 128, 0, 0), 128u);
  EXPECT_EQ(schedule.batch_of(1, 128, 2.0, 2.0), 128u);   // 2^0
  EXPECT_EQ(schedule.batch_of(2, 128, 2.0, 1.01), 128u);  // the quotient is rounded down
  EXPECT_EQ(schedule.batch_of(2, 128, 2.0, 0.99), 256u);  // 2^1
  EXPECT_EQ(schedule.batch_of(2, 128, 2.0, 0.66), 512u);  // 2^2
  EXPECT_EQ(schedule.batch_of(2, 128, 2.0, 0.5), 1000u);  // 2^3, and no more than the most
  EXPECT_EQ(schedule.batch_of(2, 128, 2.0, 4.0), 128u);   // the loss has risen
  EXPECT_EQ(schedule.batch_of(2, 128, 2.0, 0.0), 1000u);
  EXPECT_EQ(schedule.batch_of(2, 128, 2.0, std::nan("")), 128u);
  EXPECT_EQ(schedule.batch_of(2, 2000, 2.0, 0.1), 2000u);  // never below the run's own batch
  EXPECT_EQ(schedule.all(128), (std::vector<std::size_t>{128, 256, 512, 1000}));
  EXPECT_EQ(schedule.all(2000), (std::vector<std::size_t>{2000}));
}

TEST(BatchSchedule, FollowsAList) {
  const BatchSchedule schedule = parse_batch_schedule("2:64,5:32");
  std::vector<std::size_t> sizes;
  for (std::size_t epoch = 0; epoch < 6; ++epoch) {
    sizes.push_back(schedule.batch_of(epoch, 16, 0, 0));
  }
  EXPECT_EQ(sizes, (std::vector<std::size_t>{16, 64, 64, 64, 32, 32}));
  EXPECT_EQ(schedule.all(16), (std::vector<std::size_t>{16, 32, 64}));
  EXPECT_EQ(parse_batch_schedule("fixed").batch_of(7, 16, 2.0, 0.1), 16u);
}

TEST(RoundSchedule, HasALengthAndAFirstEpoch) {
  const RoundSchedule schedule = parse_round_schedule("4:from=3");
  EXPECT_EQ(schedule.steps, 4u);
  EXPECT_FALSE(schedule.has_rounds_in(1));
  EXPECT_TRUE(schedule.has_rounds_in(2));
  EXPECT_TRUE(parse_round_schedule("8").has_rounds_in(0));
  EXPECT_FALSE(parse_round_schedule("off").has_rounds_in(0));
  for (const char* wrong :
       {"", "0", "-1", "1.5", "on", "4:", "4:from=0", "4:from=2,from=3", "4:to=3", "4;from=2"}) {
    EXPECT_THROW(static_cast<void>(parse_round_schedule(wrong)), Error) << wrong;
  }
}

// Whatever their value, also the one that earlier builds had without them.
TEST(RoundSchedule, SaysOfAKeyOfEarlierBuildsThatItWasRemoved) {
  for (const char* gone : {"4:alpha=0.02", "4:from=2,decay=1", "auto:max=20,state=mean"}) {
    try {
      static_cast<void>(parse_round_schedule(gone));
      ADD_FAILURE() << gone;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      EXPECT_NE(std::string(error.what()).find("was removed, because"), std::string::npos)
          << error.what();
    }
  }
}

TEST(RoundSchedule, ChosenRoundsLetWaitingBeATenth) {
  const RoundSchedule rounds = parse_round_schedule("auto:max=20");
  EXPECT_TRUE(rounds.has_rounds() && rounds.is_auto());
  EXPECT_FALSE(rounds.has_rounds_in(99));
  EXPECT_EQ(rounds.most_steps, 20u);
  EXPECT_EQ(parse_round_schedule("auto").most_steps, 64u);
  for (const char* wrong : {"auto:max=1", "auto:from=2", "8:max=9", "auto:", "auto8"}) {
    EXPECT_THROW(static_cast<void>(parse_round_schedule(wrong)), Error) << wrong;
  }
  const auto every_step = [](double exposed_s) {
    return chosen_steps({.compute_s = 1.0, .exposed_s = exposed_s, .in_flight_s = exposed_s + 0.5},
                        20);
  };
  EXPECT_EQ(every_step(0.1), 1u);
  EXPECT_EQ(every_step(0.24), 2u);  // 0.24 + 0.5 <= 1 + 0.2
  EXPECT_EQ(every_step(0.7), 2u);
  EXPECT_EQ(every_step(0.71), 3u);
  EXPECT_EQ(every_step(99.0), 20u);
  // One bucket, which is sent when backward ends.
  EXPECT_EQ(chosen_steps({.compute_s = 1.0, .exposed_s = 1.2, .in_flight_s = 1.2}, 20), 2u);
  EXPECT_EQ(chosen_steps({.compute_s = 1.0, .exposed_s = 1.21, .in_flight_s = 1.21}, 20), 3u);
  const auto in_rounds_of_4 = [](double exposed_s) {
    return chosen_steps({.steps = 4, .compute_s = 1.0, .exposed_s = exposed_s, .in_flight_s = 99.0},
                        20);
  };
  EXPECT_EQ(in_rounds_of_4(0.0), 4u);
  EXPECT_EQ(in_rounds_of_4(0.6), 4u);
  EXPECT_EQ(in_rounds_of_4(0.61), 5u);
  EXPECT_EQ(chosen_steps({.steps = 20, .compute_s = 1.0, .exposed_s = 2.0}, 64), 20u);
  EXPECT_EQ(chosen_steps({.steps = 20, .compute_s = 1.0, .exposed_s = 0.0}, 64), 19u);
  EXPECT_EQ(in_rounds_of_4(3.0), 7u);  // 6 <= 6 + 0.7
  EXPECT_EQ(in_rounds_of_4(1e9), 20u);
  EXPECT_EQ(chosen_steps({}, 20), 1u);
}

TEST(Options, RoundsRefuseWhatNeedsEveryStep) {
  const Options options = parse({"--sync-every", "8:from=2,outer-momentum=0.9"});
  EXPECT_EQ(options.sync_every.given, "8:from=2");
  EXPECT_EQ(options.outer_lr, 1.0);
  EXPECT_EQ(options.outer_momentum, 0.9);
  const Options again = parse_config_text(config_text(options), "text", context());
  EXPECT_EQ(again.sync_every.given, options.sync_every.given);
  EXPECT_EQ(again.outer_momentum, 0.9);
  EXPECT_EQ(parse({}).sync_every.given, "off");
  for (const std::vector<std::string>& wrong :
       std::vector<std::vector<std::string>>{{"--sync-every", "4", "--exchange", "off"},
                                             {"--sync-every", "4", "--sync-bn", "on"},
                                             {"--sync-every", "4:from=9", "--epochs", "8"},
                                             {"--sync-every", "4:outer-momentum=1"},
                                             {"--sync-every", "4:delay=4"},
                                             {"--sync-every", "1:delay=1"},
                                             {"--sync-every", "off:delay=1"},
                                             {"--sync-every", "auto:delay=1"},
                                             {"--sync-every", "off:outer-lr=0.7"}}) {
    EXPECT_THROW(parse(wrong), Error) << wrong[0] << wrong[1];
  }
}

TEST(Options, FactorsByName) {
  const Options options = parse({"--lr-factors", "bias=64,layer1.*=0.5", "--no-decay", "bn,bias"});
  EXPECT_EQ(options.lr_factors,
            (std::vector<std::pair<std::string, double>>{{"bias", 64}, {"layer1.*", 0.5}}));
  EXPECT_EQ(options.no_decay, "bn,bias");
  const Options again = parse_config_text(config_text(options), "text", context());
  EXPECT_EQ(again.lr_factors, options.lr_factors);
}

// Every recipe's options are accepted, alone and read back, and mean what they say.
TEST(Recipes, EachIsARowOfValidOptions) {
  OptionContext all = context();
  all.models.clear();
  all.parse_compress = nullptr;
  for (const Recipe& recipe : recipe_list()) {
    SCOPED_TRACE(recipe.name);
    EXPECT_FALSE(recipe.text.empty());
    const Options options = parse_options({"--recipe", recipe.name, "--data-dir", "d"}, all);
    const auto resolved = options.resolved();
    for (const auto& [name, value] : recipe.options) {
      const auto row =
          std::ranges::find(resolved, name, [](const auto& pair) { return pair.first; });
      ASSERT_NE(row, resolved.end()) << name;
      EXPECT_EQ(row->second, value) << name;
    }
    const Options again = parse_config_text(config_text(options), "text", all);
    EXPECT_EQ(again.resolved(), resolved);
    EXPECT_TRUE(options.warnings().empty());
    EXPECT_NE(help_text(all, "all").find("  " + recipe.name), std::string::npos);
  }
}

TEST(Recipes, WhatIsGivenWins) {
  const Options options = parse({"--recipe", "cifar-resnet", "--batch-size", "8", "--lr-schedule",
                                 "cosine", "--data-dir", "d"});
  EXPECT_EQ(options.model, "resnet20");
  EXPECT_EQ(options.epochs, 164);
  EXPECT_EQ(options.batch_size, 8);
  EXPECT_EQ(options.global_batch, 0);
  EXPECT_TRUE(options.lr_milestones.empty());
  // The synthetic data set's own defaults are below a recipe.
  EXPECT_EQ(parse({"--recipe", "cifar-resnet"}).epochs, 164);
  EXPECT_EQ(parse({"--recipe", "cifar-resnet", "--optimizer", "adam"}).lr, 1e-3);
  const File file("recipe = cifar-resnet\nepochs = 3\n");
  EXPECT_EQ(parse({"--config", file.path()}).epochs, 3);
  EXPECT_EQ(parse({"--config", file.path()}).model, "resnet20");
}

// A recipe's numbers are for its own optimiser and its own number of epochs.
TEST(Recipes, NumbersOfTheirOwnGiveWay) {
  OptionContext all = context();
  all.models.clear();
  const auto with = [&](const std::string& recipe, Words words) {
    words.insert(words.begin(), {"--data-dir", "d", "--recipe", recipe});
    const Options options = parse_options(words, all);
    EXPECT_EQ(parse_config_text(config_text(options), "printed", all).resolved(),
              options.resolved());
    return options;
  };
  const Options muon = with("airbench94", {"--optimizer", "muon"});
  EXPECT_TRUE(muon.lr_factors.empty() && muon.decay_factors.empty());
  EXPECT_EQ(muon.lr, 0.1);
  EXPECT_EQ(muon.momentum, 0.9);
  EXPECT_EQ(muon.label_smoothing, 0.2);
  EXPECT_EQ(with("airbench94", {"--optimizer", "muon", "--lr-factors", "bn=2"}).lr_factors.size(),
            1u);
  EXPECT_EQ(with("airbench94", {"--optimizer", "sgd"}).lr_factors.size(), 1u);
  EXPECT_EQ(with("imagenet-resnet50", {}).warmup_epochs, 5);
  EXPECT_EQ(with("imagenet-resnet50", {"--epochs", "120"}).warmup_epochs, 5);
  EXPECT_EQ(with("imagenet-resnet50", {"--epochs", "18"}).warmup_epochs, 1);
  EXPECT_NEAR(with("imagenet-resnet50", {"--epochs", "3"}).warmup_epochs, 1.0 / 6, 1e-12);
  EXPECT_EQ(with("imagenet-resnet50", {"--epochs", "9", "--warmup-epochs", "2"}).warmup_epochs, 2);
  EXPECT_EQ(with("imagenet-resnet50", {"--epochs", "3", "--lr-schedule", "onecycle"}).warmup_epochs,
            0);
}

// A recipe whose model the program does not have.
TEST(Recipes, AreOfferedWithTheirModels) {
  EXPECT_EQ(refusal({"--recipe", "lowband-vgg16"}),
            "--recipe lowband-vgg16: unknown recipe; known: cifar-resnet, cifar-cosine, "
            "cifar100-step");
  EXPECT_EQ(refusal({"--recipe", "cifar-resnett"}),
            "--recipe cifar-resnett: unknown recipe; known: cifar-resnet, cifar-cosine, "
            "cifar100-step; did you mean cifar-resnet?");
}

TEST(Config, LiesBetweenDefaultsAndCommandLine) {
  const File file(
      "# a comment\n\n; another\nepochs = 9\r\nlr=0.3   # peak\nquiet = on\n"
      "log = \"with # and space.h5\"");
  const Options options = parse({"--epochs", "3", "--config", file.path()});
  EXPECT_EQ(options.epochs, 3);
  EXPECT_EQ(options.lr, 0.3);
  EXPECT_TRUE(options.quiet);
  EXPECT_EQ(options.log, "with # and space.h5");
  EXPECT_EQ(options.batch_size, 32);
}

TEST(Config, TheCommandLineWinsOverWhatItContradicts) {
  const File file(
      "global-batch = 64\ndata-dir = somewhere\nlr-schedule = step:milestones=1/2\n"
      "warmup-epochs = 1\n");
  const Options options = parse({"--config", file.path(), "--batch-size", "8", "--dataset",
                                 "synthetic", "--lr-schedule", "onecycle"});
  EXPECT_EQ(options.batch_size, 8);
  EXPECT_EQ(options.global_batch, 0);
  EXPECT_EQ(options.dataset, "synthetic");
  EXPECT_EQ(options.data_dir, "");
  EXPECT_TRUE(options.lr_milestones.empty());
  EXPECT_EQ(options.warmup_epochs, 0);
}

TEST(Config, ErrorsNameTheLine) {
  const auto message = [](const std::string& text) {
    try {
      static_cast<void>(parse_config_text(text, "run.ini", context()));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(message("epochs = 5\nepoch = 5\n"),
            "run.ini:2: epoch: unknown option; did you mean epochs?");
  EXPECT_EQ(message("\n\nepochs 5\n"), "run.ini:3: epochs 5: is not of the form 'name = value'");
  EXPECT_EQ(message("= 5"), "run.ini:1: = 5: is not of the form 'name = value'");
  EXPECT_EQ(message("[training]\nepochs = 5"),
            "run.ini:1: [training]: sections are not supported; write 'name = value'");
  EXPECT_EQ(message("epochs = 5\n# x\nepochs = 6"),
            "run.ini:3: epochs: given twice, first at run.ini:1");
  EXPECT_EQ(message("epochs ="),
            "run.ini:1: --epochs: empty value; must be a whole number from 0 to 100000");
  EXPECT_EQ(message("lr = nan"), "run.ini:1: --lr nan: must be a number above 0, up to 100");
  EXPECT_EQ(message("compress = q7"), "run.ini:1: --compress q7: unknown codec; known: none, q8");
  EXPECT_EQ(message("help = on"), "run.ini:1: help: belongs on the command line, not in a file");
  EXPECT_EQ(message("config = x"), "run.ini:1: config: belongs on the command line, not in a file");
}

TEST(Config, AByteOrderMarkIsNoPartOfTheFirstName) {
  EXPECT_EQ(parse_config_text("\xEF\xBB\xBF"
                              "epochs = 9",
                              "run.ini", context())
                .epochs,
            9);
  EXPECT_THROW(static_cast<void>(parse_config_text("\xFF\xFE"
                                                   "e",
                                                   "run.ini", context())),
               Error);
}

TEST(Options, TheCommandLineMayTakeTheTraceFromAFileAway) {
  const File file("trace = t.json\ntrace-steps = 1:2\n");
  EXPECT_EQ(parse({"--config", file.path()}).trace_first, 1);
  const Options options = parse({"--config", file.path(), "--trace", "none"});
  EXPECT_EQ(options.trace_first, Options().trace_first);
}

TEST(Options, MilestonesAfterTheEndAreSaid) {
  const auto warnings = [](const std::string& epochs, const std::string& milestones) {
    return parse({"--lr-schedule", "step:milestones=" + milestones, "--epochs", epochs}).warnings();
  };
  EXPECT_TRUE(warnings("10", "5/9.5").empty());
  EXPECT_EQ(warnings("10", "5/10/20"),
            Words{"--lr-schedule step:milestones=5/10/20: the run ends after 10 epochs, so "
                  "10/20 has no effect"});
  EXPECT_TRUE(parse({}).warnings().empty());
}

TEST(Options, ABatchThatNeverChangesIsSaid) {
  const auto warnings = [](const std::string& schedule, const std::string& epochs,
                           std::int64_t ranks) {
    return batch_warnings(
        parse({"--batch-schedule", schedule, "--epochs", epochs, "--batch-size", "8"}), ranks);
  };
  EXPECT_TRUE(batch_warnings(parse({}), 1).empty());
  EXPECT_TRUE(warnings("dynamic:max=32", "5", 2).empty());
  EXPECT_EQ(warnings("dynamic:max=4", "5", 1),
            Words{"--batch-schedule dynamic:max=4: a step has 8 images from the start, so the "
                  "batch never grows"});
  EXPECT_EQ(warnings("dynamic:max=32", "5", 4),
            Words{"--batch-schedule dynamic:max=32: a step has 32 images from the start, so the "
                  "batch never grows"});
  EXPECT_EQ(warnings("dynamic:max=32", "1", 1),
            Words{"--batch-schedule dynamic:max=32: the run ends after 1 epoch, so the batch "
                  "never grows"});
  EXPECT_TRUE(warnings("1:16,5:32", "5", 1).empty());
  EXPECT_EQ(warnings("2:16,5:8,9:4", "4", 1),
            Words{"--batch-schedule 2:16,5:8,9:4: the run ends after 4 epochs, so 5:8,9:4 has "
                  "no effect"});
}

// What the schedule or the crop has no use for is not set, and gives way to a higher layer.
TEST(Options, WhatHasNoUseGivesWay) {
  const File file(
      "lr-schedule = step:gamma=0.5\naugment = on:padding=2,fill=reflect,flip=off\n"
      "checkpoint = d\nresume = on\naccept-build = on\n");
  const Options options = parse({"--config", file.path(), "--lr-schedule", "poly:power=3",
                                 "--dataset", "folder", "--data-dir", "d", "--crop", "resized"});
  EXPECT_EQ(options.lr_gamma, 0.1);
  EXPECT_EQ(options.lr_power, 3);
  EXPECT_EQ(options.crop_padding, 4);
  EXPECT_EQ(options.crop_fill, Options::CropFill::black);
  EXPECT_TRUE(options.accept_build);
  const std::string text = config_text(options);
  EXPECT_EQ(parse_config_text(text, "printed", context()).resolved(), options.resolved());
  EXPECT_NE(text.find("\naugment = on:flip=off\n"), std::string::npos) << text;
}

TEST(Options, AutotuneIsOnOffOrALog) {
  EXPECT_TRUE(parse({}).measures_algorithms());
  EXPECT_FALSE(parse({"--autotune", "off"}).measures_algorithms());
  EXPECT_FALSE(parse({"--autotune", "off"}).takes_choices_from_a_log());
  EXPECT_TRUE(parse({"--autotune", "run.h5"}).takes_choices_from_a_log());
  EXPECT_FALSE(parse({"--autotune", "run.h5"}).measures_algorithms());
}

TEST(Config, FilesThatCannotBeReadAreNamed) {
  EXPECT_EQ(refusal({"--config", "no/such.ini"}),
            "--config no/such.ini: cannot be read: No such file or directory");
  EXPECT_EQ(refusal({"--config", "."}), "--config .: is a folder; must be the path of a file");
  EXPECT_EQ(refusal({"--config", "/dev/zero"}),
            "--config /dev/zero: is longer than 1048576 bytes; is it a configuration?");
}

TEST(Config, WhatIsPrintedReadsBackAsTheSameOptions) {
  const Words runs[] = {
      {},
      {"--data-dir", "a \"b\" # c", "--lr", "0.1234567890123456789", "--log", " x.h5"},
      {"--global-batch", "96", "--nesterov", "on", "--quiet", "--seed", "4294967295"},
      {"--trace", "t.json", "--trace-steps", "0:1000"},
      {"--data-dir", "d", "--dataset", "cifar100", "--lr-schedule", "step:milestones=1.5/2",
       "--warmup-epochs", "0.25", "--weight-decay", "1e-7", "--device", "cpu"}};
  for (const Words& words : runs) {
    const Options options = parse(words);
    const Options again = parse_config_text(config_text(options), "printed", context());
    EXPECT_EQ(again.resolved(), options.resolved());
    EXPECT_EQ(config_text(again), config_text(options));
  }
}

TEST(Table, EveryRowIsInTheHelpWithItsDefaultAndRange) {
  const std::string help = help_text(context(), "all");
  std::string joined;  // with every run of blanks and line ends as one blank
  for (std::istringstream words(help); !words.eof();) {
    std::string word;
    words >> word;
    joined += word + " ";
  }
  const OptionContext known = context();
  for (const auto* list : {&known.codecs, &known.datasets}) {
    for (const auto& [name, text] : *list) {
      EXPECT_NE(joined.find(" " + name + " " + text + " "), std::string::npos) << name;
    }
  }
  Options defaults;
  for (const OptionGroup& group : option_table(context(), defaults)) {
    EXPECT_NE(help.find("\n" + group.title + "\n"), std::string::npos) << group.title;
    for (const OptionRow& row : group.rows) {
      const std::string head = "\n  --" + row.name + (row.is_flag() ? "" : " " + row.placeholder);
      EXPECT_NE(help.find(head), std::string::npos) << head;
      EXPECT_NE(joined.find(row.help), std::string::npos) << row.help;
      if (!row.range.empty()) {
        EXPECT_NE(joined.find("(" + row.range + ")"), std::string::npos) << row.range;
      }
      if (!row.synthetic_default.empty()) {
        EXPECT_NE(joined.find("; synthetic: " + row.synthetic_default + "]"), std::string::npos)
            << row.name;
      }
    }
  }
}

// Without a topic, the options that most runs need; a topic has its group alone.
TEST(Table, HelpHasTopics) {
  const auto count = [](const std::string& text) {
    std::size_t options = 0;
    for (std::size_t at = 0; (at = text.find("\n  --", at)) != std::string::npos; ++at) ++options;
    return options;
  };
  const std::string common = help_text(context()), all = help_text(context(), "all");
  EXPECT_EQ(count(common), 20u);
  EXPECT_LE(std::ranges::count(common, '\n'), 48) << "the first help is one screen";
  EXPECT_NE(common.find("dptrain --help all"), std::string::npos);
  EXPECT_LT(count(all), 80u);
  Options defaults;
  std::size_t sum = 0;
  for (const OptionGroup& group : option_table(context(), defaults)) {
    EXPECT_NE(common.find(group.topic), std::string::npos) << group.topic;
    const std::string one = help_text(context(), group.topic);
    EXPECT_TRUE(one.starts_with(group.title + "\n")) << one;
    sum += count(one);
  }
  EXPECT_EQ(sum, count(all));
  EXPECT_EQ(help_topic({"--epochs", "3"}), std::nullopt);
  EXPECT_EQ(help_topic({"--help"}), "");
  EXPECT_EQ(help_topic({"--help", "--log", "x"}), "");
  EXPECT_EQ(help_topic({"--epochs", "x", "--help", "lr"}), "lr");
  EXPECT_THROW(static_cast<void>(help_text(context(), "lrr")), Error);
}

TEST(Table, HelpIsReadableAt80Columns) {
  std::istringstream lines(help_text(context()) + help_text(context(), "all"));
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 80u) << line;
    EXPECT_FALSE(line.ends_with(' ')) << line;
  }
}

TEST(Table, EveryDefaultIsAValueThatItsOwnRowAccepts) {
  Options options;
  for (const OptionGroup& group : option_table(context(), options)) {
    for (const OptionRow& row : group.rows) {
      for (const std::string& value : {row.get(), row.synthetic_default}) {
        if (!row.is_setting || value.empty()) continue;
        EXPECT_NO_THROW(row.set(value)) << row.name;
        EXPECT_EQ(row.get(), value) << row.name;
      }
    }
  }
}

TEST(Table, ResolvedListsEverySettingInOrder) {
  Words expected, listed;
  Options defaults;
  for (const OptionGroup& group : option_table(context(), defaults)) {
    for (const OptionRow& row : group.rows) {
      if (row.is_setting) expected.push_back(row.name);
    }
  }
  for (const auto& [name, value] : parse({}).resolved()) listed.push_back(name);
  EXPECT_EQ(listed, expected);
}

}  // namespace
}  // namespace dp
