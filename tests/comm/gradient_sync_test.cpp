// GradientSync: tensors in any order, overlap, exact tensors, the warm-up, and the ways of a GPU.
// What the exchange itself does is tested in reducer_test.cpp and below.
#include "comm/gradient_sync.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include "comm/replica_hash.hpp"
#include "kernels/base/random.hpp"
#include "tests/codecs/device_memory.hpp"
#include "tests/support/skipped.hpp"
#include "tests/support/state_list.hpp"
#include "tests/support/test_device.hpp"

namespace dp {
namespace {

using test::on_gpu;
using testing_support::DeviceArray;

// Four buckets: the first two convolutions, the third, linear.weight, and both one-dimensional.
enum Tensor : std::size_t { conv1, conv2, conv3, linear, gamma, beta, kTensors };
constexpr std::size_t kBucketBytes = 30'000;
std::vector<TensorSlot> tensors() {
  std::vector<TensorSlot> slots = {{.rows = 64, .columns = 80, .name = "conv1.weight"},
                                   {.rows = 64, .columns = 96, .name = "conv2.weight"},
                                   {.rows = 80, .columns = 96, .name = "conv3.weight"},
                                   {.rows = 10, .columns = 500, .name = "linear.weight"},
                                   {.rows = 1, .columns = 67, .is_1d = true, .name = "bn.weight"},
                                   {.rows = 1, .columns = 67, .is_1d = true, .name = "bn.bias"}};
  std::size_t offset = 0;
  for (TensorSlot& slot : slots) {
    slot.offset = offset;
    offset += slot.elements();
  }
  return slots;
}
const std::size_t kElements = tensors().back().offset + tensors().back().elements();

std::vector<std::pair<std::string, CodecSpec>> in_fp32(const std::vector<std::string>& names) {
  std::vector<std::pair<std::string, CodecSpec>> codecs;
  for (const std::string& name : names) codecs.emplace_back(name, CodecSpec::exact());
  return codecs;
}

GradientSyncOptions options_of(const std::string& compress, const std::string& topology = "ring") {
  return {.compress = parse_compress(compress),
          .tensor_codecs = in_fp32({"linear*"}),  // so that it has a bucket of its own
          .bucket_bytes = kBucketBytes,
          .reducer = {.topology = topology, .segment_bytes = 4096, .buckets_in_flight = 2}};
}

// Normal values, or whole numbers, whose sums are exact in any order.
std::vector<float> gradient_of(int rank, std::uint64_t step, bool is_whole = false) {
  const CounterRng rng(step, RandomStream::test, static_cast<std::uint64_t>(rank));
  std::vector<float> values(kElements);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = is_whole ? static_cast<float>(static_cast<int>(rng.below(201, i)) - 100)
                         : static_cast<float>(normal(rng, i));
  }
  return values;
}
std::vector<float> whole_sums(int ranks, std::uint64_t step) {
  std::vector<float> sums(kElements);
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<float> part = gradient_of(rank, step, true);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += part[i];
  }
  return sums;
}

using Order = std::vector<std::size_t>;
// As backward has it: the last matrices are not last, and the rest comes somewhere between.
Order usual_order(int, std::uint64_t) { return {conv1, gamma, conv2, conv3, beta, linear}; }
// Another one on every rank and in every step.
Order shuffled(int rank, std::uint64_t step) {
  Order order(kTensors);
  std::iota(order.begin(), order.end(), 0);
  const CounterRng rng(step, RandomStream::test, 77, static_cast<std::uint64_t>(rank));
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.below(i, i)]);
  return order;
}

// What a run leaves behind.
struct Outcome {
  std::vector<std::vector<float>> sums;  // by step
  std::vector<float> residual;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

constexpr std::uint64_t kSteps = 4;

// Whole steps on host memory, each tensor written just before it is reported.
template <class OrderOf>
Outcome run_on_host(Communicator& comm, const GradientSyncOptions& options, OrderOf order_of,
                    bool is_whole = false) {
  Outcome outcome;
  const std::vector<TensorSlot> slots = tensors();
  std::vector<float> gradient(kElements);
  GradientSync sync(nullptr, gradient, slots, options);
  sync.connect(comm);
  sync.begin_epoch(0);
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    const std::vector<float> own = gradient_of(comm.rank(), step, is_whole);
    sync.begin_step(step);
    for (const std::size_t t : order_of(comm.rank(), step)) {
      std::copy_n(own.data() + slots[t].offset, slots[t].elements(),
                  gradient.data() + slots[t].offset);
      sync.tensor_final(t);
    }
    EXPECT_TRUE(sync.finish_step().finite);
    outcome.sums.push_back(gradient);
    sync.reducer().run([&](Communicator& c) { static_cast<void>(agree_on_hash(c, gradient)); });
  }
  const std::span<const float> residual = sync.reducer().residual();
  outcome.residual.assign(residual.begin(), residual.end());
  return outcome;
}

