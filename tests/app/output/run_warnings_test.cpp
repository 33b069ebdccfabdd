// What a run warns of, without ranks.
#include "app/output/run_warnings.hpp"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace dp {
namespace {

struct Warnings final : RunSink {
  void warn(std::string_view text) override { lines.emplace_back(text); }
  std::vector<std::string> take() { return std::exchange(lines, {}); }
  std::vector<std::string> lines;
};

std::vector<Bucket> two_buckets() {
  std::vector<Bucket> buckets(2);
  buckets[0].tensors = {{.rows = 10, .columns = 2, .name = "conv.weight"},
                        {.rows = 10, .columns = 1, .name = "linear.weight"}};
  buckets[1].tensors = {{.rows = 10, .columns = 1, .is_1d = true}};
  return buckets;
}

// By the names of buckets.
TEST(RunWarnings, NameWhatALinkAndAResidualDoToTheRate) {
  const std::vector<Bucket> buckets = two_buckets();
  RateReport rate;
  const RateLimits limits;
  EXPECT_EQ(floor_clash(rate, limits, buckets), "");  // nothing is known
  rate.link_bytes_per_s = 1e5;
  rate.wished_bits = rate.hidden_bits = 0.2;
  EXPECT_EQ(floor_clash(rate, limits, buckets), "");
  rate.hidden_bits = 0.03;
  rate.wished_bits = RateWish::of_bits(0.03).bits();  // as ranks tell each other
  rate.binding_bucket = 0;
  EXPECT_EQ(
      floor_clash(rate, limits, buckets),
      "rank 0's link carries 100 kB/s, enough to hide 0.03 bits per value behind the backward "
      "pass; from "
      "bucket 0 (conv.weight to linear.weight) on there is no time left. The run sends the "
      "minimum, min=0.1, and training waits for the rest: try fewer exchanges (--sync-every 4, or "
      "--sync-every auto), a larger --batch-size or --accumulate, fewer hosts, or --compress "
      "auto:min=0.05 at the price of accuracy");
  const ExchangeWindow round = {.when = "in 3 % of a round's time",
                                .is_by_bucket = false,
                                .remedy = "longer rounds or a delay= (--sync-every)",
                                .may_send_less = false};
  EXPECT_EQ(
      floor_clash(rate, limits, buckets, round),
      "rank 0's link carries 100 kB/s, enough to hide 0.03 bits per value in 3 % of a round's "
      "time. The run sends the minimum, min=0.1, and training waits for the rest: try longer "
      "rounds "
      "or a delay= (--sync-every)");
  // Another rank's link is the slowest; rank 0 does not know where it gets late.
  rate.hidden_bits = 1.0;
  EXPECT_EQ(floor_clash(rate, limits, buckets),
            "the slowest link of all ranks is enough to hide 0.03 bits per value behind the "
            "backward pass (rank 0's link "
            "carries 100 kB/s, enough to hide 1). The run sends the minimum, min=0.1, and training "
            "waits for "
            "the rest: try fewer exchanges (--sync-every 4, or --sync-every auto), a larger "
            "--batch-size or --accumulate, fewer hosts, or --compress auto:min=0.05 at the price "
            "of accuracy");
  EXPECT_EQ(guard_at_work(rate, buckets), "");
  rate.guard_factor = 1.0;
  EXPECT_EQ(guard_at_work(rate, buckets), "");
  rate.guard_factor = 1.0905;
  rate.residual_growth = 9.5;
  rate.most_growth = 8.0;
  rate.grown_bucket = 1;
  EXPECT_EQ(guard_at_work(rate, buckets),
            "the residual of some rank is too large, more than 8 times a step's values (growth= of "
            "ecq; on rank 0 9.5 times, most in bucket 1): 1.1 times the planned bits are sent "
            "until it shrinks");
}

class RunWarningsTest : public testing::Test {
 protected:
  RunWarningsTest() {
    options_.compress = parse_compress("auto");
    run_.options = &options_;
    run_.data = &data_;
    run_.buckets = two_buckets();
    run_.rate_limits = RateLimits();
  }
  Options options_;
  const Dataset data_ = {
      .train = std::make_unique<const ImageSet>(
          ImageFacts{
              .name = "none", .class_names = std::vector<std::string>(10, "class"), .shape = {}},
          std::vector<std::uint8_t>(), std::vector<std::int32_t>()),
      .test = nullptr};
  RunDescription run_ = {};
  Warnings warned_;
};

TEST_F(RunWarningsTest, OfTheRateComeOnce) {
  const RateLimits limits;
  RunWarnings warnings(run_, warned_);
  EpochTally now = {.epoch = 1, .has_exchanged = true};
  now.rate.wished_bits = now.rate.hidden_bits = 0.03;
  now.rate.guard_factor = 1.5;
  const auto after = [&](int steps) {
    for (int i = 0; i < steps; ++i) warnings.note_rate(now);
    return warned_.take();
  };
  const std::string guard = "epoch 2: " + guard_at_work(now.rate, run_.buckets);
  const std::string clash = "epoch 2: " + floor_clash(now.rate, limits, run_.buckets);
  EXPECT_EQ(after(4), std::vector{guard});
  // A link that was taken to be slow for some steps is no reason for a warning.
  now.rate.wished_bits = 1.0;
  EXPECT_EQ(after(1), std::vector<std::string>{});
  now.rate.wished_bits = 0.03;
  EXPECT_EQ(after(9), std::vector<std::string>{});
  EXPECT_EQ(after(20), std::vector{clash});
}

TEST_F(RunWarningsTest, OfALossComeOnce) {
  RunWarnings warnings(run_, warned_);
  for (const double loss : {2.3, 1.0, 1.9, 2.1, 9.0}) warnings.note_loss({.train_loss = loss});
  EXPECT_EQ(warned_.take(),
            std::vector<std::string>{
                "epoch 1: the training loss is 2.1, after 1 in an earlier epoch: try a smaller "
                "--lr, --warmup-epochs 1 or --clip-norm 1, or a finer --compress"});
  options_.compress = {};
  RunWarnings(run_, warned_).note_loss({.epoch = 3, .train_loss = 5.0});
  EXPECT_EQ(warned_.take(),
            std::vector<std::string>{"epoch 4: the training loss is 5, far above the loss of "
                                     "random guessing (2.3): try a smaller "
                                     "--lr, --warmup-epochs 1 or --clip-norm 1"});
}

TEST_F(RunWarningsTest, OfSkippedStepsAdviseOnce) {
  RunWarnings warnings(run_, warned_);
  warnings.note_skipped_step(3, "rank 1", true);
  warnings.note_skipped_step(4, "rank 0", false);
  warnings.note_skipped_by_others(1, std::vector<std::int64_t>{7, 1, 0, 2});
  EXPECT_EQ(warned_.take(),
            (std::vector<std::string>{
                "step 3: the gradient is not finite on rank 1; all ranks skip this step; if it "
                "happens again, try a smaller --lr, --clip-norm or --warmup-epochs",
                "step 4: the gradient is not finite on rank 0; this rank skips the step",
                "epoch 2: rank 1 skipped 1 step, because the gradient was not finite",
                "epoch 2: rank 3 skipped 2 steps, because the gradient was not finite"}));
}

TEST_F(RunWarningsTest, NameEachImageOnceAndTheFirstFive) {
  RunWarnings warnings(run_, warned_);
  warnings.note_images({"a", "b", "c"});
  EXPECT_EQ(warned_.take(), (std::vector<std::string>{"a", "b", "c"}));
  warnings.note_images({"b", "c", "d", "e", "f", "g"});
  EXPECT_EQ(warned_.take(),
            (std::vector<std::string>{"d", "e",
                                      "2 more images cannot be decoded; the next images of their "
                                      "classes replace them"}));
  warnings.warn_once("line");
  warnings.warn_once("line");
  EXPECT_EQ(warned_.take(), std::vector<std::string>{"line"});
}

}  // namespace
}  // namespace dp
