// Trains a small network on four ranks with each codec, on ring and direct, and looks at the loss
// at the end. The bounds are wide: they tell a run that learns from one that does not. The ranks
// are members of a planned network in one process: four processes on two cores would mostly wait
// for each other.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <optional>

#include "comm/topologies/powersgd.hpp"
#include "comm/topologies/topology.hpp"
#include "comm/topologies/velocity.hpp"
#include "tests/comm/exchange/exchange_fixture.hpp"
#include "tests/comm/exchange/planned_network.hpp"

namespace dp {
namespace {

using namespace testing_support;

constexpr std::size_t kInputs = 32, kHidden = 64, kClasses = 10, kBatch = 16;
constexpr std::size_t kSteps = 400, kLast = 50;
constexpr int kRanks = 4;
constexpr std::size_t kFirst = kHidden * kInputs, kWeights = kFirst + kClasses * kHidden;

// Two layers without biases, softmax and cross-entropy; weights and their gradient in one slice
// each, as buckets are.
struct Network {
  std::vector<float> weights = std::vector<float>(kWeights);
  std::vector<float> gradient = std::vector<float>(kWeights);
  std::array<float, kHidden> hidden{}, hidden_gradient{};
  std::array<float, kClasses> outputs{};

  Network() {
    const CounterRng rng(1, RandomStream::weights);
    for (std::size_t i = 0; i < kWeights; ++i) {
      const double fan_in = i < kFirst ? kInputs : kHidden;
      weights[i] = static_cast<float>(normal(rng, i) * std::sqrt(2.0 / fan_in));
    }
  }

  // Returns the loss of one sample and adds its gradient, times `scale`.
  double learn(const float* x, std::size_t label, float scale) {
    const float* second = weights.data() + kFirst;
    for (std::size_t h = 0; h < kHidden; ++h) {
      float sum = 0.0f;
      for (std::size_t i = 0; i < kInputs; ++i) sum += weights[h * kInputs + i] * x[i];
      hidden[h] = std::max(sum, 0.0f);
    }
    float largest = -1e30f;
    for (std::size_t c = 0; c < kClasses; ++c) {
      float sum = 0.0f;
      for (std::size_t h = 0; h < kHidden; ++h) sum += second[c * kHidden + h] * hidden[h];
      outputs[c] = sum;
      largest = std::max(largest, sum);
    }
    float all = 0.0f;
    for (float& o : outputs) all += o = std::exp(o - largest);
    for (float& o : outputs) o /= all;
    const double loss = -std::log(std::max(static_cast<double>(outputs[label]), 1e-30));
    hidden_gradient.fill(0.0f);
    for (std::size_t c = 0; c < kClasses; ++c) {
      const float d = scale * (outputs[c] - (c == label ? 1.0f : 0.0f));
      for (std::size_t h = 0; h < kHidden; ++h) {
        gradient[kFirst + c * kHidden + h] += d * hidden[h];
        hidden_gradient[h] += d * second[c * kHidden + h];
      }
    }
    for (std::size_t h = 0; h < kHidden; ++h) {
      if (hidden[h] == 0.0f) continue;
      for (std::size_t i = 0; i < kInputs; ++i) {
        gradient[h * kInputs + i] += hidden_gradient[h] * x[i];
      }
    }
    return loss;
  }
};

// Writes a sample near one of 30 centres, three for each class, which no linear map can tell apart,
// and returns its class.
std::size_t make_sample(const CounterRng& rng, std::uint64_t number, float* x) {
  constexpr std::size_t kCentres = 30;
  const CounterRng centres(9, RandomStream::test);
  const std::size_t centre = rng.below(kCentres, number * 64);
  for (std::size_t i = 0; i < kInputs; ++i) {
    x[i] = static_cast<float>(0.6 * normal(centres, centre * kInputs + i) +
                              0.8 * normal(rng, number * 64 + 1 + i));
  }
  return centre % kClasses;
}

// All samples of a rank: every training sees the same ones.
struct Samples {
  std::vector<float> x = std::vector<float>(kSteps * kBatch * kInputs);
  std::vector<std::size_t> labels = std::vector<std::size_t>(kSteps * kBatch);

  explicit Samples(int rank) {
    const CounterRng rng(7, RandomStream::test, static_cast<std::uint64_t>(rank));
    for (std::size_t i = 0; i < labels.size(); ++i) {
      labels[i] = make_sample(rng, i, x.data() + i * kInputs);
    }
  }
};

const std::vector<Samples>& samples() {
  static const std::vector<Samples> all = [] {
    std::vector<Samples> made;
    for (int rank = 0; rank < kRanks; ++rank) made.emplace_back(rank);
    return made;
  }();
  return all;
}

// {-s, 0, s} with s the largest magnitude of a block. This is no contraction (there is no c < 1):
// of a block whose other values are just below s / 2 it sends one value. It is not among the
// codecs; it is here to show what that does.
class AbsmaxTwoBit final : public Codec {
 public:
  AbsmaxTwoBit() : Codec({.name = "none", .block = kBlock, .feedback = true}) {}