TEST(GradientSync, SumsTensorsInWhateverOrderTheyAreReported) {
  Communicator comm;
  const Outcome exact = run_on_host(comm, options_of("none"), shuffled, true);
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    EXPECT_EQ(exact.sums[step], whole_sums(comm.size(), step)) << "step " << step;
  }
  for (const char* codec : {"q4", "topk:ratio=0.05", "dgc:ratio=0.05", "powersgd:rank=2"}) {
    EXPECT_TRUE(run_on_host(comm, options_of(codec), shuffled) ==
                run_on_host(comm, options_of(codec), usual_order))
        << codec;
  }
}

TEST(GradientSync, OverlapChangesNoBit) {
  Communicator comm;
  for (const char* topology : {"ring", "direct"}) {
    for (const char* codec : {"none", "q8", "q8:round=stochastic", "dgc:ratio=0.05"}) {
      GradientSyncOptions options = options_of(codec, topology);
      const Outcome overlapped = run_on_host(comm, options, usual_order);
      options.overlap = false;
      EXPECT_TRUE(run_on_host(comm, options, usual_order) == overlapped) << codec << topology;
      EXPECT_TRUE(run_on_host(comm, options, shuffled) == overlapped) << codec << topology;
    }
  }
}

TEST(GradientSync, ThreadsOfTheCodecChangeNoBit) {
  Communicator comm;
  for (const char* codec : {"ecq:bits=0.5,velocity=on", "ecq:bits=2", "q4"}) {
    GradientSyncOptions options = options_of(codec, "direct");
    options.momentum = 0.9f;
    options.reducer.segment_bytes = 1024;
    options.reducer.codec_threads = 1;
    const Outcome alone = run_on_host(comm, options, usual_order);
    options.reducer.codec_threads = 4;
    EXPECT_EQ(run_on_host(comm, options, usual_order), alone) << codec;
  }
}

// Without overlap nothing leaves before the last tensor: what is written late is still sent.
TEST(GradientSync, WithoutOverlapNothingLeavesEarly) {
  Communicator comm;
  GradientSyncOptions options = options_of("none");
  options.overlap = false;
  std::vector<float> gradient(kElements);
  GradientSync sync(nullptr, gradient, tensors(), options);
  sync.connect(comm);
  sync.begin_step(0);
  for (std::size_t t = 0; t < linear; ++t) sync.tensor_final(t);
  sync.tensor_final(gamma);
  sync.tensor_final(beta);
  std::ranges::copy(gradient_of(comm.rank(), 0, true), gradient.begin());
  sync.tensor_final(linear);
  EXPECT_TRUE(sync.finish_step().finite);
  EXPECT_EQ(gradient, whole_sums(comm.size(), 0));
}

TEST(GradientSync, TensorsNamedByAPatternAreExact) {
  Communicator comm;
  GradientSyncOptions options = options_of("q4");
  options.tensor_codecs = in_fp32({"conv?.weight", "nothing*", "linear.weight"});
  std::vector<float> gradient(kElements);
  EXPECT_THROW(GradientSync(nullptr, gradient, tensors(), options), Error);
  options.tensor_codecs = in_fp32({"conv[12].weight"});
  GradientSync sync(nullptr, gradient, tensors(), options);
  ASSERT_EQ(sync.buckets().size(), 4u);
  EXPECT_TRUE(sync.buckets()[0].codec.is_exact());
  EXPECT_EQ(sync.buckets()[0].why, "excluded by name");
  EXPECT_EQ(sync.buckets()[1].codec.name, "q4");
  EXPECT_EQ(sync.buckets()[3].why, "one-dimensional");

  sync.connect(comm);
  sync.begin_step(0);
  std::ranges::copy(gradient_of(comm.rank(), 0, true), gradient.begin());
  sync.all_final();
  EXPECT_TRUE(sync.finish_step().finite);
  const std::vector<float> want = whole_sums(comm.size(), 0);
  const std::vector<TensorSlot> slots = tensors();
  for (std::size_t t = 0; t < kTensors; ++t) {
    const bool is_exact = std::equal(gradient.data() + slots[t].offset,
                                     gradient.data() + slots[t].offset + slots[t].elements(),
                                     want.data() + slots[t].offset);
    const bool is_encoded = (t == conv3 || t == linear) && comm.size() > 1;
    EXPECT_EQ(is_exact, !is_encoded) << slots[t].name;
  }
}

