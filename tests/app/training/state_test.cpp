// What list_state() lists is all that a run consists of: saved after some steps and given back, the
// same steps give the same bits, for every codec and topology, with and without overlap. And each
// listed part counts: without it they do not.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/checkpoint/checkpoint_head.hpp"
#include "app/checkpoint/fingerprint.hpp"
#include "app/checkpoint/run_state.hpp"
#include "app/planning/rehearsal.hpp"
#include "app/training/replica/replica.hpp"
#include "app/training/restore.hpp"
#include "app/training/setup/run_checkpoint.hpp"
#include "comm/replica_hash.hpp"
#include "kernels/base/random.hpp"
#include "kernels/codecs/codec_spec.hpp"
#include "net/graph.hpp"
#include "net/layers/batch_norm.hpp"
#include "net/layers/conv2d.hpp"
#include "net/layers/linear.hpp"
#include "net/layers/pool.hpp"
#include "tests/support/every_part_counts.hpp"
#include "tests/support/state_list.hpp"

namespace dp {
namespace {

using test::copy_state;
using test::restore_state;
using test::StateCopy;

constexpr ImageShape kImage{.height = 32, .width = 32};
constexpr std::size_t kBatch = 2;  // of a rank
constexpr std::uint64_t kBefore = 3, kAfter = 3;

// Every kind of parameter and statistic, in several buckets, two of which are large enough to be
// compressed.
net::Graph small_network() {
  net::Graph graph(kImage);
  net::Value x =
      graph.add<net::Conv2dLayer>("conv1", {.channels = 16, .stride = 2}, {graph.images()});
  x = graph.add<net::BatchNormLayer>("bn1", {}, {x});
  x = graph.add<net::AveragePoolLayer>("pool", {}, {x});
  x = graph.add<net::Conv2dLayer>("conv2", {.channels = 48, .stride = 2}, {x});
  x = graph.add<net::BatchNormLayer>("bn2", {}, {x});
  x = graph.add<net::Conv2dLayer>("conv3", {.channels = 32}, {x});
  x = graph.add<net::GlobalAveragePoolLayer>("mean", {}, {x});
  graph.add<net::LinearLayer>("linear", {.outputs = 4}, {x});
  return graph;
}

// A replica that trains on images drawn from rank and step, so that it has no loader to remember.
class TrainingRun {
 public:
  TrainingRun(Communicator& comm, const std::string& codec, const std::string& topology,
              bool overlap, std::optional<net::OptimizerOptions> optimizer = {},
              bool has_averages = false)
      : comm_(comm), device_(make_device({.threads = 1, .tune = false})) {
    ReplicaOptions options;
    options.seed = 3;
    options.optimizer = optimizer.value_or(net::OptimizerOptions{
        .momentum = codec.starts_with("dgc") ? 0.5f : 0.9f, .weight_decay = 5e-4f});
    if (has_averages) {
      options.averages.ema_decay = 0.9;
      options.averages.lookahead_every = 2;
    }
    options.sync.compress = parse_compress(codec);
    options.sync.bucket_bytes = 4096;
    options.sync.overlap = overlap;
    options.sync.reducer.topology = topology;
    options.sync.reducer.comm_timeout_s = 30;
    // Two ranks a host, so that the hierarchical topology encodes between hosts.
    for (int rank = 0; rank < comm.size(); ++rank) {
      options.sync.reducer.hosts.push_back(rank / 2);
    }
    replica_ = std::make_unique<Replica>(*device_, small_network(), options);
    replica_->prepare(kBatch, net::Mode::training);
    replica_->plan_exchange();
    replica_->connect(comm);
    replica_->clock().begin();
    const std::string name = parse_codec_spec(codec).name;
    const auto of_codec =
        std::ranges::count_if(replica_->sync().buckets(),
                              [&](const Bucket& bucket) { return bucket.codec.name == name; });
    EXPECT_GE(of_codec, 2) << codec;
  }

