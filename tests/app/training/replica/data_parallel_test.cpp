// P ranks on parts of a batch are one rank on the whole batch: same losses, same parameters up to
// the order of additions. The network has batch normalisation only where its statistics are those
// of all ranks. The images are not square. The last step of the epoch is uneven, and with more than
// two ranks some have no sample in it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "app/training/replica/replica.hpp"
#include "comm/replica_hash.hpp"
#include "io/images/loader.hpp"
#include "kernels/base/random.hpp"
#include "kernels/sgd.hpp"
#include "kernels/softmax_cross_entropy.hpp"
#include "net/layers/batch_norm.hpp"
#include "net/layers/conv2d.hpp"
#include "net/layers/dropout.hpp"
#include "net/layers/elementwise.hpp"
#include "net/layers/linear.hpp"
#include "net/layers/pool.hpp"
#include "net/network.hpp"
#include "tests/support/skipped.hpp"
#include "tests/support/state_list.hpp"

namespace dp {
namespace {

constexpr std::size_t kSamples = 26, kGlobalBatch = 12;  // steps of 12, 12 and 2
constexpr ImageShape kImage{.height = 24, .width = 40};

net::Graph plain_network(bool has_norm = false) {
  net::Graph graph(kImage);
  net::Value x =
      graph.add<net::Conv2dLayer>("conv1", {.channels = 16, .stride = 2}, {graph.images()});
  if (has_norm) {
    x = graph.add<net::BatchNormLayer>("norm1", {.has_relu = true}, {x});
  } else {
    x = graph.add<net::ReluLayer>("relu1", {}, {x});
  }
  const net::Value y = graph.add<net::Conv2dLayer>("conv2", {.channels = 16}, {x});
  if (has_norm) {
    x = graph.add<net::BatchNormLayer>("norm2", {.has_relu = true, .has_addend = true}, {y, x});
  } else {
    x = graph.add<net::AddLayer>("add", {}, {x, y});
  }
  x = graph.add<net::AveragePoolLayer>("pool", {}, {x});
  x = graph.add<net::GlobalAveragePoolLayer>("mean", {}, {x});
  // Its mask depends on a sample's place in the batch of all ranks, not on the rank.
  x = graph.add<net::DropoutLayer>("dropout", {.probability = 0.25}, {x});
  graph.add<net::LinearLayer>("linear", {.outputs = 10}, {x});
  return graph;
}

ImageSet random_images() {
  const CounterRng rng(7, RandomStream::test);
  std::vector<std::uint8_t> pixels(kSamples * kImage.values());
  std::vector<std::int32_t> labels(kSamples);
  for (std::size_t i = 0; i < pixels.size(); ++i) {
    pixels[i] = static_cast<std::uint8_t>(rng.bits(i) & 255);
  }
  for (std::size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<std::int32_t>(i % 10);
  return {{.name = "random", .class_names = std::vector<std::string>(10, "class"), .shape = kImage},
          pixels,
          labels};
}

// One rank's work without any exchange: forward, loss, backward, update.
struct Alone {
  Alone(const ImageSet& set, bool has_norm)
      : device(make_device({.tune = false})),
        network(*device, plain_network(has_norm), DataType::f32, 3),
        loader(set, {.global_batch = kGlobalBatch, .seed = 5}),
        velocity(network.parameters().size()) {
    for (std::size_t n = 1; n <= loader.largest_batch(); ++n) {
      network.prepare(n, net::Mode::training);
    }
  }

  // The loss summed over the batch; gradients of its mean.
  double gradients(const Batch& batch) {
    const TensorView images = {network.images_desc(batch.samples),
                               const_cast<float*>(batch.images.data())};
    const TensorView logits = network.forward(images, net::Mode::training);
    LossSums sums;
    softmax_cross_entropy(*device, logits, batch.labels.data(), 0.0f,
                          static_cast<double>(batch.global_samples), network.logit_gradient(),
                          &sums);
    network.backward(images, nullptr);
    return sums.loss;
  }
  void update() {
    const SgdStep step{.learning_rate = 0.1f, .weight_decay = 5e-4f};
    sgd_update(*device, network.parameters().values(), network.parameters().gradients(), velocity,
               &step, nullptr);
  }

  std::unique_ptr<Device> device;
  net::Network network;
  Loader loader;
  std::vector<float> velocity;
};

// The device that the test is about: DP_TEST_DEVICE=cuda runs the ranks on GPUs.
DeviceOptions part_device(const Communicator& comm) {
  const char* kind = std::getenv("DP_TEST_DEVICE");
  const bool is_gpu = kind != nullptr && std::string(kind) == "cuda";
  return {.kind = is_gpu ? DeviceKind::cuda : DeviceKind::cpu,
          .tune = false,
          .index = comm.local_rank()};
}

// Prepares the replica for all batches of the loader and connects it with the other ranks.
void connect(Replica& replica, const Loader& loader, Communicator& comm) {
  for (std::size_t n = 1; n <= loader.largest_batch(); ++n) {
    replica.prepare(n, net::Mode::training);
  }
  replica.plan_exchange();
  replica.connect(comm);
}

struct ParallelCase {
  ExchangePath path = ExchangePath::host;
  bool has_norm = false;
  std::string topology = "ring";
  bool has_shares = false;  // uneven ones, which change
};

void PrintTo(const ParallelCase& c, std::ostream* out) {
  *out << (c.path == ExchangePath::host ? "host" : "device") << ", " << c.topology
       << (c.has_norm ? ", statistics of all ranks" : "")
       << (c.has_shares ? ", uneven shares" : "");
}

class DataParallel : public testing::TestWithParam<ParallelCase> {};

// norm(a - b) / norm(b)
double relative_difference(std::span<const float> a, std::span<const float> b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    difference += d * d;
    norm += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return std::sqrt(difference / norm);
}

// Other ones after each step; with some, a rank has no image.
Shares shares_of(std::uint64_t step, std::size_t ranks) {
  std::vector<std::uint64_t> weights;
  for (std::size_t r = 0; r < ranks; ++r) weights.push_back(1 + (r + step) % 3 * 4);
  return Shares(std::move(weights));
}

TEST_P(DataParallel, RanksTogetherAreOneRank) {
  Communicator comm;
  const auto rank = static_cast<std::size_t>(comm.rank());
  const auto ranks = static_cast<std::size_t>(comm.size());
  const ImageSet set = random_images();
  const ParallelCase& setting = GetParam();
  Alone alone(set, setting.has_norm);

  const std::unique_ptr<Device> device = make_device(part_device(comm));
  const bool is_gpu = device->kind() == DeviceKind::cuda;
  if (!is_gpu && setting.path != ExchangePath::host) GTEST_SKIP() << "a CPU has one path";
  ReplicaOptions options;
  options.seed = 3;
  options.optimizer = {.weight_decay = 5e-4f};
  options.sync.bucket_bytes = 4096;
  options.sync.path = setting.path;
  options.sync.reducer.topology = setting.topology;
  options.batch_norm_ranks = setting.has_norm ? ranks : 1;
  options.sync.reducer.comm_timeout_s = 30;
  Replica replica(*device, plain_network(setting.has_norm), options);
  LoaderOptions loading = {.global_batch = kGlobalBatch, .rank = rank, .ranks = ranks, .seed = 5};
  if (is_gpu) {
    loading.is_raw = true;
    loading.allocate = [&](std::size_t bytes) { return device->allocate_host(bytes); };
  }
  Loader loader(set, loading);
  // Other sizes are prepared when they come, but not where a GPU gathers values of all ranks.
  const bool has_all = setting.has_shares && setting.has_norm && is_gpu;
  for (std::size_t n = 1; n <= (has_all ? kGlobalBatch : loader.largest_batch()); ++n) {
    replica.prepare(n, net::Mode::training);
  }
  replica.plan_exchange();
  EXPECT_GT(replica.sync().buckets().size(), 2u);
  replica.connect(comm);
  net::Parameters& parameters = replica.network().parameters();

  std::uint64_t step = 0;
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
    alone.loader.start_epoch(epoch);
    loader.start_epoch(epoch);
    replica.clock().begin();
    for (std::size_t s = 0; s < loader.steps(); ++s, ++step) {
      alone.network.position().step = step;
      const double whole_loss = alone.gradients(alone.loader.next());
      const auto whole = alone.network.parameters().gradients();
      const std::vector<float> alone_gradients(whole.begin(), whole.end());
      alone.update();

      const Batch& batch = loader.next();
      replica.prepare(batch.samples, net::Mode::training);
      replica.load(batch);
      replica.compute(step);
      replica.await_loaded();
      if (setting.has_shares) loader.set_shares(shares_of(step, ranks));
      EXPECT_TRUE(replica.await_sums(0.0).finite);
      if (step == 0) {
        // The same parameters on both sides: only the order of additions differs, a few units in
        // the last place (2^-24) of a sum of 12 samples times some hundred pixels.
        EXPECT_LT(relative_difference(to_host(*device, parameters.gradients()), alone_gradients),
                  2e-6);
      }
      replica.update(0.1);
      replica.clock().updated();
      const double loss = replica.loss().loss;
      const double sum =
          replica.sync().reducer().run([&](Communicator& all) { return all.all_sum(loss); });
      EXPECT_NEAR(sum, whole_loss, 1e-4 * std::abs(whole_loss)) << "step " << step;
    }
    const LoopTimes times = replica.clock().take(true);
    EXPECT_GT(times.step(), 0.0);
    for (const double part : {times.data, times.forward, times.backward, times.exposed_comm,
                              times.optimizer, times.other}) {
      EXPECT_GE(part, 0.0);
    }
  }
  const std::vector<float> values = to_host(*device, parameters.values());
  const std::uint64_t hash =
      replica.sync().reducer().run([&](Communicator& c) { return agree_on_hash(c, values); });
  EXPECT_NE(hash, 0u);

  if (setting.has_norm) {
    // Also on the ranks that had no sample in the last steps.
    const std::vector<float> statistics = to_host(*device, parameters.training_statistics());
    replica.sync().reducer().run([&](Communicator& all) { return agree_on_hash(all, statistics); });
    EXPECT_LT(relative_difference(statistics, alone.network.parameters().training_statistics()),
              1e-4);
    const CommCost cost = replica.sync().reducer().take_times().total;
    // Of each step: two layers of 16 channels, two passes.
    const std::size_t gatherings = ranks > 1 ? 4 * step : 0;
    EXPECT_EQ(cost.gathered.gatherings, gatherings);
    EXPECT_EQ(cost.gathered.sent_bytes, gatherings * (ranks - 1) * (20 + 4 * 33));
  }

  // Later a unit near the ReLU's kink may fall on its other side, and 9 steps accumulate it.
  EXPECT_LT(relative_difference(values, alone.network.parameters().values()), 5e-4);
}

// A bias that is trained in two epochs changes in these and stays from then on; the rest goes on.
// What has no gradient is not exchanged.
TEST(TrainedEpochs, ParameterStaysAfterItsLast) {
  Communicator comm;
  const auto rank = static_cast<std::size_t>(comm.rank());
  const auto ranks = static_cast<std::size_t>(comm.size());
  const ImageSet set = random_images();
  net::Graph graph(kImage);
  net::Value x = graph.add<net::Conv2dLayer>(
      "conv", {.channels = 16, .has_bias = true, .is_frozen = true, .bias_epochs = 2},
      {graph.images()});
  x = graph.add<net::GlobalAveragePoolLayer>("mean", {}, {x});
  graph.add<net::LinearLayer>("linear", {.outputs = 10}, {x});
  const std::unique_ptr<Device> device = make_device({.tune = false});
  ReplicaOptions options;
  options.sync.reducer.comm_timeout_s = 30;
  Replica replica(*device, std::move(graph), options);
  Loader loader(set, {.global_batch = kGlobalBatch, .rank = rank, .ranks = ranks, .seed = 5});
  for (std::size_t n = 1; n <= loader.largest_batch(); ++n) {
    replica.prepare(n, net::Mode::training);
  }
  replica.plan_exchange();
  std::size_t exchanged = 0;
  for (const auto& bucket : replica.sync().buckets()) exchanged += bucket.elements;
  net::Parameters& parameters = replica.network().parameters();
  EXPECT_EQ(exchanged, parameters.size());
  EXPECT_EQ(parameters.frozen_size(), 16u * 3u * 9u);
  replica.connect(comm);
  const std::vector<float> frozen = to_host(*device, parameters.frozen_values());
  std::vector<float> before = to_host(*device, parameters.values());
  std::uint64_t step = 0;
  for (std::size_t epoch = 0; epoch < 4; ++epoch) {
    loader.start_epoch(epoch);
    replica.begin_epoch(epoch);
    for (std::size_t s = 0; s < loader.steps(); ++s) {
      replica.load(loader.next());
      replica.compute(step++);
      replica.await_loaded();
      EXPECT_TRUE(replica.await_sums(0.0).finite);
      replica.update(0.1);
      replica.clock().updated();
    }
    const std::vector<float> after = to_host(*device, parameters.values());
    for (const net::Parameter& t : parameters.tensors()) {
      const bool is_equal =
          std::equal(after.begin() + static_cast<std::ptrdiff_t>(t.offset),
                     after.begin() + static_cast<std::ptrdiff_t>(t.offset + t.elements),
                     before.begin() + static_cast<std::ptrdiff_t>(t.offset));
      EXPECT_EQ(is_equal, t.name == "conv.bias" && epoch >= 2) << t.name << " in epoch " << epoch;
    }
    before = after;
  }
  EXPECT_EQ(to_host(*device, parameters.frozen_values()), frozen);
}

INSTANTIATE_TEST_SUITE_P(Paths, DataParallel,
                         testing::Values(ParallelCase{}, ParallelCase{ExchangePath::device},
                                         ParallelCase{ExchangePath::host, true},
                                         ParallelCase{ExchangePath::device, true},
                                         ParallelCase{ExchangePath::host, true, "direct"},
                                         ParallelCase{ExchangePath::host, true, "tree"},
                                         ParallelCase{ExchangePath::host, true, "hierarchical"},
                                         ParallelCase{ExchangePath::host, true, "ps"},
                                         ParallelCase{ExchangePath::host, false, "ring", true},
                                         ParallelCase{ExchangePath::device, false, "ring", true},
                                         ParallelCase{ExchangePath::host, true, "direct", true}),
                         [](const auto& row) {
                           const ParallelCase& c = row.param;
                           return std::string(c.path == ExchangePath::host ? "host" : "device") +
                                  (c.has_norm ? "_norm_" + c.topology : "") +
                                  (c.has_shares ? "_shares" : "");
                         });

// The batches of P ranks, computed by one rank in P parts. With two ranks both add the same two
// numbers, so that the bits are equal, also those of normalisation's parameters, because each part
// is normalised by its own statistics. With more ranks the order of additions differs.
net::Graph normalised_network() {
  net::Graph graph(kImage);
  net::Value x =
      graph.add<net::Conv2dLayer>("conv1", {.channels = 16, .stride = 2}, {graph.images()});
  x = graph.add<net::BatchNormLayer>("bn1", {}, {x});
  x = graph.add<net::ReluLayer>("relu1", {}, {x});
  // Large enough to be compressed.
  x = graph.add<net::Conv2dLayer>("conv2", {.channels = 64, .stride = 2}, {x});
  x = graph.add<net::GlobalAveragePoolLayer>("mean", {}, {x});
  graph.add<net::LinearLayer>("linear", {.outputs = 10}, {x});
  return graph;
}

// What a run of six steps leaves after each.
struct Course {
  std::vector<double> losses;  // sums over all ranks
  std::vector<std::int64_t> samples;
  std::vector<std::vector<float>> values;
  bool has_momentum = false;  // the exchange, for the largest tensor
  std::size_t early_updates = 0;
};

struct Training {
  std::size_t parts = 1;  // in which each rank computes its batch
  net::OptimizerOptions optimizer = {.weight_decay = 5e-4f, .clip_norm = 0.5};
  std::string compress = "none";
  net::GroupOptions groups = {};
  ExchangePath path = ExchangePath::automatic;
  AverageOptions averages = {};
  std::optional<RoundOptions> rounds = {};
  bool updates_early = true;
};

// For a rank of `comm`, whose ranks train together.
LoaderOptions loading_of(const Communicator& comm, Device& device, std::size_t parts = 1) {
  LoaderOptions loading = {.global_batch = kGlobalBatch,
                           .rank = static_cast<std::size_t>(comm.rank()),
                           .ranks = static_cast<std::size_t>(comm.size()),
                           .parts = parts,
                           .seed = 5};
  if (device.kind() == DeviceKind::cuda) {
    loading.is_raw = true;
    loading.allocate = [&](std::size_t bytes) { return device.allocate_host(bytes); };
  }
  return loading;
}

// `comm` has the ranks that train together.
Course train(Communicator& comm, const ImageSet& set, const Training& training) {
  const std::size_t parts = training.parts;
  const std::unique_ptr<Device> device = make_device(part_device(comm));
  ReplicaOptions options;
  options.seed = 3;
  options.optimizer = training.optimizer;
  options.groups = training.groups;
  options.averages = training.averages;
  options.rounds = training.rounds;
  options.sync.path = training.path;
  options.sync.compress = parse_compress(training.compress);
  options.label_smoothing = 0.1;
  options.accumulates = parts > 1;
  options.sync.bucket_bytes = 4096;
  options.sync.reducer.topology = "direct";
  options.sync.reducer.comm_timeout_s = 30;
  Loader loader(set, loading_of(comm, *device, parts));
  Replica replica(*device, normalised_network(), options);
  connect(replica, loader, comm);
  Course course;
  std::uint64_t step = 0;
  for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
    loader.start_epoch(epoch);
    replica.clock().begin();
    for (std::size_t s = 0; s < loader.steps(); ++s, ++step) {
      replica.policy().plan_step({.step = step, .of_epoch = loader.steps(), .learning_rate = 0.1});
      for (std::size_t part = 0; part < parts; ++part) {
        replica.load(loader.next());
        replica.compute(step, part + 1 == parts);
        replica.await_loaded();
      }
      const Replica::UpdateNumbers update = {.learning_rate = 0.1, .progress = 0.1};
      const auto planned = training.updates_early ? std::optional(update) : std::nullopt;
      EXPECT_TRUE(replica.await_sums(0.0, planned).finite);
      if (replica.is_updated_early()) ++course.early_updates;
      replica.update(update.learning_rate, update.progress);
      replica.clock().updated();
      const LossSums mine = replica.loss();
      replica.sync().reducer().run([&](Communicator& c) {
        course.losses.push_back(c.all_sum(mine.loss));
        course.samples.push_back(c.all_sum(mine.samples));
      });
      course.values.push_back(to_host(*device, replica.network().parameters().values()));
    }
    const LoopTimes times = replica.clock().take(true);
    for (const double time :
         {times.data, times.forward, times.backward, times.exposed_comm, times.optimizer}) {
      EXPECT_GE(time, 0.0);
    }
    EXPECT_GT(times.forward, 0.0);
  }
  const auto& tensors = replica.network().parameters().tensors();
  course.has_momentum = replica.sync().has_momentum(static_cast<std::size_t>(
      std::ranges::max_element(tensors, {}, &net::Parameter::elements) - tensors.begin()));
  // What this rank still forwards to others has ended.
  replica.sync().reducer().run([](Communicator&) {});
  return course;
}

// At few bits a gradient is taken ahead of the common parameters, by half of what this rank expects
// to wait on all ranks, or by a twentieth of their norm, and then these have their bits again.
TEST(AheadOfTheOthers, GradientsAreTakenWhereTheSumWillLead) {
  Communicator comm;
  DP_NEEDS_RANKS(comm, 2);
  const ImageSet set = random_images();
  for (const double rate : {1e-3, 100.0}) {
    SCOPED_TRACE(rate);
    const std::unique_ptr<Device> device = make_device(part_device(comm));
    ReplicaOptions options;
    options.optimizer = {.momentum = 0.9f};
    options.groups = {.lr_factors = {{"conv2*", 3.0}}};
    options.sync.compress = parse_compress("ecq:bits=0.05,velocity=masked");
    options.sync.bucket_bytes = 4096;
    options.sync.reducer.topology = "direct";
    options.sync.reducer.comm_timeout_s = 30;
    Loader loader(set, loading_of(comm, *device));
    Replica replica(*device, normalised_network(), options);
    connect(replica, loader, comm);
    net::Parameters& parameters = replica.network().parameters();
    std::size_t steps_ahead = 0;
    for (std::uint64_t step = 0; step < 6; ++step) {
      if (step % loader.steps() == 0) {
        loader.start_epoch(step / loader.steps());
        replica.clock().begin();
      }
      const std::vector<float> common = to_host(*device, parameters.values());
      std::vector<double> way(common.size());
      double way_squares = 0, squares = 0;
      for (const UndeliveredPart& part : replica.sync().undelivered_parts()) {
        const std::vector<float> residual =
            replica.sync().path() == "host"
                ? std::vector(part.residual.begin(), part.residual.end())
                : to_host(*device, part.residual);
        const double factor = parameters.tensors()[part.tensor].name == "conv2.weight" ? 3.0 : 1.0;
        for (std::size_t i = 0; i < residual.size(); ++i) {
          double& value = way[part.offset + i];
          value = rate * factor * part.times * static_cast<double>(residual[i]);
          way_squares += value * value;
        }
      }
      for (const float value : common) {
        squares += static_cast<double>(value) * static_cast<double>(value);
      }
      const double limit = 0.05 * std::sqrt(squares / std::max(way_squares, 1e-30));
      if (way_squares > 0) {
        const bool is_limited = limit < 0.5;
        EXPECT_EQ(is_limited, rate == 100.0) << "both cases are tested";
        ++steps_ahead;
      }
      replica.policy().plan_step({.step = step, .in_epoch = 1, .learning_rate = rate});
      replica.load(loader.next());
      replica.compute(step);
      replica.await_loaded();
      device->synchronize();
      const std::vector<float> ahead = to_host(*device, parameters.values());
      for (std::size_t i = 0; i < common.size(); ++i) {
        const double want = static_cast<double>(common[i]) - std::min(0.5, limit) * way[i];
        // Some roundings of a float, 2^-24 each.
        ASSERT_NEAR(ahead[i], want, 1e-6 * (std::abs(want) + std::abs(way[i]))) << "value " << i;
      }
      EXPECT_TRUE(replica.await_sums(0.0).finite);
      EXPECT_EQ(to_host(*device, parameters.values()), common) << "step " << step;
      replica.update(1e-3);
      replica.clock().updated();
    }
    EXPECT_GE(steps_ahead, 4u);
    const std::vector<float> values = to_host(*device, parameters.values());
    replica.sync().reducer().run([&](Communicator& c) { return agree_on_hash(c, values); });
  }
}

// The reducer's thread enqueues the same update as the training loop would. This includes separate
// memory for the exchange (rounds with a delay), gradients taken ahead, and averages.
TEST(EarlyUpdates, ChangeNoBit) {
  Communicator comm;
  const ImageSet set = random_images();
  const AverageOptions averages = {.ema_decay = 0.9, .lookahead_every = 2};
  const net::OptimizerOptions sgd = {.weight_decay = 5e-4f};
  const std::vector<Training> trainings = {
      {.optimizer = sgd, .path = ExchangePath::host, .averages = averages},
      {.path = ExchangePath::device, .averages = averages},
      {.parts = 2, .optimizer = {.kind = net::OptimizerKind::adamw}, .compress = "q8"},
      {.optimizer = sgd, .compress = "ecq:bits=0.05,velocity=masked"},
      {.optimizer = sgd,
       .rounds = RoundOptions{.ranks = static_cast<std::size_t>(comm.size()), .delay = 1}}};
  std::size_t early_updates = 0;
  for (std::size_t i = 0; i < trainings.size(); ++i) {
    Training training = trainings[i];
    const Course early = train(comm, set, training);
    training.updates_early = false;
    const Course late = train(comm, set, training);
    EXPECT_EQ(early.values, late.values) << "training " << i;
    EXPECT_EQ(early.losses, late.losses) << "training " << i;
    EXPECT_EQ(late.early_updates, 0u);
    early_updates += early.early_updates;
  }
  // An update is late if the exchange ends before the loop waits for it.
  const bool is_gpu = part_device(comm).kind == DeviceKind::cuda;
  EXPECT_EQ(early_updates > 0, is_gpu) << early_updates;
}

// A step that is not finite changes neither parameters nor the optimiser's state, although the loop
// has handed over its update.
TEST(EarlyUpdates, AStepThatIsNotFiniteChangesNothing) {
  Communicator comm;
  const ImageSet set = random_images();
  using net::OptimizerKind;
  for (const OptimizerKind kind : {OptimizerKind::sgd, OptimizerKind::adam, OptimizerKind::adamw,
                                   OptimizerKind::lars, OptimizerKind::muon}) {
    SCOPED_TRACE(net::optimizer_name(kind));
    const std::unique_ptr<Device> device = make_device(part_device(comm));
    ReplicaOptions options;
    options.optimizer = {.kind = kind, .weight_decay = 5e-4f};
    options.averages = {.ema_decay = 0.9};
    options.sync.bucket_bytes = 4096;
    options.sync.reducer.comm_timeout_s = 30;
    Loader loader(set, loading_of(comm, *device));
    Replica replica(*device, normalised_network(), options);
    connect(replica, loader, comm);
    replica.clock().begin();
    const auto state = [&] {  // without what the exchange keeps
      StateList list;
      replica.list_state(list);
      std::erase_if(list.blocks,
                    [](const StateBlock& block) { return block.name.starts_with("exchange/"); });
      return test::copy_state(*device, list).blocks;
    };
    float& spoilt = *replica.network().parameters().values().data();
    for (std::uint64_t step = 0; step < 8; ++step) {
      if (step % loader.steps() == 0) loader.start_epoch(step / loader.steps());
      const bool is_bad = step == 3 || step == 4;  // every rank has images
      const std::vector<float> values = to_host(*device, replica.network().parameters().values());
      const float bad = std::numeric_limits<float>::quiet_NaN();
      const bool spoils = is_bad && comm.rank() == comm.size() - 1;
      if (spoils) device->upload(&spoilt, &bad, sizeof bad);
      const auto before = state();
      replica.load(loader.next());
      replica.compute(step);
      replica.await_loaded();
      const Replica::UpdateNumbers update = {.learning_rate = 0.01};
      EXPECT_EQ(replica.await_sums(0.0, update).finite, !is_bad);
      if (is_bad) {
        EXPECT_FALSE(replica.is_updated_early());
        replica.skip_update();
      } else {
        replica.update(update.learning_rate);
      }
      replica.clock().updated();
      EXPECT_EQ(state() == before, is_bad) << "step " << step;
      if (spoils) device->upload(&spoilt, values.data(), sizeof bad);
    }
    const std::vector<float> values = to_host(*device, replica.network().parameters().values());
    replica.sync().reducer().run([&](Communicator& c) { return agree_on_hash(c, values); });
  }
}

TEST(Accumulation, PartsAreRanks) {
  Communicator comm;
  const auto ranks = static_cast<std::size_t>(comm.size());
  const ImageSet set = random_images();
  const Course together = train(comm, set, {});
  Communicator self(MPI_COMM_SELF);
  const Course alone = train(self, set, {.parts = ranks});
  EXPECT_EQ(alone.samples, (std::vector<std::int64_t>{12, 12, 2, 12, 12, 2}));
  EXPECT_EQ(alone.samples, together.samples);
  for (std::size_t step = 0; step < alone.values.size(); ++step) {
    if (ranks <= 2) {
      EXPECT_EQ(alone.losses[step], together.losses[step]) << "step " << step;
      EXPECT_EQ(alone.values[step], together.values[step]) << "step " << step;
    } else {
      // As for RanksTogetherAreOneRank, over six steps.
      EXPECT_NEAR(alone.losses[step], together.losses[step], 1e-4 * together.losses[step]);
      EXPECT_LT(relative_difference(alone.values[step], together.values[step]), 1e-5)
          << "step " << step;
    }
  }
}

// SGD's momentum before the exchange, and weight decay before that, are those behind it: the same
// bits on one rank. On more ranks dgc's masking leaves no momentum where everything is sent. Of a
// batch in parts, which may be those of more ranks, the decay is added once.
TEST(MomentumBeforeTheExchange, IsThatOfSgd) {
  Communicator comm;
  const ImageSet set = random_images();
  const bool is_alone = comm.size() == 1;
  Training behind;
  behind.optimizer = {.momentum = is_alone ? 0.9f : 0.0f, .weight_decay = 5e-3f};
  behind.groups = {.decay_factors = {{"conv2*", 20.0}}};
  const Course want = train(comm, set, behind);
  EXPECT_FALSE(want.has_momentum);
  Training before = behind;
  before.compress = is_alone ? "dgc:ratio=1,momentum=0.9" : "dgc:ratio=1";
  const Course got = train(comm, set, before);
  EXPECT_TRUE(got.has_momentum);
  Communicator self(MPI_COMM_SELF);
  Training in_parts = before;
  in_parts.parts = is_alone ? 2 : static_cast<std::size_t>(comm.size());
  if (!is_alone) in_parts.compress = "dgc:ratio=1,momentum=0";
  const Course parts = train(self, set, in_parts);
  EXPECT_TRUE(parts.has_momentum);
  Training plain_parts = behind;
  plain_parts.parts = in_parts.parts;
  const Course want_parts = train(self, set, plain_parts);
  for (std::size_t step = 0; step < want.values.size(); ++step) {
    if (is_alone) {
      EXPECT_EQ(got.values[step], want.values[step]) << "step " << step;
    } else {
      EXPECT_LT(relative_difference(got.values[step], want.values[step]), 1e-5) << "step " << step;
    }
    EXPECT_EQ(parts.values[step], want_parts.values[step]) << "step " << step;
  }
  Training without = before;
  without.groups = {};
  EXPECT_GT(relative_difference(train(comm, set, without).values.back(), want.values.back()), 1e-3);
}

}  // namespace
}  // namespace dp