TEST(GradientSync, TensorsHaveCodecsOfTheirOwn) {
  GradientSyncOptions options = options_of("ecq:bits=0.5");
  std::vector<float> gradient(kElements);
  options.tensor_codecs = {{"conv*", parse_codec_spec("q8")},
                           {"conv2*", parse_codec_spec("q4")},
                           {"bn.bias", CodecSpec::exact()}};
  const GradientSync sync(nullptr, gradient, tensors(), options);
  std::map<std::string, std::string> found;
  for (const Bucket& bucket : sync.buckets()) {
    for (const TensorSlot& tensor : bucket.tensors) found[tensor.name] = bucket.codec.name;
  }
  EXPECT_EQ(found, (std::map<std::string, std::string>{{"conv1.weight", "q8"},
                                                       {"conv2.weight", "q4"},
                                                       {"conv3.weight", "q8"},
                                                       {"linear.weight", "ecq"},
                                                       {"bn.weight", "q8"},
                                                       {"bn.bias", "none"}}));
  EXPECT_EQ(sync.buckets()[0].why, "chosen by name");
  for (const char* codec : {"ecq", "ecq:error=0.1", "dgc"}) {
    options.tensor_codecs = {{"conv*", parse_codec_spec(codec)}};
    try {
      const GradientSync refused(nullptr, gradient, tensors(), options);
      ADD_FAILURE() << codec;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      EXPECT_THAT(error.what(), testing::HasSubstr("not allowed for single tensors"));
    }
  }
}

// What no rank's codec has sent of a tensor is told; tensors in fp32 and bad steps are not counted.
TEST(GradientSync, TensorsThatWaitAreTold) {
  Communicator comm;
  DP_NEEDS_RANKS(comm, 2);
  GradientSyncOptions options = options_of("threshold:alpha=0.5");
  std::vector<float> gradient(kElements);
  GradientSync sync(nullptr, gradient, tensors(), options);
  sync.connect(comm);
  sync.begin_epoch(0);
  const std::vector<TensorSlot> slots = tensors();
  const auto exchange = [&](std::size_t large, float value, std::uint64_t step) {
    for (std::size_t i = 0; i < kElements; ++i) gradient[i] = 0.001f;
    std::fill_n(gradient.begin() + static_cast<std::ptrdiff_t>(slots[large].offset),
                slots[large].elements(), value);
    std::fill_n(gradient.begin() + static_cast<std::ptrdiff_t>(slots[linear].offset),
                slots[linear].elements(), 0.0f);
    sync.begin_step(step);
    sync.all_final();
    return sync.finish_step().finite;
  };
  EXPECT_TRUE(exchange(conv1, 1.0f, 0));
  EXPECT_TRUE(exchange(conv1, 2.0f, 1));
  EXPECT_FALSE(exchange(conv1, std::numeric_limits<float>::infinity(), 2));
  EXPECT_EQ(sync.take_delivery_gaps(),
            (std::vector<DeliveryGaps::Gap>{{.tensor = conv2, .now = 2, .longest = 2},
                                            {.tensor = conv3, .now = 2, .longest = 2}}));
}