  // Steps [from, from + count).
  void train(std::uint64_t from, std::uint64_t count) {
    for (std::uint64_t step = from; step < from + count; ++step) {
      const CounterRng rng(step, RandomStream::test, static_cast<std::uint64_t>(comm_.rank()));
      std::vector<float> images(kBatch * kImage.values());
      for (std::size_t i = 0; i < images.size(); ++i) {
        images[i] = static_cast<float>(rng.uniform(i)) - 0.5f;
      }
      const std::vector<std::int32_t> labels = {static_cast<std::int32_t>(step % 4),
                                                static_cast<std::int32_t>((step + 1) % 4)};
      Batch batch;
      batch.images = images;
      batch.labels = labels;
      batch.samples = kBatch;
      batch.global_samples = kBatch * static_cast<std::size_t>(comm_.size());
      replica_->load(batch);
      replica_->compute(step);
      EXPECT_TRUE(replica_->await_sums(0.0).finite);
      replica_->update(0.05);
      replica_->clock().updated();
    }
    // What this rank still forwards to others has ended.
    replica_->sync().reducer().run([](Communicator&) {});
  }

  // Computes steps without an exchange, on other images.
  std::vector<std::vector<RehearsedStep>> rehearse() {
    std::vector<float> images(kBatch * kImage.values(), 0.25f);
    const std::vector<std::int32_t> labels = {1, 3};
    Batch batch;
    batch.images = images;
    batch.labels = labels;
    batch.samples = kBatch;
    batch.global_samples = kBatch * static_cast<std::size_t>(comm_.size());
    return rehearse_steps(
        *replica_, {.steps = 2, .parts = 2, .next = [&]() -> const Batch& { return batch; }});
  }

  [[nodiscard]] StateList list() {
    StateList list;
    replica_->list_state(list);
    return list;
  }
  [[nodiscard]] Device& device() { return *device_; }
  [[nodiscard]] StateCopy copy() { return copy_state(*device_, list()); }
  void restore(const StateCopy& copy) { restore_state(*device_, list(), copy); }
  // Whether it is so on all ranks.
  [[nodiscard]] bool on_all(bool mine) {
    return replica_->sync().reducer().run(
        [&](Communicator& c) { return c.all_sum(std::int64_t{mine}) == c.size(); });
  }
  std::uint64_t agree() {
    const StateList state = list();
    return replica_->sync().reducer().run(
        [&](Communicator& c) { return agree_on_state(c, state.blocks, device_.get()); });
  }

