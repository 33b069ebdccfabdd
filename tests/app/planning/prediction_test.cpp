// What a prediction is made of, beside what an exchange really does.
#include "app/planning/prediction.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "app/planning/check_network.hpp"
#include "app/planning/plan_choices.hpp"
#include "comm/gradient_sync.hpp"
#include "comm/mpi/communicator.hpp"
#include "kernels/base/random.hpp"
#include "tests/comm/tensor_slots.hpp"
#include "tests/support/skipped.hpp"

namespace dp {
namespace {

constexpr std::size_t kRows = 512, kColumns = 500, kSmall = 300, kSegmentBytes = 16384;

std::vector<TensorSlot> tensors() {
  return test::two_matrices_and_a_vector(kRows, kColumns, kSmall);
}

// As the mean over ranks, from the codec's bits a value.
TEST(Prediction, TheBytesAreThoseThatAreSent) {
  Communicator comm;
  DP_NEEDS_RANKS(comm, 2);
  const auto ranks = static_cast<std::size_t>(comm.size());
  for (const char* codec : {"q8", "ecq:bits=0.5"}) {
    for (const char* topology : {"direct", "ring", "tree"}) {
      SCOPED_TRACE(fmt::format("{} {}", codec, topology));
      std::vector<float> gradient(2 * kRows * kColumns + kSmall);
      GradientSync sync(nullptr, gradient, tensors(),
                        {.compress = parse_compress(codec),
                         .bucket_bytes = kRows * kColumns * sizeof(float),
                         .reducer = {.topology = topology, .segment_bytes = kSegmentBytes}});
      sync.connect(comm);
      const CounterRng rng(static_cast<std::uint64_t>(comm.rank()), RandomStream::test);
      double sent = 0.0;
      for (std::uint64_t step = 0; step < 3; ++step) {
        sync.begin_step(step);
        for (std::size_t i = 0; i < gradient.size(); ++i) {
          gradient[i] = static_cast<float>(normal(rng, i));
        }
        sync.all_final();
        EXPECT_TRUE(sync.finish_step().finite);
        sent = static_cast<double>(sync.reducer().take_times().total.sent_bytes);
      }
      sent = sync.reducer().run([&](Communicator& c) { return c.all_sum(sent) / c.size(); });

      StepSetup setup;
      for (const Bucket& bucket : sync.buckets()) {
        // Other codecs' payloads have a fixed size.
        const CodecFigures figures = {.payload_bytes = sync.rate_report().mean_bits() / 8};
        setup.buckets.push_back(simulated_bucket(bucket, figures, {}, kSegmentBytes));
      }
      setup.topology = &find_topology(topology);
      setup.ports = NetworkPorts::alike(ranks, 1e6, 0.0);
      setup.hosts.resize(ranks);
      std::iota(setup.hosts.begin(), setup.hosts.end(), 0);
      const ComputeTimes times = {.ready_s = std::vector(setup.buckets.size(), 0.0)};
      const std::vector<std::vector<ComputeTimes>> steps(1, std::vector(ranks, times));
      EXPECT_NEAR(simulate_steps(setup, steps).sent_bytes, sent, 1e-6 * sent);
    }
  }
}

// A machine that computes for 1 s, with codecs that take no time.
Calibration calibration_of(std::size_t ranks) {
  Calibration calibration;
  calibration.tensors = tensors();
  const RehearsedStep step = {.ready_s = {0.4, 0.8, 1.0}, .backward_end_s = 1.0};
  calibration.steps = {std::vector(ranks, step)};
  for (const char* codec : {"none", "q4", "q8", "bf16", "q8:block=256", "ecq:bits=0.1",
                            "ecq:bits=0.4", "ecq:bits=1.5", "ecq:bits=6"}) {
    calibration.codecs[parse_codec_spec(codec)] = {.payload_bytes = 1.0};
  }
  return calibration;
}

StepChoice choice_of(std::size_t ranks, const std::string& codec, double bytes_per_s) {
  StepChoice choice;
  choice.buckets = plan_buckets(tensors(), {.bucket_bytes = kRows * kColumns * sizeof(float),
                                            .codec = parse_codec_spec(codec)});
  choice.topology = "direct";
  choice.ports = NetworkPorts::alike(ranks, bytes_per_s, 0.0);
  choice.hosts.resize(ranks);
  std::iota(choice.hosts.begin(), choice.hosts.end(), 0);
  return choice;
}

// The second half of the gradient is 8 times larger. One step for all values gives it more bytes.
TEST(Prediction, LargeGradientsHaveMoreOfTheBytes) {
  constexpr std::size_t kFloats = 2 * kRows * kColumns;
  const CounterRng rng(1, RandomStream::test);
  std::vector<float> gradient(kFloats + kSmall);
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    gradient[i] = static_cast<float>((i < kFloats / 2 ? 1.0 : 8.0) * normal(rng, i));
  }
  const auto measure = [&](const char* codec) {
    return measure_byte_shares(parse_codec_spec(codec), gradient, tensors());
  };
  const ByteShares fine = measure("ecq:bits=3"), coarse = measure("ecq:bits=0.4");
  for (const ByteShares& shares : {fine, coarse}) {
    EXPECT_NEAR(shares.mean(0, kFloats), 1.0, 1e-9);
    EXPECT_NEAR(shares.mean(kFloats / 4, kFloats / 2), 1.0, 0.05);
  }
  // The entropy of normal values at steps of 1.6 and 0.2 of their deviation is 1.5 and 4.4 bits.
  EXPECT_NEAR(fine.mean(0, kFloats / 2), 0.5, 0.05);
  // At a coarse step all small values are zeros, but what they leave adds up.
  EXPECT_LT(measure("ecq:bits=0.4,ef=off").mean(0, kFloats / 2), 0.01);
  EXPECT_GT(coarse.mean(0, kFloats / 2), 0.1);
  EXPECT_LT(coarse.mean(0, kFloats / 2), fine.mean(0, kFloats / 2));
  EXPECT_NEAR(ByteShares::between(coarse, fine, 0.25).mean(0, 1),
              0.75 * coarse.mean(0, 1) + 0.25 * fine.mean(0, 1), 1e-9);
  EXPECT_EQ(ByteShares().mean(7, 3), 1.0);
  // Nothing can be said of zeros, nor of fewer values than a sample has.
  std::ranges::fill(gradient, 0.0f);
  EXPECT_EQ(measure("ecq:bits=3").mean(0, 9), 1.0);
  gradient[kFloats / 2] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(measure("ecq:bits=3").mean(0, 9), 1.0);
  gradient.assign(100, 1.0f);
  EXPECT_EQ(measure_byte_shares(parse_codec_spec("ecq:bits=3"), gradient, {}).mean(0, 9), 1.0);
}

// The owner of large gradients has a port that is busy for longer than the others'.
TEST(Prediction, UnevenBytesMakeAStepLonger) {
  const StepChoice choice = choice_of(4, "ecq:bits=1.5", 1e5);
  Calibration calibration = calibration_of(4);
  const Prediction even = predict_step(calibration, choice);
  constexpr std::size_t kFloats = 2 * kRows * kColumns;
  // The last rank owns the fourth chunk of the first bucket and the third one of the second, which
  // have two fifths of their bytes. The second bucket takes three times as many as the first.
  const auto set_shares = [&](const char* codec, const std::vector<double>& bytes) {
    calibration.byte_shares[parse_codec_spec(codec)] = ByteShares(bytes, kFloats);
  };
  const auto set_all = [&](const std::vector<double>& bytes) {
    for (const char* codec : {"ecq:bits=0.1", "ecq:bits=0.4", "ecq:bits=1.5", "ecq:bits=6"}) {
      set_shares(codec, bytes);
    }
  };
  set_all({1, 1, 1, 2, 3, 3, 6, 3});
  const Prediction uneven = predict_step(calibration, choice);
  EXPECT_NEAR(uneven.step.sent_bytes, even.step.sent_bytes, 1e-6 * even.step.sent_bytes);
  // A rank sends its part of each other chunk and three times its own chunk: the last one 2 + 2 + 2
  // + 3 x 4, and in the mean 6 times 2.5.
  EXPECT_NEAR(uneven.step.most_sent_bytes, 18.0 / 15.0 * even.step.most_sent_bytes,
              0.01 * even.step.most_sent_bytes);
  EXPECT_GT(uneven.step.exposed_s, 1.15 * even.step.exposed_s);
  // The first rank owns the fourth chunk of the second bucket: 1 + 1 + 2 + 3 x 1 and 3 x 3 + 3 x 6.
  set_all({1, 1, 1, 2, 3, 3, 3, 6});
  EXPECT_NEAR(predict_step(calibration, choice).step.most_sent_bytes,
              17.0 / 15.0 * even.step.most_sent_bytes, 0.01 * even.step.most_sent_bytes);

  // Between two measured numbers of bits the shares are, too.
  StepChoice fixed = choice;
  fixed.limits = RateLimits{.least_bits = 0.5, .most_bits = 0.5, .allows_dense = false};
  set_shares("ecq:bits=0.4", {1, 1, 1, 1, 1, 1, 1, 1});
  const double near = predict_step(calibration, fixed).step.most_sent_bytes;
  fixed.limits = RateLimits{.least_bits = 1.2, .most_bits = 1.2, .allows_dense = false};
  const double far = predict_step(calibration, fixed).step.most_sent_bytes;
  EXPECT_GT(near, 1.01 * (0.5 / 1.5) * even.step.most_sent_bytes);
  EXPECT_LT(near / 0.5, far / 1.2);
}

// The last of four ranks computes four times as long for as many images.
Calibration uneven_calibration() {
  Calibration calibration = calibration_of(4);
  calibration.steps[0][3] = {.ready_s = {1.6, 3.2, 4.0}, .backward_end_s = 4.0};
  return calibration;
}

TEST(Prediction, SharesMakeTheSlowestRankQuicker) {
  const Calibration calibration = uneven_calibration();
  const ShareFacts facts = {.machines = {0, 1, 2, 3}, .most_images = {100, 100, 100, 100}};
  Options options;
  const auto images = planned_images(options, calibration, facts, 4, 128, 1.0);
  ASSERT_EQ(images.size(), 4u);
  EXPECT_EQ(std::accumulate(images.begin(), images.end(), std::size_t{0}), 128u);
  EXPECT_LE(images[0] - images[2], 1u);
  EXPECT_GT(images[0], 3 * images[3]);

  StepChoice choice = choice_of(4, "none", 1e9);
  EXPECT_NEAR(predict_step(calibration, choice).step.step_s, 4.0, 0.2);
  for (const std::size_t each : images) {
    choice.image_factors.push_back(static_cast<double>(each) / 32.0);
  }
  EXPECT_NEAR(predict_step(calibration, choice).step.step_s, 16.0 / 13.0, 0.1);

  // Twice as many ranks are these, by turns; and what --shares says is taken as it is.
  const auto twice = planned_images(options, calibration, facts, 8, 256, 1.0);
  ASSERT_EQ(twice.size(), 8u);
  EXPECT_LE(twice[0] - twice[4], 1u);
  EXPECT_LE(twice[3] - twice[7], 1u);
  options.shares = {.kind = ShareChoice::Kind::weights, .weights = {2, 1, 1, 0}};
  EXPECT_EQ(planned_images(options, calibration, facts, 4, 128, 1.0),
            (std::vector<std::size_t>{64, 32, 32, 0}));
  EXPECT_TRUE(planned_images(options, calibration, facts, 3, 96, 1.0).empty());
  options.shares = ShareChoice::even();
  EXPECT_TRUE(planned_images(options, calibration, facts, 4, 128, 1.0).empty());
  options.shares = {};
  EXPECT_TRUE(
      planned_images(options, calibration, {{0, 0, 0, 0}, {9, 9, 9, 9}}, 4, 128, 1.0).empty());
  EXPECT_TRUE(planned_images(options, calibration_of(4), facts, 4, 128, 1.0).empty());
}

// Rank 1 computes for 2 s, rank 0 for 1 s.
TEST(Prediction, TheSlowestRankDecidesInRounds) {
  Calibration calibration = calibration_of(2);
  calibration.steps[0][1] = {.ready_s = {0.8, 1.6, 2.0}, .backward_end_s = 2.0};
  StepChoice choice = choice_of(2, "none", 1e12);
  EXPECT_NEAR(predict_step(calibration, choice).step.step_s, 2.0, 0.01);
  choice.round_steps = 2.0;
  choice.round_delay = 1.0;
  const StepForecast in_rounds = predict_step(calibration, choice).step;
  EXPECT_NEAR(in_rounds.step_s, 2.0, 0.01);
  EXPECT_EQ(in_rounds.exposed_s, 0.0);
}

// With the slow link's rank as no owner, more bits hide.
TEST(Prediction, OwnersByLinksLetMoreBitsHide) {
  StepChoice choice = choice_of(4, "ecq:bits=0.35", 1e6);
  choice.ports.send_bytes_per_s[3] = choice.ports.receive_bytes_per_s[3] = 1e5;
  const double alike = hidden_budget(calibration_of(4), choice).bits_per_value;
  choice.owner_weights = {1000, 1000, 1000, 0};
  EXPECT_NEAR(hidden_budget(calibration_of(4), choice).bits_per_value, 1.5 * alike, 0.05 * alike);
  choice.topology = "ring";
  const double ring = hidden_budget(calibration_of(4), choice).bits_per_value;
  choice.owner_weights = {};
  EXPECT_EQ(hidden_budget(calibration_of(4), choice).bits_per_value, ring);
}

// What is excluded takes no bits, and the others keep to theirs.
TEST(Prediction, SharesAreOfTheValuesThatAreCoded) {
  StepChoice choice = choice_of(4, "ecq:bits=1.5", 1e5);
  choice.buckets.front().codec = CodecSpec::exact();
  Calibration calibration = calibration_of(4);
  const double even = predict_step(calibration, choice).step.sent_bytes;
  for (const char* codec : {"ecq:bits=0.1", "ecq:bits=0.4", "ecq:bits=1.5", "ecq:bits=6"}) {
    calibration.byte_shares[parse_codec_spec(codec)] =
        ByteShares(std::vector<double>{9, 1}, 2 * kRows * kColumns);
  }
  EXPECT_NEAR(predict_step(calibration, choice).step.sent_bytes, even, 1e-6 * even);
}

// With auto a step is predicted at the rate that hides, within its limits, and in a dense form
// where that hides, too.
TEST(Prediction, AutoSendsWhatHides) {
  const auto predicted = [](double bytes_per_s, const char* compress = "auto") {
    const CompressChoice parsed = parse_compress(compress);
    StepChoice choice = choice_of(4, parsed.codec.text(), bytes_per_s);
    choice.limits = parsed.limits;
    return predict_step(calibration_of(4), choice);
  };
  EXPECT_EQ(predicted(1e3).bits, 0.1);
  EXPECT_EQ(predicted(1e3, "auto:min=0.02").bits, 0.02);
  const Prediction middle = predicted(1.6e5);
  EXPECT_GT(middle.bits, 0.1);
  EXPECT_LT(middle.bits, 1.0);
  EXPECT_LT(middle.step.exposed_s, 0.05 * middle.step.step_s);
  EXPECT_GT(predicted(1e3).step.exposed_s, 0.1);
  const CodecSpec codec = parse_codec_spec("ecq:bits=0.35");
  EXPECT_EQ(codec_at(codec, predicted(1.6e6).bits), parse_codec_spec("q4"));
  EXPECT_EQ(codec_at(codec, predicted(1e9).bits), CodecSpec::exact());
  EXPECT_EQ(predicted(1e9, "auto:max=2").bits, 2.0);
}

// Two ranks on host 0, and a slow host 2: the others have their faster links' rates.
TEST(Prediction, PortsAreThoseOfTheirFastestLinks) {
  const LinkProbe ring = {.bytes_per_s = 1e6, .latency_s = 1e-3, .fastest_bytes_per_s = 1e7};
  EXPECT_TRUE(ring.has_faster_links());
  const auto pair = [](int first, int second, double to_first, double to_second) {
    return HostPair{.first_rank = first,
                    .second_rank = second,
                    .to_first = {.bytes_per_s = to_first},
                    .to_second = {.bytes_per_s = to_second}};
  };
  const std::vector<HostPair> pairs = {pair(0, 2, 1e7, 9e6), pair(0, 3, 1.1e6, 1e6),
                                       pair(2, 3, 1e6, 1.2e6)};
  const NetworkPorts ports = ports_of(ring, pairs, std::vector<int>{0, 0, 1, 2});
  EXPECT_EQ(ports.send_bytes_per_s, (std::vector<double>{9e6, 1e7, 1e6}));
  EXPECT_EQ(ports.receive_bytes_per_s, (std::vector<double>{1e7, 9e6, 1e6}));
  const NetworkPorts one = ports_of(ring, {}, std::vector<int>{0, 0});
  EXPECT_EQ(one.inside_bytes_per_s, 1e6);
}

// A tenth of the link on one host is what counts.
TEST(Prediction, TheSlowestPortDecidesWhatHides) {
  StepChoice choice = choice_of(4, "ecq:bits=0.35", 1e6);
  const double alike = hidden_budget(calibration_of(4), choice).bits_per_value;
  choice.ports.receive_bytes_per_s[2] = 1e5;
  const double slow = hidden_budget(calibration_of(4), choice).bits_per_value;
  choice.ports = NetworkPorts::alike(4, 1e5, 0.0);
  EXPECT_EQ(slow, hidden_budget(calibration_of(4), choice).bits_per_value);
  EXPECT_LT(slow, 0.2 * alike);
}

// In the mean of the run as many bytes are sent as with the same bits throughout; where the first
// steps wait and the others do not, a step takes longer in the mean.
TEST(Prediction, BitsAreSpentByThePlanOfARun) {
  const auto predicted = [](const char* codec, double bytes_per_s) {
    return predict_step(calibration_of(4), choice_of(4, codec, bytes_per_s));
  };
  const Prediction spent = predicted("ecq:bits=0.35", 1.1e5);
  EXPECT_EQ(spent.bits, 0.35);
  const double values = 2.0 * kRows * kColumns,
               few = predicted("ecq:bits=0.15", 1e9).step.sent_bytes;
  EXPECT_NEAR(spent.step.sent_bytes - few, 1.5 * values * 0.2 / 8, 0.01 * spent.step.sent_bytes);
  EXPECT_GT(spent.step.exposed_s, 0.03);
  StepChoice constant = choice_of(4, "ecq:bits=0.35", 1.1e5);
  constant.limits = RateLimits{.least_bits = 0.35, .most_bits = 0.35, .allows_dense = false};
  EXPECT_GT(spent.step.exposed_s, 2.0 * predict_step(calibration_of(4), constant).step.exposed_s);
  // Codecs without bits have no rate.
  EXPECT_TRUE(std::isnan(predicted("q8", 1e6).bits));
}

}  // namespace
}  // namespace dp