  [[nodiscard]] bool is_lossless() const override { return false; }
  [[nodiscard]] std::size_t max_payload_bytes(std::size_t n) const override {
    return n * sizeof(float);
  }
  [[nodiscard]] std::optional<std::size_t> fixed_payload_bytes(std::size_t n) const override {
    return n * sizeof(float);
  }
  [[nodiscard]] double contraction() const override { return 1.0; }

  EncodeResult encode(std::span<const float> partial, float* residual, std::span<std::byte> payload,
                      const EncodeContext&) const override {
    for (std::size_t begin = 0; begin < partial.size(); begin += kBlock) {
      const std::size_t end = std::min(begin + kBlock, partial.size());
      float largest = 0.0f;
      for (std::size_t i = begin; i < end; ++i) {
        if (!std::isfinite(partial[i])) return send_zeros(partial.size(), payload);
        largest = std::max(largest, std::abs(partial[i] + residual[i]));
      }
      for (std::size_t i = begin; i < end; ++i) {
        const float v = partial[i] + residual[i];
        const float sent = 2.0f * std::abs(v) < largest ? 0.0f : std::copysign(largest, v);
        std::memcpy(payload.data() + i * sizeof sent, &sent, sizeof sent);
        residual[i] = v - sent;
      }
    }
    return {.payload_bytes = partial.size() * sizeof(float)};
  }
  void decode(std::span<const std::byte> payload, std::span<float> out) const override {
    std::memcpy(out.data(), payload.data(), payload.size());
  }
  void decode_add(std::span<const std::byte> payload, std::span<float> out) const override {
    for (std::size_t i = 0; i < out.size(); ++i) {
      float v = 0.0f;
      std::memcpy(&v, payload.data() + i * sizeof v, sizeof v);
      out[i] += v;
    }
  }

 private:
  static constexpr std::size_t kBlock = 2048;
  static EncodeResult send_zeros(std::size_t n, std::span<std::byte> payload) {
    std::memset(payload.data(), 0, n * sizeof(float));
    return {.payload_bytes = n * sizeof(float), .finite = false};
  }
};

struct Training {
  const char* codec = "none";
  const char* topology = "ring";
  double peak = 0.2;            // learning rate
  const Codec* own = nullptr;   // instead of `codec`
  std::size_t exact_steps = 0;  // that many first steps are exchanged in fp32
  bool is_masking = true;       // dgc
  bool is_adam = false;         // instead of momentum
};

// One rank's part of one way to exchange the network's gradient.
struct Way {
  Way(Transport& transport, Network& network, std::vector<float>& residual, const char* text,
      const Codec* own, const char* topology, std::uint32_t bucket)
      : spec(parse_codec_spec(text)), codec(make_codec(spec)), exact(make_codec({})) {
    const bool has_feedback = own != nullptr || spec.feedback;
    ExchangeSetup setup = {.transport = &transport,
                           .bucket = bucket,
                           .stream = 2 * bucket,
                           .gradient = network.gradient,
                           .residual = has_feedback ? residual.data() : nullptr,
                           .codec = own != nullptr ? own : codec.get(),
                           .seed = 1,
                           .segment = 2048};
    if (find_codec(spec.name)->is_exchange) {
      setup.codec = exact.get();
      exchange = make_powersgd({.exchange = setup,
                                .tensors = kTensors,
                                .factor_rank = spec.whole("rank"),
                                .topology = &find_topology(topology)});
    } else {
      exchange = find_topology(topology).make(setup);
    }
    buffers.emplace(exchange->needs());
  }

  static constexpr TensorSlot kTensors[] = {{0, kHidden, kInputs, false},
                                            {kFirst, kClasses, kHidden, false}};
  CodecSpec spec;
  std::unique_ptr<Codec> codec, exact;
  std::unique_ptr<Exchange> exchange;
  std::optional<BufferSet> buffers;
};

constexpr float kMomentum = 0.9f;

// One rank: its replica of the network, and both ways to exchange the gradient.
struct Member {
  Member(Transport& transport, const Training& run)
      : exact(transport, network, residual, "none", nullptr, run.topology, 0),
        chosen(transport, network, residual, run.codec, run.own, run.topology, 1) {}

