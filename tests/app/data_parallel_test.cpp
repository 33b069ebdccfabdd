// P ranks on parts of a batch are one rank on the whole batch: same losses, same parameters up to
// the order of additions. The network has no batch normalisation, whose statistics would be those
// of a part. The last step of the epoch is uneven, and with more than two ranks some have no sample
// in it.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "app/bucket_tracker.hpp"
#include "comm/reducer.hpp"
#include "comm/replica_hash.hpp"
#include "io/augment.hpp"
#include "io/loader.hpp"
#include "kernels/base/random.hpp"
#include "kernels/sgd.hpp"
#include "kernels/softmax_cross_entropy.hpp"
#include "net/layers/conv2d.hpp"
#include "net/layers/elementwise.hpp"
#include "net/layers/linear.hpp"
#include "net/layers/pool.hpp"
#include "net/network.hpp"

namespace dp {
namespace {

constexpr std::size_t kSamples = 26, kGlobalBatch = 12;  // steps of 12, 12 and 2

net::Graph plain_network() {
  net::Graph graph({1, 32, 32, 3});
  net::Value x =
      graph.add<net::Conv2dLayer>("conv1", {.channels = 16, .stride = 2}, {graph.images()});
  x = graph.add<net::ReluLayer>("relu1", {}, {x});
  const net::Value y = graph.add<net::Conv2dLayer>("conv2", {.channels = 16}, {x});
  x = graph.add<net::AddLayer>("add", {}, {x, y});
  x = graph.add<net::AveragePoolLayer>("pool", {}, {x});
  x = graph.add<net::GlobalAveragePoolLayer>("mean", {}, {x});
  graph.add<net::LinearLayer>("linear", {.outputs = 10}, {x});
  return graph;
}

ImageSet random_images() {
  const CounterRng rng(7, RandomStream::test);
  std::vector<std::uint8_t> pixels(kSamples * kImageBytes), labels(kSamples);
  for (std::size_t i = 0; i < pixels.size(); ++i) {
    pixels[i] = static_cast<std::uint8_t>(rng.bits(i) & 255);
  }
  for (std::size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<std::uint8_t>(i % 10);
  return {"random", std::vector<std::string>(10, "class"), pixels, labels};
}

// A network, its loader and its optimiser, on a given part of the data.
struct Replica {
  Replica(const ImageSet& set, std::size_t rank, std::size_t ranks)
      : device(make_device({.tune = false})),
        network(*device, plain_network(), DataType::f32, 3),
        loader(set, {.global_batch = kGlobalBatch, .rank = rank, .ranks = ranks, .seed = 5}),
        velocity(network.parameters().size()) {
    for (std::size_t n = 1; n <= loader.largest_batch(); ++n) {
      network.prepare(n, net::Mode::training);
    }
  }

  // Loss summed over the batch; gradients of the whole step's mean loss.
  double gradients(const Batch& batch, const net::TensorCallback& tensor_final) {
    const TensorView images = {
        TensorDesc::nhwc({batch.samples, kImageHeight, kImageWidth, kImageChannels}),
        const_cast<float*>(batch.images.data())};
    const TensorView logits = network.forward(images, net::Mode::training);
    const LossSums sums =
        softmax_cross_entropy(*device, logits, batch.labels, 0.0f,
                              static_cast<double>(batch.global_samples), network.logit_gradient());
    network.backward(images, tensor_final);
    return sums.loss;
  }
  void update() {
    sgd_update(*device, network.parameters().values(), network.parameters().gradients(), velocity,
               {.learning_rate = 0.1f, .weight_decay = 5e-4f});
  }

  std::unique_ptr<Device> device;
  net::Network network;
  Loader loader;
  std::vector<float> velocity;
};

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

TEST(DataParallel, RanksTogetherAreOneRank) {
  Communicator comm;
  const auto rank = static_cast<std::size_t>(comm.rank());
  const auto ranks = static_cast<std::size_t>(comm.size());
  const ImageSet set = random_images();
  Replica alone(set, 0, 1), part(set, rank, ranks);
  net::Parameters& parameters = part.network.parameters();

  std::vector<TensorSlot> slots;
  for (const net::Parameter& t : parameters.tensors()) {
    slots.push_back({.offset = t.offset,
                     .rows = t.shape[0],
                     .columns = t.elements / t.shape[0],
                     .is_1d = t.kind == net::ParameterKind::vector});
  }
  const std::vector<Bucket> buckets = plan_buckets(slots, {.bucket_bytes = 4096, .codec = "none"});
  std::vector<std::size_t> bucket_of_tensor(slots.size());
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    for (std::size_t t = buckets[b].first_tensor; t < buckets[b].end_tensor; ++t) {
      bucket_of_tensor[t] = b;
    }
  }
  EXPECT_GT(buckets.size(), 2u);
  BucketTracker tracker(bucket_of_tensor);
  ReducerOptions options;
  options.comm_timeout_s = 30;
  Reducer reducer(comm, parameters.gradients(), buckets, options);
  const net::TensorCallback tensor_final = [&](std::size_t tensor) {
    tracker.tensor_final(tensor, [&](std::size_t bucket) { reducer.bucket_ready(bucket); });
  };

  std::uint64_t step = 0;
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
    alone.loader.start_epoch(epoch);
    part.loader.start_epoch(epoch);
    for (std::size_t s = 0; s < part.loader.steps(); ++s, ++step) {
      const double whole_loss = alone.gradients(alone.loader.next(), nullptr);
      const auto whole = alone.network.parameters().gradients();
      const std::vector<float> alone_gradients(whole.begin(), whole.end());
      alone.update();

      const Batch& batch = part.loader.next();
      double loss = 0;
      reducer.begin_step(step);
      tracker.begin_step();
      if (batch.samples > 0) {
        loss = part.gradients(batch, tensor_final);
      } else {
        std::fill(parameters.gradients().begin(), parameters.gradients().end(), 0.0f);
        for (std::size_t t = 0; t < slots.size(); ++t) tensor_final(t);
      }
      EXPECT_TRUE(reducer.wait_step().finite);
      if (step == 0) {
        // The same parameters on both sides: only the order of additions differs, a few units in
        // the last place (2^-24) of a sum of 12 samples times some hundred pixels.
        EXPECT_LT(relative_difference(parameters.gradients(), alone_gradients), 2e-6);
      }
      part.update();
      const double sum = reducer.run([&](Communicator& c) { return c.all_sum(loss); });
      EXPECT_NEAR(sum, whole_loss, 1e-4 * std::abs(whole_loss)) << "step " << step;
    }
  }
  const std::uint64_t hash =
      reducer.run([&](Communicator& c) { return agree_on_hash(c, parameters.values()); });
  EXPECT_NE(hash, 0u);

  // Later a unit near the ReLU's kink may fall on its other side, and 9 steps accumulate it.
  EXPECT_LT(relative_difference(parameters.values(), alone.network.parameters().values()), 5e-4);
}

}  // namespace
}  // namespace dp
