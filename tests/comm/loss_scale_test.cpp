// GradientSync::change_loss_scale: with every codec the exchange delivers what it would have
// delivered with a constant scale.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "comm/gradient_sync.hpp"
#include "kernels/base/random.hpp"

namespace dp {
namespace {

std::vector<TensorSlot> tensors() {
  return {{.offset = 0, .rows = 64, .columns = 40, .name = "a"},
          {.offset = 2560, .rows = 50, .columns = 60, .name = "b"},
          {.offset = 5560, .rows = 1, .columns = 67, .is_1d = true, .name = "c"}};
}
constexpr std::size_t kElements = 5627;
constexpr std::uint64_t kSteps = 24;

std::vector<float> gradient_of(int rank, std::uint64_t step) {
  const CounterRng rng(step, RandomStream::test, static_cast<std::uint64_t>(rank));
  std::vector<float> values(kElements);
  for (std::size_t i = 0; i < kElements; ++i) values[i] = static_cast<float>(normal(rng, i));
  return values;
}

using ScaleOf = float (*)(std::uint64_t step);
float constant(std::uint64_t) { return 1.0f; }
// As scalers do it, and as far as from the first scale to the usual ones.
float powers_of_two(std::uint64_t step) {
  return step < 6 ? 1.0f : step < 12 ? 0x1p-4f : step < 18 ? 0x1p-3f : 0x1p16f;
}
float others(std::uint64_t step) { return step < 8 ? 1.0f : step < 16 ? 0.3f : 70.0f; }

GradientSyncOptions options_of(const std::string& codec, const char* topology) {
  GradientSyncOptions options = {
      .compress = parse_compress(codec),
      .bucket_bytes = 12'000,
      .momentum = codec.find("velocity") != std::string::npos ? std::optional(0.9f) : std::nullopt,
      .reducer = {.topology = topology, .segment_bytes = 4096}};
  if (codec.starts_with("auto")) options.planned_bits = {0.4};
  return options;
}

// What each step delivers, over the scale that it had. A step that some rank cannot make is left
// out.
std::vector<std::vector<float>> delivered(Communicator& comm, const GradientSyncOptions& options,
                                          ScaleOf scale_of, std::uint64_t bad_step = kSteps) {
  std::vector<std::vector<float>> sums;
  std::vector<float> gradient(kElements);
  GradientSync sync(nullptr, gradient, tensors(), options);
  sync.connect(comm);
  sync.begin_epoch(0);
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    const float scale = scale_of(step);
    if (step > 0) {
      sync.change_loss_scale(static_cast<double>(scale) / static_cast<double>(scale_of(step - 1)));
    }
    std::ranges::copy(gradient_of(comm.rank(), step), gradient.begin());
    for (float& value : gradient) value *= scale;
    if (step == bad_step && comm.rank() == comm.size() - 1) {
      gradient[7] = std::numeric_limits<float>::infinity();
    }
    sync.begin_step(step);
    sync.all_final();
    EXPECT_EQ(sync.finish_step().finite, step != bad_step);
    if (step == bad_step) continue;
    sums.push_back(gradient);
    for (float& value : sums.back()) value /= scale;
  }
  return sums;
}

// The largest difference of a step, relative to the norm of what it delivers.
double difference(const std::vector<std::vector<float>>& found,
                  const std::vector<std::vector<float>>& wanted) {
  double most = 0.0;
  for (std::size_t step = 0; step < wanted.size(); ++step) {
    double squares = 0.0, all = 0.0;
    for (std::size_t i = 0; i < kElements; ++i) {
      squares += std::pow(static_cast<double>(found[step][i] - wanted[step][i]), 2);
      all += std::pow(static_cast<double>(wanted[step][i]), 2);
    }
    most = std::max(most, all > 0.0 ? std::sqrt(squares / all) : squares);
  }
  return most;
}

// By how much all steps together deliver too much or too little of what they should.
double excess(const std::vector<std::vector<float>>& found,
              const std::vector<std::vector<float>>& wanted) {
  double along = 0.0, all = 0.0;
  for (std::size_t i = 0; i < kElements; ++i) {
    double of_found = 0.0, of_wanted = 0.0;
    for (std::size_t step = 0; step < wanted.size(); ++step) {
      of_found += static_cast<double>(found[step][i]);
      of_wanted += static_cast<double>(wanted[step][i]);
    }
    along += of_found * of_wanted;
    all += of_wanted * of_wanted;
  }
  return std::abs(along / all - 1.0);
}

// Every codec, and what else keeps something from step to step.
std::vector<std::string> codecs() {
  std::vector<std::string> all = {"ecq:bits=0.35",
                                  "ecq:error=0.5",
                                  "ecq:bits=2,velocity=on",
                                  "ecq:bits=0.35,velocity=masked",
                                  "auto",
                                  "threshold:alpha=0.5",
                                  "threshold:alpha=1.3",
                                  "dgc:ratio=0.05,clip=20",
                                  "topk:ratio=0.05,value=bf16",
                                  "powersgd:rank=2",
                                  "q8:round=stochastic"};
  for (const CodecInfo& codec : codec_list()) all.emplace_back(codec.name);
  return all;
}

TEST(LossScale, NothingChangesInWhatIsDelivered) {
  Communicator comm;
  for (const std::string& codec : codecs()) {
    const GradientSyncOptions options = options_of(codec, "ring");
    const auto wanted = delivered(comm, options, constant);
    const double of_powers = difference(delivered(comm, options, powers_of_two), wanted);
    // fp16 has a fixed grid of small values, and clamps large ones: another scale rounds otherwise.
    if (codec == "fp16") continue;
    EXPECT_EQ(of_powers, 0.0) << codec;
    // With other factors a value in the middle between two codes may get the other one; feedback
    // makes up for it. The grid of bf16 has powers of two.
    if (codec.find("bf16") != std::string::npos) continue;
    // Segments of ecq choose their steps by counts of values, which rounding changes too.
    const double most = has_rate(parse_compress(codec).codec) ? 1e-4 : 1e-5;
    EXPECT_LE(excess(delivered(comm, options, others), wanted), most) << codec;
  }
}

TEST(LossScale, OnEveryTopology) {
  Communicator comm;
  for (const char* topology : {"direct", "tree", "ps", "hierarchical"}) {
    for (const char* codec : {"q4", "topk:ratio=0.05", "ecq:bits=0.35", "dgc:ratio=0.05"}) {
      if (std::string(topology) == "hierarchical" && std::string(codec).starts_with("ecq"))
        continue;
      const GradientSyncOptions options = options_of(codec, topology);
      EXPECT_EQ(
          difference(delivered(comm, options, powers_of_two), delivered(comm, options, constant)),
          0.0)
          << codec << topology;
    }
  }
}

// A scaler is lowered after a step that all ranks skip; what the skipped step put back follows.
TEST(LossScale, AfterAStepThatIsSkipped) {
  Communicator comm;
  for (const char* codec : {"q8", "q4", "topk:ratio=0.05", "ecq:bits=0.35", "powersgd:rank=2",
                            "dgc:ratio=0.05", "auto", "threshold:alpha=0.5"}) {
    const GradientSyncOptions options = options_of(codec, "ring");
    for (const std::uint64_t bad_step : {std::uint64_t{0}, std::uint64_t{5}}) {
      EXPECT_EQ(difference(delivered(comm, options, powers_of_two, bad_step),
                           delivered(comm, options, constant, bad_step)),
                0.0)
          << codec << bad_step;
    }
  }
}

// fp16 delivers the same as long as no scale brings values to its limits.
TEST(LossScale, OfFp16InItsRange) {
  Communicator comm;
  const auto small = [](std::uint64_t step) { return step < 9 ? 1.0f : 0.25f; };
  const GradientSyncOptions options = options_of("fp16", "ring");
  EXPECT_LE(difference(delivered(comm, options, small), delivered(comm, options, constant)), 1e-5);
}

TEST(LossScale, RefusesWhatIsNoScale) {
  Communicator comm;
  std::vector<float> gradient(kElements);
  GradientSync sync(nullptr, gradient, tensors(), options_of("q8", "ring"));
  sync.connect(comm);
  for (const double factor :
       {0.0, -2.0, 1e-60, 1e60, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_THROW(sync.change_loss_scale(factor), Error) << factor;
  }
  EXPECT_EQ(sync.loss_scale(), 1.0);
}

// What fp16 has clamped is counted on the rank that did it, with its place.
TEST(ClampedValues, AreCountedWhereTheyAre) {
  Communicator comm;
  std::vector<float> gradient(kElements);
  for (const char* codec : {"fp16", "fp16:ef=off", "bf16", "q8"}) {
    GradientSync sync(nullptr, gradient, tensors(), options_of(codec, "ring"));
    sync.connect(comm);
    for (std::uint64_t step = 0; step < 2; ++step) {
      std::ranges::fill(gradient, 1.0f);
      if (step == 1) {
        for (const std::size_t place : {3000u, 3001u, 4000u}) gradient[place] = -1e6f;
      }
      sync.begin_step(step);
      sync.all_final();
      const StepVerdict verdict = sync.finish_step();
      EXPECT_TRUE(verdict.finite);
      std::vector<std::uint64_t> counts(static_cast<std::size_t>(comm.size()));
      sync.reducer().run([&](Communicator& c) { counts = c.all_gather(verdict.clamped.count); });
      std::uint64_t all = 0;
      for (const std::uint64_t count : counts) all += count;
      const bool is_clamped =
          step == 1 && std::string(codec).starts_with("fp16") && comm.size() > 1;
      // Of each value: the partial sums on the way to its owner, and the total.
      EXPECT_EQ(all, is_clamped ? 3u * static_cast<std::uint64_t>(comm.size()) : 0u)
          << codec << step;
      if (verdict.clamped.count > 0) {
        EXPECT_TRUE(verdict.clamped.first == 3000 || verdict.clamped.first == 4000 ||
                    verdict.clamped.first == 3001)
            << verdict.clamped.first;
      }
    }
  }
}

}  // namespace
}  // namespace dp