  Network network;
  std::vector<float> residual = std::vector<float>(kWeights);
  std::vector<float> velocity = std::vector<float>(kWeights);
  std::vector<float> squares = std::vector<float>(kWeights);  // Adam's second moment
  Way exact, chosen;
  LocalVelocity local{kWeights, {.momentum = kMomentum, .ranks = kRanks}};
};

// Kingma and Ba 2015, algorithm 1, with their constants.
void adam_step(Member& member, std::uint64_t step, float rate) {
  constexpr float kBeta1 = 0.9f, kBeta2 = 0.999f, kEpsilon = 1e-8f;
  const auto count = static_cast<float>(step + 1);
  const float first = 1.0f - std::pow(kBeta1, count), second = 1.0f - std::pow(kBeta2, count);
  for (std::size_t i = 0; i < kWeights; ++i) {
    const float g = member.network.gradient[i];
    float &mean = member.velocity[i], &square = member.squares[i];
    mean = kBeta1 * mean + (1.0f - kBeta1) * g;
    square = kBeta2 * square + (1.0f - kBeta2) * g * g;
    member.network.weights[i] -= rate * (mean / first) / (std::sqrt(square / second) + kEpsilon);
  }
}

// Runs one exchange of all ranks to its end.
void run_exchange(PlannedNetwork& network, std::span<const std::unique_ptr<Member>> members,
                  Way Member::*way, std::uint64_t step) {
  for (const auto& member : members) {
    Way& mine = (*member).*way;
    mine.exchange->post_receives(*mine.buffers, step);
  }
  for (const auto& member : members) ((*member).*way).exchange->start();
  for (bool all_done = false; !all_done;) {
    bool has_moved = network.deliver();
    all_done = true;
    for (const auto& member : members) {
      Exchange& exchange = *((*member).*way).exchange;
      has_moved = exchange.progress() || has_moved;
      all_done = all_done && exchange.done();
    }
    ASSERT_TRUE(has_moved || all_done) << "the exchange stands still";
  }
}

// The mean loss of the last 50 steps, over all ranks; infinity if the weights left fp32's range.
double final_loss(const Training& run) {
  PlannedNetwork network(kRanks, 0);
  std::vector<std::unique_ptr<Member>> members;
  for (int rank = 0; rank < kRanks; ++rank) {
    members.push_back(std::make_unique<Member>(network.transport(rank), run));
  }
  const bool is_dgc = members[0]->chosen.spec.name == "dgc";
  double last = 0.0;
  bool is_finite = true;
  for (std::uint64_t step = 0; step < kSteps && is_finite; ++step) {
    for (std::size_t rank = 0; rank < members.size(); ++rank) {
      Network& replica = members[rank]->network;
      std::ranges::fill(replica.gradient, 0.0f);
      for (std::size_t i = step * kBatch; i < (step + 1) * kBatch; ++i) {
        const double loss =
            replica.learn(samples()[rank].x.data() + i * kInputs, samples()[rank].labels[i],
                          1.0f / static_cast<float>(kBatch * kRanks));
        if (step >= kSteps - kLast) last += loss;
      }
      if (is_dgc) members[rank]->local.prepare(0, replica.gradient);
    }
    const auto way = step < run.exact_steps ? &Member::exact : &Member::chosen;
    run_exchange(network, members, way, step);
    if (testing::Test::HasFatalFailure()) return std::numeric_limits<double>::infinity();
    is_finite = ((*members[0]).*way).exchange->finite();
    // One cycle: up to the peak in a third of the steps, then down to nothing.
    const double at = static_cast<double>(step + 1) / kSteps;
    const auto rate = static_cast<float>(run.peak * std::min(3.0 * at, 1.5 * (1.0 - at)));
    for (const auto& member : members) {
      EXPECT_EQ(((*member).*way).exchange->finite(), is_finite);
      if (is_dgc && run.is_masking && step >= run.exact_steps) {
        member->local.mask(0, member->residual);
      }
      if (run.is_adam) {
        adam_step(*member, step, rate);
        continue;
      }
      Network& replica = member->network;
      for (std::size_t i = 0; i < kWeights; ++i) {
        float& velocity = member->velocity[i];
        velocity = (is_dgc ? 0.0f : kMomentum * velocity) + replica.gradient[i];
        replica.weights[i] -= rate * velocity;
      }
    }
  }
  for (const auto& member : members) {
    EXPECT_EQ(std::memcmp(member->network.weights.data(), members[0]->network.weights.data(),
                          kWeights * sizeof(float)),
              0)
        << "replicas differ";
  }
  const double loss = last / static_cast<double>(kLast * kBatch * kRanks);
  return is_finite && std::isfinite(loss) ? loss : std::numeric_limits<double>::infinity();
}

constexpr const char* kTopologies[] = {"ring", "direct"};

// Trains and prints the loss: one that fails is best seen beside the others.
double loss_of(const Training& run, const char* note = "") {
  const double loss = final_loss(run);
  std::printf("%-7s peak %.2f  %-16s loss %.3f  %s\n", run.topology, run.peak,
              run.own != nullptr ? "own" : run.codec, loss, note);
  return loss;
}

// The loss of a network that gives every class the same probability: ln 10.
constexpr double kGuessing = 2.303;

TEST(Convergence, FineCodecsEndWhereFp32Does) {
  const double exact = loss_of({});
  EXPECT_LT(exact, 0.4);
  for (const char* topology : kTopologies) {
    for (const char* codec :
         {"fp16", "bf16", "q8", "q8n", "q4", "q4n", "threshold", "powersgd:rank=4"}) {
      const double loss = loss_of({.codec = codec, .topology = topology});
      EXPECT_NEAR(loss, exact, 0.15 * exact) << codec << " on " << topology;
    }
  }
}

// Adam divides by the gradient's own size, so that the error of a codec does not shrink with the
// gradient.
TEST(Convergence, AdamEndsWhereItsFp32Does) {
  const double exact = loss_of({.peak = 0.01, .is_adam = true}, "adam");
  EXPECT_LT(exact, 0.4);
  for (const char* topology : kTopologies) {
    for (const char* codec : {"q8", "q4"}) {
      const double loss =
          loss_of({.codec = codec, .topology = topology, .peak = 0.01, .is_adam = true}, "adam");
      EXPECT_NEAR(loss, exact, 0.15 * exact) << codec << " on " << topology;
    }
  }
}

TEST(Convergence, CoarseCodecsLearn) {
  const double exact = loss_of({});
  for (const char* topology : kTopologies) {
    for (const char* codec : {"q2", "ternary", "topk:ratio=0.1", "dgc:ratio=0.1"}) {
      const double loss = loss_of({.codec = codec, .topology = topology});
      EXPECT_LT(loss, 2.5 * exact) << codec << " on " << topology;
    }
    const double loss = loss_of({.codec = "sign", .topology = topology});
    EXPECT_LT(loss, 0.6 * kGuessing) << "sign on " << topology;
  }
}

// A residual that waits for n steps comes n times as large, and momentum multiplies it again. A
// value that a codec sends rarely therefore needs a low learning rate.
TEST(Convergence, CoarseCodecsEndWhereFp32DoesAtALowRate) {
  const double exact = loss_of({.peak = 0.05});
  for (const char* topology : kTopologies) {
    for (const char* codec :
         {"q2", "sign", "topk:ratio=0.01", "randk:ratio=0.1", "powersgd:rank=1"}) {
      const double loss = loss_of({.codec = codec, .topology = topology, .peak = 0.05});
      EXPECT_NEAR(loss, exact, 0.25 * exact) << codec << " on " << topology;
    }
  }
}

TEST(Convergence, FewValuesAtAHighRateNeedAWarmUp) {
  for (const char* topology : kTopologies) {
    for (const char* codec : {"topk:ratio=0.01", "powersgd:rank=1"}) {
      const double cold = loss_of({.codec = codec, .topology = topology});
      const double warm = loss_of({.codec = codec, .topology = topology, .exact_steps = kSteps / 2},
                                  "after 200 exact steps");
      EXPECT_GT(cold, 0.5 * kGuessing) << codec << " on " << topology;
      EXPECT_LT(warm, 0.5 * kGuessing) << codec << " on " << topology;
    }
  }
}

// With a short warm-up and masking, DGC learns at a rate at which top-k does not.
TEST(Convergence, MaskingIsWhatLetsDgcLearnFast) {
  const double exact = loss_of({});
  for (const char* topology : kTopologies) {
    const Training run = {
        .codec = "dgc:ratio=0.01", .topology = topology, .exact_steps = kSteps / 4};
    Training unmasked = run;
    unmasked.is_masking = false;
    const double with = loss_of(run, "after 100 exact steps");
    const double without = loss_of(unmasked, "after 100 exact steps, not masked");
    EXPECT_LT(with, 2.0 * exact) << topology;
    EXPECT_GT(without, 1.5 * with) << topology;
  }
}

// The ring encodes a value P times, and the error of a codec that is no contraction grows with each
// of them. Direct encodes it twice, which such a codec survives.
TEST(Convergence, WithoutAContractionTheRingDiverges) {
  const AbsmaxTwoBit absmax;
  EXPECT_GT(loss_of({.topology = "ring", .own = &absmax}, "absmax q2"), kGuessing);
  EXPECT_LT(loss_of({.topology = "direct", .own = &absmax}, "absmax q2"), 0.4 * kGuessing);
}

}  // namespace
}  // namespace dp