// Steps whose gradients are far larger than the ones before take no more bits than the others.
TEST(GradientSync, EveryStepTakesThePlannedBits) {
  Communicator comm;
  DP_NEEDS_RANKS(comm, 2);
  for (const char* topology : {"direct", "ring", "tree"}) {
    std::vector<float> gradient(kElements);
    GradientSync sync(nullptr, gradient, tensors(), options_of("ecq:bits=0.5", topology));
    sync.connect(comm);
    sync.begin_epoch(0);
    for (std::uint64_t step = 0; step < 60; ++step) {
      const std::vector<float> own = gradient_of(comm.rank(), step);
      sync.begin_step(step);
      for (std::size_t i = 0; i < kElements; ++i)
        gradient[i] = (step % 2 == 0 ? 3.0f : 1.0f) * own[i];
      sync.all_final();
      EXPECT_TRUE(sync.finish_step().finite);
      if (step < 30) continue;
      const RateReport& report = sync.rate_report();
      EXPECT_NEAR(report.mean_bits() / report.planned_bits, 1.0, 0.3) << topology << step;
    }
  }
}

std::string error_of(const GradientSyncOptions& options, Device* device = nullptr) {
  std::vector<float> gradient(kElements);
  try {
    const GradientSync sync(device, gradient, tensors(), options);
    return "no error";
  } catch (const Error& error) {
    return error.kind() == ErrorKind::usage ? error.what() : "of another kind";
  }
}

