#include "tests/app/training/replica/rounds_run.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <string_view>
#include <thread>
#include <utility>

#include "comm/replica_hash.hpp"
#include "kernels/base/random.hpp"
#include "net/graph.hpp"
#include "net/layers/batch_norm.hpp"
#include "net/layers/conv2d.hpp"
#include "net/layers/linear.hpp"
#include "net/layers/pool.hpp"

namespace dp::test {
namespace {

constexpr ImageShape kImage{.height = 16, .width = 16};
constexpr std::size_t kBatch = 2;  // of a rank

net::Graph small_network() {
  net::Graph graph(kImage);
  net::Value x =
      graph.add<net::Conv2dLayer>("conv1", {.channels = 16, .stride = 2}, {graph.images()});
  x = graph.add<net::BatchNormLayer>("bn1", {}, {x});
  x = graph.add<net::Conv2dLayer>("conv2", {.channels = 32, .stride = 2}, {x});
  x = graph.add<net::Conv2dLayer>("conv3", {.channels = 32}, {x});
  x = graph.add<net::GlobalAveragePoolLayer>("mean", {}, {x});
  graph.add<net::LinearLayer>("linear", {.outputs = 4}, {x});
  return graph;
}

}  // namespace

TrainingRun::TrainingRun(Communicator& comm, RoundSetting setting)
    : comm_(comm),
      setting_(std::move(setting)),
      device_(make_device({.threads = 1, .tune = false})) {
  ReplicaOptions options;
  options.seed = 3;
  options.optimizer = setting_.optimizer;
  options.exchange = setting_.exchange;
  if (setting_.exchange) {
    options.rounds = setting_.rounds;
    options.rounds->ranks = static_cast<std::size_t>(comm.size());
  }
  if (setting_.has_averages) options.averages.ema_decay = 0.9;
  if (setting_.has_averages || setting_.has_lookahead) options.averages.lookahead_every = 3;
  options.sync.compress = parse_compress(setting_.codec);
  options.sync.bucket_bytes = 4096;
  options.sync.reducer.topology = setting_.topology;
  if (setting_.topology == "hierarchical") {
    for (int r = 0; r < comm.size(); ++r) options.sync.reducer.hosts.push_back(r / 2);
  }
  options.sync.reducer.comm_timeout_s = 30;
  replica_ = std::make_unique<Replica>(*device_, small_network(), options);
  replica_->prepare(kBatch, net::Mode::training);
  replica_->plan_exchange();
  replica_->connect(comm);
  replica_->clock().begin();
  begin_epoch(0);
}

void TrainingRun::begin_epoch(std::size_t epoch) {
  const bool has_rounds = setting_.exchange && epoch >= setting_.first_epoch;
  replica_->begin_epoch(epoch, kRate, has_rounds ? setting_.steps : 0);
}

void TrainingRun::train(std::uint64_t from, std::uint64_t count, const OnRound& on_round) {
  for (std::uint64_t step = from; step < from + count; ++step) {
    if (setting_.has_late_rank && is_last_rank()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    compute(step);
    const StepVerdict verdict = replica_->await_sums(0.0);
    EXPECT_TRUE(verdict.finite);
    const bool is_skipped = (step == setting_.nan_step && is_last_rank()) || is_spoiled_;
    EXPECT_EQ(replica_->policy().judge(verdict, replica_->loss()), !is_skipped) << step;
    if (is_skipped) {
      replica_->skip_update();
    } else {
      replica_->update(rate_ * std::pow(setting_.rate_factor, step));
    }
    end_step(step, verdict, on_round);
    replica_->clock().updated();
  }
  replica_->sync().reducer().run([](Communicator&) {});
}

void TrainingRun::compute(std::uint64_t step) {
  const CounterRng rng(step, RandomStream::test, static_cast<std::uint64_t>(comm_.rank()));
  images_.resize(kBatch * kImage.values());
  for (std::size_t i = 0; i < images_.size(); ++i) {
    images_[i] = static_cast<float>(rng.uniform(i)) - 0.5f;
  }
  if (step == setting_.nan_step && is_last_rank()) {
    images_[0] = std::numeric_limits<float>::quiet_NaN();
  }
  labels_ = {static_cast<std::int32_t>(step % 4), static_cast<std::int32_t>((step + 1) % 4)};
  Batch batch;
  batch.images = images_;
  batch.labels = labels_;
  batch.samples = kBatch;
  // Without an exchange, a mean over this rank's images, as in rounds.
  batch.global_samples =
      setting_.exchange ? kBatch * static_cast<std::size_t>(comm_.size()) : kBatch;
  replica_->load(batch);
  replica_->compute(step);
}

std::vector<float> TrainingRun::values() {
  const std::span<float> all = replica_->network().parameters().values();
  return to_host(*device_, {all.data(), all.size()});
}

std::vector<float> TrainingRun::statistics() {
  const std::span<float> all = replica_->network().parameters().training_statistics();
  return to_host(*device_, {all.data(), all.size()});
}

void TrainingRun::set_values(const std::vector<float>& values) {
  device_->upload(replica_->network().parameters().values().data(), values.data(),
                  values.size() * sizeof(float));
}

StateList TrainingRun::list() {
  StateList list;
  replica_->list_state(list);
  return list;
}

std::vector<float> TrainingRun::common() {
  const StateList all = list();
  const std::span<float> values = floats_of(all, "parameters/common");
  return {values.begin(), values.end()};
}

std::uint64_t TrainingRun::steps_of_round() {
  const StateList all = list();
  const auto found = std::ranges::find(all.blocks, "rounds/steps", &StateBlock::name);
  std::uint64_t steps = 0;
  std::memcpy(&steps, found->bytes.data(), sizeof(steps));
  return steps;
}

std::vector<float> TrainingRun::residual() {
  const std::span<const float> all = replica_->sync().reducer().residual();
  return {all.begin(), all.end()};
}

std::uint64_t TrainingRun::agree() {
  const std::vector<float> mine = values();
  return run([&](Communicator& c) { return agree_on_hash(c, mine); });
}

std::uint64_t TrainingRun::agree_on_what_is_common() {
  const StateList state = list();
  return run([&](Communicator& c) { return agree_on_state(c, state.blocks, device_.get()); });
}

bool TrainingRun::on_all(bool mine) {
  return run([&](Communicator& c) { return c.all_sum(std::int64_t{mine}) == c.size(); });
}

void TrainingRun::spoil() {
  is_lost_ = true;
  is_spoiled_ = comm_.rank() == 0 || is_last_rank();
  if (!is_spoiled_) return;
  std::vector<float> all = values();
  all[0] = std::numeric_limits<float>::infinity();
  set_values(all);
}

// An exchange that is under way ends before another one begins.
void TrainingRun::end_step(std::uint64_t step, const StepVerdict& verdict,
                           const OnRound& on_round) {
  if (step == setting_.lost_step) spoil();
  const bool was_under_way = replica_->policy().is_under_way();
  const std::vector<float> own = values();
  constexpr std::size_t kNever = 1'000'000;
  const SyncResult result = replica_->policy().end_step(
      verdict, {.step = step,
                .in_epoch = step,
                .of_epoch = setting_.ends_with > step ? setting_.ends_with : kNever,
                .learning_rate = told_rate_ * std::pow(setting_.rate_factor, step)});
  std::int64_t ended =
      setting_.exchange && replica_->policy().judged() == StateShare::own ? result.exchanges : 0;
  if (ended > 0) {
    EXPECT_EQ(result.lost.empty(), !is_lost_);
  }
  if (was_under_way && ended > 0) {
    if (!is_lost_ && on_round) on_round(sent_);
    --ended;
  }
  if (ended > 0 && !is_lost_ && on_round) on_round(own);
  if (result.exchanges > 0) is_lost_ = is_spoiled_ = false;
  if (!was_under_way && replica_->policy().is_under_way()) sent_ = own;
}

void expect_nothing_lost(TrainingRun& run, const std::vector<float>& start,
                         const std::vector<float>& common, std::vector<double> learnt) {
  const std::span<float> residual = run.replica().sync().reducer().residual();
  std::vector<double> kept(residual.begin(), residual.end());
  kept.resize(start.size());
  run.run([&](Communicator& c) {
    c.all_sum(learnt);
    c.all_sum(kept);
  });
  double off = 0, all = 0;
  for (std::size_t i = 0; i < start.size(); ++i) {
    const double delivered = static_cast<double>(start[i]) - static_cast<double>(common[i]);
    off += std::pow(delivered + kept[i] - learnt[i], 2.0);
    all += std::pow(learnt[i], 2.0);
  }
  // Roundings of parameters near 0.3 by 2^-25, of which changes are a hundredth.
  EXPECT_LT(std::sqrt(off), 2e-5 * std::sqrt(all));
}

}  // namespace dp::test