 private:
  Communicator& comm_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Replica> replica_;
};

// Every codec as it is preset, sparse ones with a share that leaves something to send.
std::vector<std::string> all_codecs() {
  std::vector<std::string> specs;
  for (const CodecInfo& info : codec_list()) {
    std::string spec(info.name);
    if (info.find("ratio") != nullptr) spec += ":ratio=0.1";
    if (spec == "threshold") spec += ":alpha=0.001";
    specs.push_back(spec);
  }
  for (const char* spec : {"ecq:velocity=masked", "ecq:velocity=on"}) specs.emplace_back(spec);
  return specs;
}

// Whether the codec takes the optimiser's momentum, so that only SGD goes with it.
bool takes_momentum(const std::string& spec) {
  return spec.starts_with("dgc") || spec.find("velocity=") != std::string::npos;
}

class RunState : public testing::TestWithParam<std::string> {};

TEST_P(RunState, GivenBackTheSameStepsGiveTheSameBits) {
  Communicator comm, other;
  for (const Topology& topology : topology_list()) {
    for (const bool overlap : {true, false}) {
      SCOPED_TRACE(fmt::format("{}, overlap {}", topology.name, overlap));
      TrainingRun run(comm, GetParam(), std::string(topology.name), overlap);
      run.train(0, kBefore);
      const StateCopy before = run.copy();
      run.train(kBefore, kAfter);
      const std::uint64_t hash = run.agree();
      const StateCopy after = run.copy();
      EXPECT_FALSE(before == after);
      run.restore(before);
      run.train(kBefore, kAfter);
      EXPECT_TRUE(run.copy() == after);
      EXPECT_EQ(run.agree(), hash);

      // Into another object, as a run that is started again does.
      TrainingRun resumed(other, GetParam(), std::string(topology.name), overlap);
      resumed.restore(before);
      resumed.train(kBefore, kAfter);
      EXPECT_TRUE(resumed.copy() == after);
    }
  }
}

// What a prediction computes before the first step, or between steps, changes nothing.
TEST_P(RunState, ARehearsalLeavesNoTrace) {
  Communicator comm, of_other;
  for (const net::OptimizerKind kind : {net::OptimizerKind::sgd, net::OptimizerKind::adam}) {
    const bool is_dgc = GetParam().starts_with("dgc");
    if (takes_momentum(GetParam()) && kind != net::OptimizerKind::sgd) continue;
    const net::OptimizerOptions options = {
        .kind = kind, .momentum = is_dgc ? 0.5f : 0.9f, .weight_decay = 5e-4f};
    TrainingRun run(comm, GetParam(), "ring", true, options, true);
    run.train(0, kBefore);
    const StateCopy before = run.copy();
    const auto steps = run.rehearse();
    EXPECT_TRUE(run.copy() == before);
    ASSERT_EQ(steps.size(), 2u);
    for (const std::vector<RehearsedStep>& step : steps) {
      ASSERT_EQ(step.size(), static_cast<std::size_t>(comm.size()));
      for (const RehearsedStep& rank : step) {
        // Backward goes from the last layer to the first one.
        EXPECT_GT(rank.ready_s.front(), 0.0);
        for (const double ready_s : rank.ready_s) EXPECT_LE(ready_s, rank.backward_end_s);
        EXPECT_GT(rank.update_s, 0.0);
      }
    }
    run.train(kBefore, kAfter);
    TrainingRun other(of_other, GetParam(), "ring", true, options, true);
    other.train(0, kBefore);
    other.train(kBefore, kAfter);
    EXPECT_TRUE(run.copy() == other.copy());
  }
}

// The same through the file of a checkpoint, with every optimiser.
TEST_P(RunState, ACheckpointGivesTheSameBits) {
  Communicator comm, other;
  for (const Topology& topology : topology_list()) {
    for (const net::OptimizerKind kind :
         {net::OptimizerKind::sgd, net::OptimizerKind::adam, net::OptimizerKind::adamw,
          net::OptimizerKind::lars, net::OptimizerKind::muon}) {
      const bool is_dgc = GetParam().starts_with("dgc");
      if (takes_momentum(GetParam()) && kind != net::OptimizerKind::sgd) continue;
      SCOPED_TRACE(fmt::format("{}, {}", topology.name, net::optimizer_name(kind)));
      const net::OptimizerOptions options = {
          .kind = kind, .momentum = is_dgc ? 0.5f : 0.9f, .weight_decay = 5e-4f};
      const auto make = [&](Communicator& of_run) {
        return std::make_unique<TrainingRun>(of_run, GetParam(), std::string(topology.name), true,
                                             options, true);
      };
      const auto run = make(comm), resumed = make(other);
      run->train(0, 2);
      ShardImage image;
      copy_state(run->device(), run->list(), {{std::string(kHeadEntry), ""}}, image);
      const auto file = image.seal();
      const Shard shard({file.begin(), file.end()}, "a");
      run->train(2, 2);
      EXPECT_TRUE(
          restore_state(resumed->device(), resumed->list(), {.replicated = &shard, .own = {&shard}})
              .empty());
      resumed->train(2, 2);
      EXPECT_TRUE(resumed->copy() == run->copy());
    }
  }
}

TEST_P(RunState, EveryPartCounts) {
  Communicator comm;
  TrainingRun run(comm, GetParam(), "direct", true);
  test::expect_every_part_counts(run, kBefore, kAfter);
}

TEST(OptimizerState, EveryPartCounts) {
  std::array<Communicator, 3> comm;
  for (const net::OptimizerKind kind : {net::OptimizerKind::adam, net::OptimizerKind::adamw,
                                        net::OptimizerKind::lars, net::OptimizerKind::muon}) {
    SCOPED_TRACE(net::optimizer_name(kind));
    const net::OptimizerOptions options = {.kind = kind, .weight_decay = 5e-4f, .clip_norm = 1.0};
    TrainingRun run(comm[0], "q8", "ring", true, options);
    test::expect_every_part_counts(run, kBefore, kAfter);
    // Into another object, as a run that is started again does.
    TrainingRun first(comm[1], "q8", "ring", true, options),
        resumed(comm[2], "q8", "ring", true, options);
    first.train(0, kBefore);
    const StateCopy before = first.copy();
    first.train(kBefore, kAfter);
    resumed.restore(before);
    resumed.train(kBefore, kAfter);
    EXPECT_TRUE(resumed.copy() == first.copy());
  }
}

TEST(AverageState, EveryPartCounts) {
  Communicator comm;
  TrainingRun run(comm, "q8", "ring", true, {}, true);
  test::expect_every_part_counts(run, kBefore, kAfter);
}

// dgc keeps the momentum, so that only SGD goes with it.
TEST(OptimizerState, OnlySgdLeavesItsMomentumToTheCodec) {
  Communicator comm;
  std::string message;
  try {
    TrainingRun run(comm, "dgc:ratio=0.1", "ring", true,
                    net::OptimizerOptions{.kind = net::OptimizerKind::adam});
  } catch (const Error& error) {
    message = error.what();
  }
  EXPECT_NE(
      message.find("applies the momentum itself, but adam cannot leave its momentum to a codec"),
      std::string::npos)
      << message;
}

// The ranks r, r + P', r + 2 P', ... of P hand their parts to rank r of P'.
TEST(OwnState, IsConservedWithAnotherNumberOfRanks) {
  constexpr std::size_t kValues = 100;
  const auto device = make_device({.threads = 1, .tune = false});
  struct Owner {
    std::vector<float> residual = std::vector<float>(kValues), mean = std::vector<float>(kValues);
    std::vector<float> weights = std::vector<float>(kValues);
    std::int64_t samples = 0;
    double seconds = 0;
    std::uint64_t bytes = 0;

    [[nodiscard]] StateList list() {
      StateList list;
      list.values("weights", std::span(weights), StateShare::replicated);
      list.values("residual", std::span(residual), StateShare::own);
      list.values("mean", std::span(mean), StateShare::own, StatePlace::device, StateMerge::mean);
      list.value("samples", samples, StateShare::own);
      list.value("seconds", seconds, StateShare::own, StateMerge::first);
      list.object("bytes", bytes, [](std::uint64_t& sum, std::uint64_t more) { sum += more; });
      return list;
    }
  };
  const auto total = [](const std::vector<Owner>& owners, auto field) {
    double sum = 0;
    for (const Owner& owner : owners) sum += static_cast<double>(field(owner));
    return sum;
  };
  for (std::size_t before = 1; before <= 5; ++before) {
    std::vector<Owner> old(before);
    std::vector<Shard> shards;
    for (std::size_t r = 0; r < before; ++r) {
      for (std::size_t i = 0; i < kValues; ++i) {
        // Whole numbers, so that sums are exact.
        old[r].residual[i] = static_cast<float>(i * 7 % 13 + r * 31) - 20.0f;
        old[r].mean[i] = static_cast<float>(8 * r + i);
        old[r].weights[i] = static_cast<float>(i);
      }
      old[r].samples = static_cast<std::int64_t>(10 + r);
      old[r].seconds = 1.0 + static_cast<double>(r);
      old[r].bytes = 1000 * r;
      ShardImage image;
      copy_state(*device, old[r].list(), {{std::string(kHeadEntry), ""}}, image);
      const auto file = image.seal();
      shards.emplace_back(std::vector<std::byte>(file.begin(), file.end()), "part");
    }
    for (std::size_t after = 1; after <= 5; ++after) {
      SCOPED_TRACE(fmt::format("{} ranks, then {}", before, after));
      std::vector<Owner> now(after);
      for (std::size_t r = 0; r < after; ++r) {
        StateSources sources = {
            .replicated = &shards[0], .own = {}, .is_same_run = before == after};
        for (std::size_t from = r; from < before; from += after) {
          sources.own.push_back(&shards[from]);
        }
        EXPECT_TRUE(restore_state(*device, now[r].list(), sources).empty());
        EXPECT_EQ(now[r].weights, old[0].weights);
        EXPECT_EQ(now[r].seconds, r < before ? old[r].seconds : 0.0);
        for (std::size_t i = 0; i < kValues && r < before; ++i) {
          double mean = 0;
          for (std::size_t from = r; from < before; from += after) mean += old[from].mean[i];
          EXPECT_EQ(now[r].mean[i],
                    static_cast<float>(mean / static_cast<double>(sources.own.size())));
        }
      }
      for (std::size_t i = 0; i < kValues; ++i) {
        const auto at = [i](const Owner& owner) { return owner.residual[i]; };
        EXPECT_EQ(total(now, at), total(old, at));
      }
      EXPECT_EQ(total(now, [](const Owner& o) { return o.samples; }),
                total(old, [](const Owner& o) { return o.samples; }));
      EXPECT_EQ(total(now, [](const Owner& o) { return o.bytes; }),
                total(old, [](const Owner& o) { return o.bytes; }));
    }
  }
}

// Two ranks a host; nobody but the first of them encodes with the topology hierarchical.
TEST(OwnState, ResidualsComeToTheLeadersOfTheirHosts) {
  Communicator comm;
  const auto device = make_device({.threads = 1, .tune = false});
  std::vector<int> hosts;
  for (int rank = 0; rank < comm.size(); ++rank) hosts.push_back(rank / 2);
  std::vector<float> residual(1000);
  for (std::size_t i = 0; i < residual.size(); ++i) {
    residual[i] = static_cast<float>(i) + 10000.0f * static_cast<float>(comm.rank() + 1);
  }
  StateList list;
  list.values("exchange/residual", std::span(residual), StateShare::own);
  bring_residuals_to_leaders(*device, comm, list, hosts);
  const int rank = comm.rank();
  const bool has_other = rank + 1 < comm.size();
  for (std::size_t i = 0; i < residual.size(); ++i) {
    const float alone = static_cast<float>(i) + 10000.0f * static_cast<float>(rank + 1);
    const float both = alone + static_cast<float>(i) + 10000.0f * static_cast<float>(rank + 2);
    EXPECT_EQ(residual[i], rank % 2 == 1 ? 0.0f : has_other ? both : alone);
  }
}

TEST(OwnState, WhatHasNoPlaceIsNamed) {
  const auto device = make_device({.threads = 1, .tune = false});
  std::vector<float> values(3), other(4);
  StateList then, now;
  then.values("a", std::span(values), StateShare::replicated);
  then.values("b", std::span(values), StateShare::own);
  then.values("c", std::span(values), StateShare::replicated);
  now.values("a", std::span(values), StateShare::replicated);
  now.values("b", std::span(other), StateShare::own);
  now.values("d", std::span(values), StateShare::replicated);
  ShardImage image;
  copy_state(*device, then, {{std::string(kHeadEntry), ""}}, image);
  const auto file = image.seal();
  const Shard shard({file.begin(), file.end()}, "part");
  EXPECT_EQ(
      restore_state(*device, now, {.replicated = &shard, .own = {&shard}, .is_same_run = false}),
      (std::vector<std::string>{"b", "c"}));
  EXPECT_THROW(
      static_cast<void>(restore_state(*device, now, {.replicated = &shard, .own = {&shard}})),
      Error);
}

TEST(OwnState, SumsThatAreTooLargeAreRefused) {
  const auto device = make_device({.threads = 1, .tune = false});
  std::int64_t samples = std::numeric_limits<std::int64_t>::max() / 2 + 1;
  StateList list;
  list.value("samples", samples, StateShare::own);
  ShardImage image;
  copy_state(*device, list, {{std::string(kHeadEntry), ""}}, image);
  const auto file = image.seal();
  const Shard shard({file.begin(), file.end()}, "part");
  try {
    static_cast<void>(restore_state(
        *device, list, {.replicated = &shard, .own = {&shard, &shard}, .is_same_run = false}));
    ADD_FAILURE() << samples;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
  }
}

std::string case_name(const testing::TestParamInfo<std::string>& spec) {
  const std::string name = spec.param.substr(0, spec.param.find(':'));
  const std::size_t velocity = spec.param.find("velocity=");
  if (velocity == std::string::npos) return name;
  return name + "_velocity_" + spec.param.substr(spec.param.find('=', velocity) + 1);
}
INSTANTIATE_TEST_SUITE_P(Codecs, RunState, testing::ValuesIn(all_codecs()), case_name);

// Earlier versions wrote options that are keys today, with and without a use for them.
TEST(Fingerprint, OptionsOfEarlierVersionsAreCompared) {
  Options options;
  CheckpointHead head;
  add_options(head, options);
  head.set("option.lr-gamma", std::string("0.5"));
  head.set("option.muon-lr", std::string("0.1"));
  EXPECT_TRUE(compare_options(head, options).empty());
  options.lr_schedule = Options::LrSchedule::step;
  options.lr_milestones = {1, 2};
  add_options(head, options);
  head.set("option.lr-schedule", std::string("step"));
  head.set("option.lr-gamma", std::string("0.1"));
  head.set("option.lr-milestones", std::string("1,2"));
  EXPECT_TRUE(compare_options(head, options).empty());
  head.set("option.lr-milestones", std::string("1,3"));
  EXPECT_EQ(compare_options(head, options),
            std::vector<std::string>{"--lr-schedule step:milestones=1/2 instead of "
                                     "step:milestones=1/3"});
  head.set("option.lr-gamma", std::string("0.5"));
  EXPECT_THROW(static_cast<void>(compare_options(head, options)), Error);
}

// Keys of --sync-every that this build does not have: such a run cannot go on.
TEST(Fingerprint, ARunWithARemovedKeyIsRefused) {
  Options options;
  options.sync_every = parse_round_schedule("4");
  CheckpointHead head;
  add_options(head, options);
  EXPECT_TRUE(compare_options(head, options).empty());
  head.set("option.sync-every", std::string("4:decay=0.5"));
  try {
    static_cast<void>(compare_options(head, options));
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_TRUE(std::string(error.what()).starts_with("--sync-every 4: the run in --checkpoint"))
        << error.what();
    EXPECT_NE(std::string(error.what()).find("was begun with 4:decay=0.5"), std::string::npos)
        << error.what();
  }
}

// A rank whose processor or threads are others computes other bits, whichever rank it is.
TEST(Fingerprint, TheDeviceOfEveryRankIsCompared) {
  Communicator comm;
  const auto device = make_device({.threads = 1, .tune = false});
  const RunFacts facts = {.ranks = comm.hosts().size(), .hosts = comm.hosts(), .device = "new"};
  const auto told = [&](const std::string& device_then) {
    RunFacts then = facts;
    then.device = device_then;
    ResumePoint point;
    add_facts(point.head, then);
    ShardImage image;
    copy_state(*device, {}, {{std::string(kHeadEntry), point.head.text()}}, image);
    const auto file = image.seal();
    point.own.emplace_back(std::vector<std::byte>(file.begin(), file.end()), "part");
    return compare_machine(comm, point, Options(), facts);
  };
  using Lines = std::vector<std::string>;
  const bool is_told = comm.rank() == 0;
  EXPECT_EQ(told("new"), Lines{});
  EXPECT_EQ(told("old"), is_told ? Lines{"the device new instead of old"} : Lines{});
  EXPECT_EQ(
      told(comm.rank() == 1 ? "old" : "new"),
      is_told && comm.size() > 1 ? Lines{"the device of rank 1 new instead of old"} : Lines{});
}

TEST(AgreeOnState, NamesTheFirstTensorThatDiffers) {
  Communicator comm;
  if (comm.size() < 2) GTEST_SKIP() << "one rank differs from nobody";
  TrainingRun run(comm, "q8", "ring", true);
  run.train(0, 1);
  StateList list = run.list();
  const auto statistic = std::ranges::find(list.blocks, StateShare::own, &StateBlock::share);
  ASSERT_NE(statistic, list.blocks.end());
  static_cast<void>(run.agree());  // a rank's own differ, and may
  // The second tensor, and one behind it.
  if (comm.rank() == comm.size() - 1) {
    list.blocks[1].bytes[5] ^= std::byte{1};
    list.blocks[2].bytes[0] ^= std::byte{1};
  }
  std::string message;
  try {
    static_cast<void>(run.agree());
  } catch (const Error& error) {
    message = error.what();
  }
  EXPECT_NE(message.find("first in " + list.blocks[1].name + " ("), std::string::npos) << message;
  if (comm.size() > 2) {
    EXPECT_NE(message.find(fmt::format("rank {} on host ", comm.size() - 1)), std::string::npos)
        << message;
  }
}

}  // namespace
}  // namespace dp