TEST(GradientSync, APatternThatNamesNothingIsRefused) {
  GradientSyncOptions options = options_of("q8");
  options.tensor_codecs = in_fp32({"linear*", "fc.*"});
  const std::string message = error_of(options);
  for (const char* part : {"fc.*", "conv1.weight", "conv2.weight"}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
  // Patterns are for whole names.
  options.tensor_codecs = in_fp32({"linear"});
  EXPECT_NE(error_of(options), "no error");
}

// The bytes of a step tell what was sent; the reducer's buckets what was meant.
TEST(GradientSync, AWarmUpBeginsInFp32) {
  Communicator comm;
  GradientSyncOptions options = options_of("q8");
  options.compress_warmup = 2;
  std::vector<float> gradient(kElements);
  GradientSync sync(nullptr, gradient, tensors(), options);
  sync.connect(comm);
  std::uint64_t sent_bytes[4] = {};
  for (std::uint64_t epoch = 0; epoch < 4; ++epoch) {
    sync.begin_epoch(epoch);
    sync.begin_step(epoch);
    std::ranges::copy(gradient_of(comm.rank(), epoch, true), gradient.begin());
    sync.all_final();
    EXPECT_TRUE(sync.finish_step().finite);
    const bool is_warm = epoch >= 2;
    EXPECT_EQ(gradient == whole_sums(comm.size(), epoch), !is_warm || comm.size() == 1);
    EXPECT_EQ(sync.reducer().buckets()[0].codec.name, is_warm ? "q8" : "none");
    EXPECT_TRUE(sync.reducer().buckets()[2].codec.is_exact());  // from first to last
    EXPECT_EQ(sync.buckets()[0].codec.name, "q8");              // as planned
    sent_bytes[epoch] = sync.reducer().take_times().total.sent_bytes;
  }
  EXPECT_EQ(sent_bytes[1], sent_bytes[0]);
  EXPECT_EQ(sent_bytes[3], sent_bytes[2]);
  if (comm.size() > 1) {
    EXPECT_LT(2 * sent_bytes[2], sent_bytes[0]);
  }
}

TEST(GradientSync, TheWarmUpOfARatioIsALadder) {
  Communicator comm;
  for (const char* codec : {"topk:ratio=0.02", "dgc:ratio=0.02"}) {
    GradientSyncOptions options = options_of(codec);
    options.compress_warmup = 3;
    std::vector<float> gradient(kElements);
    GradientSync sync(nullptr, gradient, tensors(), options);
    sync.connect(comm);
    const double want[] = {0.25, 0.0625, 0.02, 0.02};
    for (std::size_t epoch = 0; epoch < 4; ++epoch) {
      sync.begin_epoch(epoch);
      EXPECT_EQ(sync.reducer().buckets()[0].codec.number("ratio"), want[epoch])
          << codec << ", epoch " << epoch;
    }
  }
}

// A rank without samples sends zeros, beside ranks that report their tensors; the steps before and
// after are as ever.
TEST(GradientSync, AllAtOnceIsEveryTensor) {
  Communicator comm;
  for (const bool overlap : {true, false}) {
    GradientSyncOptions options = options_of("none");
    options.overlap = overlap;
    std::vector<float> gradient(kElements);
    GradientSync sync(nullptr, gradient, tensors(), options);
    sync.connect(comm);
    for (std::uint64_t step = 0; step < 4; ++step) {
      const bool is_short = step % 2 == 1;
      const int idle = comm.size() - 1;  // the rank that has no samples in a short step
      sync.begin_step(step);
      if (is_short && comm.rank() == idle) {
        std::ranges::fill(gradient, 0.0f);
        sync.all_final();
      } else {
        std::ranges::copy(gradient_of(comm.rank(), step, true), gradient.begin());
        for (const std::size_t t : shuffled(comm.rank(), step)) sync.tensor_final(t);
      }
      EXPECT_TRUE(sync.finish_step().finite);
      EXPECT_EQ(gradient, whole_sums(is_short ? idle : comm.size(), step)) << "step " << step;
    }
  }
}

TEST(GradientSync, TellsWhoseMomentumIsTheExchanges) {
  std::vector<float> gradient(kElements);
  const GradientSync dgc(nullptr, gradient, tensors(), options_of("dgc:ratio=0.05"));
  const GradientSync topk(nullptr, gradient, tensors(), options_of("topk:ratio=0.05"));
  for (std::size_t t = 0; t < kTensors; ++t) {
    EXPECT_EQ(dgc.has_momentum(t), t <= conv3) << t;
    EXPECT_FALSE(topk.has_momentum(t)) << t;
  }
  GradientSyncOptions options = options_of("dgc:ratio=0.05");
  options.has_nesterov = true;
  EXPECT_NE(error_of(options).find("Nesterov's momentum off"), std::string::npos)
      << error_of(options);
  // Where every tensor is exact there is no momentum, and nothing to refuse.
  options.tensor_codecs = in_fp32({"*"});
  EXPECT_EQ(error_of(options), "no error");
  EXPECT_NE(error_of(options_of("dgc:ratio=0.05,ef=off")).find("ef=on"), std::string::npos);
}

// velocity= takes the momentum of SGD, of all that is coded; the last bucket leaves it to the
// optimiser.
TEST(GradientSync, AVelocityIsSentWhereThereIsAMomentum) {
  std::vector<float> gradient(kElements);
  GradientSyncOptions options = options_of("ecq:bits=0.5,velocity=on", "direct");
  EXPECT_NE(error_of(options).find("allowed here: velocity=off"), std::string::npos)
      << error_of(options);
  // What was asked for is named, not what auto makes of it.
  options.compress = parse_compress("auto:velocity=on");
  EXPECT_NE(error_of(options).find("auto:velocity=on: velocity= needs"), std::string::npos)
      << error_of(options);
  options.momentum = 0.9f;
  options.compress = parse_compress("ecq:bits=0.5,velocity=on,ef=off");
  EXPECT_NE(error_of(options).find("allowed: ef=on"), std::string::npos) << error_of(options);
  options.compress = parse_compress("ecq:bits=0.5,velocity=on");
  options.has_nesterov = true;
  const GradientSync sync(nullptr, gradient, tensors(), options);
  for (std::size_t t = 0; t < kTensors; ++t) EXPECT_EQ(sync.has_momentum(t), t <= conv3) << t;
  for (const Bucket& bucket : sync.buckets()) {
    EXPECT_EQ(bucket.velocity != Bucket::Velocity::off, bucket.codec.name == "ecq");
  }
}

// Where few bits are planned, velocities begin anew where something was delivered; with more bits
// little would be left of the momentum.
TEST(GradientSync, AutoMasksVelocitiesWhereFewBitsArePlanned) {
  Communicator comm;
  DP_NEEDS_RANKS(comm, 2);
  const std::vector<TensorSlot> slots = tensors();
  for (const double bits : {0.12, 0.3}) {
    SCOPED_TRACE(bits);
    GradientSyncOptions options =
        options_of(fmt::format("auto:velocity=on,min={0},max={0}", bits), "direct");
    options.momentum = 0.5f;
    std::vector<float> gradient(kElements), velocity(kElements);
    GradientSync sync(nullptr, gradient, slots, options);
    sync.connect(comm);
    std::size_t delivered = 0;
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      const std::vector<float> own = gradient_of(comm.rank(), step, false);
      sync.begin_step(step);
      std::ranges::copy(own, gradient.begin());
      sync.all_final();
      EXPECT_TRUE(sync.finish_step().finite);
      StateList list;
      sync.list_state(list);
      const std::span<const float> listed = test::floats_of(list, "exchange/velocity");
      for (std::size_t t = 0; t < kTensors; ++t) {
        if (!sync.has_momentum(t)) continue;
        for (std::size_t i = slots[t].offset; i < slots[t].offset + slots[t].elements(); ++i) {
          const bool is_masked = bits < 0.15 && gradient[i] != 0.0f;
          velocity[i] = is_masked ? 0.0f : 0.5f * velocity[i] + own[i];
          EXPECT_EQ(listed[i], velocity[i]) << "step " << step << ", value " << i;
          if (listed[i] != velocity[i]) break;
          if (gradient[i] != 0.0f) ++delivered;
        }
      }
    }
    EXPECT_GT(delivered, 100u);
  }
}

// Each value of a masked velocity is in one part; each chunk is owned by one rank.
TEST(GradientSync, TellsWhatIsUndelivered) {
  Communicator comm;
  DP_NEEDS_RANKS(comm, 2);
  const auto ranks = static_cast<std::size_t>(comm.size());
  const std::vector<TensorSlot> slots = tensors();
  const auto owners = [&](const std::string& compress, const std::string& topology) {
    GradientSyncOptions options = options_of(compress, topology);
    options.momentum = 0.9f;
    std::vector<float> gradient(kElements);
    GradientSync sync(nullptr, gradient, slots, options);
    sync.connect(comm);
    sync.begin_step(0);
    std::ranges::copy(gradient_of(comm.rank(), 0, false), gradient.begin());
    sync.all_final();
    EXPECT_TRUE(sync.finish_step().finite);
    std::vector<std::int64_t> found(kElements);
    for (const UndeliveredPart& part : sync.undelivered_parts()) {
      EXPECT_GE(part.offset, slots[part.tensor].offset);
      EXPECT_LE(part.offset + part.residual.size(),
                slots[part.tensor].offset + slots[part.tensor].elements());
      EXPECT_EQ(part.residual.data(), sync.reducer().residual().data() + part.offset);
      const bool is_own = part.times == 1.0f;
      EXPECT_TRUE(is_own || part.times == static_cast<float>(ranks)) << part.times;
      // 1 for the owner and 1000 for each other rank.
      for (std::size_t i = 0; i < part.residual.size(); ++i) {
        found[part.offset + i] += is_own ? 1 : 1000;
      }
    }
    sync.reducer().all_sum(found);
    return found;
  };
  const std::vector<std::int64_t> found = owners("ecq:bits=0.05,velocity=masked", "direct");
  const auto all = static_cast<std::int64_t>(1000 * (ranks - 1) + 1);
  for (std::size_t t = 0; t < kTensors; ++t) {
    for (std::size_t i = slots[t].offset; i < slots[t].offset + slots[t].elements(); ++i) {
      ASSERT_EQ(found[i], t <= conv3 ? all : 0) << "value " << i;
    }
  }
  const std::vector<std::int64_t> none(kElements);
  EXPECT_EQ(owners("ecq:bits=0.05,velocity=masked", "ring"), none);
  EXPECT_EQ(owners("ecq:bits=0.1,velocity=masked", "direct"), none);
  EXPECT_EQ(owners("ecq:bits=0.05,velocity=on", "direct"), none);
}

TEST(GradientSync, OneHostOfAHierarchyEncodesNothing) {
  std::vector<float> gradient(kElements);
  GradientSyncOptions options = options_of("q8", "hierarchical");
  options.is_one_host = true;
  const GradientSync sync(nullptr, gradient, tensors(), options);
  for (const Bucket& bucket : sync.buckets()) EXPECT_TRUE(bucket.codec.is_exact());
  EXPECT_EQ(sync.buckets()[0].why, "one host: fp32");
}

TEST(GradientSync, WithoutTensorsThereIsNothingToExchange) {
  const GradientSync sync(nullptr, {}, {}, options_of("dgc"));
  EXPECT_TRUE(sync.buckets().empty());
  EXPECT_FALSE(sync.has_momentum(0));
  EXPECT_EQ(sync.path(), "");
}

// ---- gradients in a device's memory -------------------------------------------------------------

// The same sums and residuals as on the host, whichever way a GPU's gradients take.
TEST(GradientSync, ADeviceChangesNoBit) {
  Communicator comm;
  const test::TestDevice device = test::make_test_device();
  for (const bool overlap : {true, false}) {
    // With 0.05 bits, one-dimensional tensors are not exchanged in every step.
    for (const char* codec :
         {"q8", "topk:ratio=0.05", "dgc:ratio=0.05", "ecq", "ecq:blend=0.5",
          "ecq:bits=0.4,velocity=on", "ecq:bits=0.05,velocity=masked", "ecq:error=0.6"}) {
      GradientSyncOptions options = options_of(codec);
      options.momentum = 0.5f;
      options.overlap = overlap;
      const Outcome want = run_on_host(comm, options, usual_order);
      for (const ExchangePath path : {ExchangePath::host, ExchangePath::device}) {
        if (path == ExchangePath::device && !has_codec(parse_codec_spec(codec), device->kind())) {
          continue;
        }
        options.path = path;
        DeviceArray<float> gradient(*device, kElements);
        GradientSync sync(device.get(), gradient.span(), tensors(), options);
        const std::string path_name = path == ExchangePath::host ? "host" : "device";
        EXPECT_EQ(sync.path(), on_gpu() ? path_name : "");
        sync.connect(comm);
        Outcome outcome;
        for (std::uint64_t step = 0; step < kSteps; ++step) {
          sync.begin_step(step);
          gradient.set(gradient_of(comm.rank(), step));
          for (const std::size_t t : usual_order(comm.rank(), step)) sync.tensor_final(t);
          EXPECT_TRUE(sync.finish_step().finite);
          outcome.sums.push_back(gradient.get());
        }
        const std::span<const float> residual = sync.reducer().residual();
        if (sync.path() == "device") {
          outcome.residual = to_host(*device, residual);
        } else {
          outcome.residual.assign(residual.begin(), residual.end());
        }
        EXPECT_TRUE(outcome == want) << codec << ", overlap " << overlap << ", path " << path_name;
      }
    }
  }
}

// On both paths, operations that the action of finish_step() enqueues on a GPU see the sums.
TEST(GradientSync, WhatFollowsTheSumsSeesThem) {
  Communicator comm;
  const test::TestDevice device = test::make_test_device();
  std::size_t followed = 0;
  for (const ExchangePath path : {ExchangePath::host, ExchangePath::device}) {
    GradientSyncOptions options = options_of("q8");
    options.path = path;
    DeviceArray<float> gradient(*device, kElements), copy(*device, kElements);
    GradientSync sync(device.get(), gradient.span(), tensors(), options);
    sync.connect(comm);
    bool is_copied = false;
    const FollowUp::Action action = [&] {
      device->copy(copy.data(), gradient.data(), gradient.span().size_bytes());
      is_copied = true;
    };
    for (std::uint64_t step = 0; step < 30; ++step) {
      sync.begin_step(step);
      gradient.set(gradient_of(comm.rank(), step));
      sync.all_final();
      is_copied = false;
      EXPECT_TRUE(sync.finish_step(&action).finite);
      // The action is refused if the exchange has ended before the caller waits.
      if (!is_copied) continue;
      ++followed;
      EXPECT_EQ(copy.get(), gradient.get()) << sync.path() << ", step " << step;
    }
  }
  EXPECT_TRUE(followed > 0 || !on_gpu());
}

TEST(GradientSync, WhatAGpuCannotDoIsRefused) {
  if (!on_gpu()) GTEST_SKIP() << "the CPU has a form of every codec";
  const test::TestDevice device = test::make_test_device();
  GradientSyncOptions options = options_of("topk:ratio=0.05");
  options.path = ExchangePath::device;
  std::string message = error_of(options, device.get());
  EXPECT_NE(message.find("topk:ratio=0.05 does not run on GPUs"), std::string::npos) << message;
  options = options_of("ecq:bits=0.4,velocity=on");
  options.path = ExchangePath::device;
  options.adam = AdamVelocityOptions{};
  message = error_of(options, device.get());
  EXPECT_NE(message.find("with Adam does not run on GPUs"), std::string::npos) << message;
}

}  // namespace
}  // namespace dp
