// The exchange of gradients that a GPU computes: on the GPU's memory (the device path) and on a
// copy in the host's (the host path), beside the exchange of the same values on the CPU. The same
// sums and the same residuals, bit for bit, on every path; steps that are not finite among them. On
// a CPU the device's memory is the host's, and there is no link.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "comm/reducer/reducer.hpp"
#include "kernels/base/random.hpp"
#include "kernels/bucket_link.hpp"
#include "kernels/device.hpp"
#include "tests/codecs/device_memory.hpp"
#include "tests/support/test_device.hpp"

namespace dp {
namespace {

using testing_support::DeviceArray;

constexpr std::size_t kElements = 9'067;
constexpr std::uint64_t kSteps = 4;
constexpr std::uint64_t kBadStep = 2, kSampledStep = 1;

std::vector<Bucket> plan(const std::string& codec) {
  // Slices that begin anywhere.
  const std::vector<TensorSlot> tensors = {{0, 10, 100, false},
                                           {1000, 1, 3, false},
                                           {1003, 100, 80, false},
                                           {9003, 1, 56, true},
                                           {9059, 1, 8, true}};
  return plan_buckets(
      tensors, {.bucket_bytes = 1000, .codec = parse_codec_spec(codec), .min_compress_bytes = 100});
}

std::vector<float> gradient_of(int rank, std::uint64_t step) {
  const CounterRng rng(step, RandomStream::test, static_cast<std::uint64_t>(rank));
  std::vector<float> v(kElements);
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(1e-3 * normal(rng, i));
  if (step == kBadStep && rank == 0) v[1700] = std::numeric_limits<float>::quiet_NaN();
  return v;
}

// What a run leaves behind: sums and verdict of every step, the residual of the last.
struct Outcome {
  std::vector<std::vector<float>> sums;
  std::vector<bool> finite;
  std::vector<float> residual;
  CommTimes times;
};

// Two ranks a host.
ReducerOptions options_of(const Communicator& comm, const std::string& topology) {
  ReducerOptions options{.topology = topology, .segment_bytes = 2048, .buckets_in_flight = 2};
  for (int rank = 0; rank < comm.size(); ++rank) options.hosts.push_back(rank / 2);
  return options;
}

Outcome run_on_host(Communicator& comm, const std::string& codec, const std::string& topology) {
  Outcome outcome;
  std::vector<float> gradient(kElements);
  Reducer reducer(comm, gradient, plan(codec), options_of(comm, topology));
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    std::ranges::copy(gradient_of(comm.rank(), step), gradient.begin());
    if (step == kSampledStep) reducer.sample_error();
    reducer.begin_step(step);
    for (std::size_t b = 0; b < reducer.buckets().size(); ++b) reducer.bucket_ready(b);
    outcome.finite.push_back(reducer.wait_step().finite);
    outcome.sums.push_back(gradient);
  }
  outcome.residual.assign(reducer.residual().begin(), reducer.residual().end());
  outcome.times = reducer.take_times();
  return outcome;
}

// As a step on a GPU: the queue computes the gradient (here: copies it), the marks of the link say
// when a bucket is final, and nothing waits before wait_step.
Outcome run_on_device(Communicator& comm, const std::string& codec, const std::string& topology,
                      bool is_device_path) {
  const test::TestDevice device = test::make_test_device();
  const bool has_link = device->kind() == DeviceKind::cuda;
  DeviceArray<float> gradient(*device, kElements);
  const Device::Memory copy = device->allocate_host(kElements * sizeof(float));
  auto* host_gradient = reinterpret_cast<float*>(copy.get());
  const auto buckets = plan(codec);

  std::unique_ptr<BucketLink> link;
  if (has_link) {
    std::vector<BucketSlice> slices;
    for (const Bucket& b : buckets) slices.push_back({b.offset, b.elements});
    link = make_bucket_link(*device, gradient.data(), is_device_path ? nullptr : host_gradient,
                            slices);
  }
  ReducerOptions options = options_of(comm, topology);
  if (is_device_path) options.device = device.get();
  if (has_link) {
    options.is_final = [&](std::size_t b) { return link->is_final(b); };
    if (!is_device_path) options.on_delivered = [&](std::size_t b) { link->return_sums(b); };
  }
  Outcome outcome;
  const bool is_on_gradient = is_device_path || !has_link;
  Reducer reducer(comm, is_on_gradient ? gradient.span() : std::span(host_gradient, kElements),
                  buckets, options);
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    if (step == kSampledStep) reducer.sample_error();
    if (has_link) link->begin_step(step);
    reducer.begin_step(step);
    gradient.set(gradient_of(comm.rank(), step));
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      if (has_link) {
        link->bucket_final(b);
      } else {
        reducer.bucket_ready(b);
      }
    }
    if (has_link) link->end_backward();
    outcome.finite.push_back(reducer.wait_step().finite);
    if (has_link) link->await_sums();
    outcome.sums.push_back(gradient.get());
  }
  outcome.residual.resize(reducer.residual().size());
  if (is_device_path && !outcome.residual.empty()) {
    device->download(outcome.residual.data(), reducer.residual().data(),
                     outcome.residual.size() * sizeof(float));
  } else {
    outcome.residual.assign(reducer.residual().begin(), reducer.residual().end());
  }
  outcome.times = reducer.take_times();
  return outcome;
}

// What this rank has to do in an exchange: send something, and encode it with losses.
struct Work {
  bool sends = false, drops = false;
};
Work work_of(const Communicator& comm, const std::string& codec, const std::string& topology) {
  const bool sends = comm.size() > 1;
  // With two ranks a host, of which the first leads, and at least two hosts.
  const bool encodes = topology != "hierarchical" || (comm.rank() % 2 == 0 && comm.size() > 2);
  return {sends, sends && encodes && codec != "none"};
}

void expect_same(const Outcome& got, const Outcome& want, const Work& work) {
  EXPECT_EQ(got.finite, want.finite);
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    EXPECT_EQ(testing_support::first_difference(got.sums[step], want.sums[step]), kElements)
        << "sum of step " << step;
    EXPECT_EQ(want.finite[step], step != kBadStep);
  }
  ASSERT_EQ(got.residual.size(), want.residual.size());
  EXPECT_EQ(testing_support::first_difference(got.residual, want.residual), want.residual.size())
      << "residual";
  const CommCost &a = got.times.total, &b = want.times.total;
  EXPECT_EQ(a.sent_bytes, b.sent_bytes);
  // Sums of squares in another order.
  EXPECT_NEAR(a.residual_squares, b.residual_squares, 1e-9 * b.residual_squares);
  EXPECT_NEAR(a.sampled.error_squares, b.sampled.error_squares, 1e-9 * b.sampled.error_squares);
  EXPECT_NEAR(a.sampled.value_squares, b.sampled.value_squares, 1e-9 * b.sampled.value_squares);
  EXPECT_EQ(a.sampled.values > 0, work.drops);
  EXPECT_EQ(a.sampled.values, b.sampled.values);
  EXPECT_EQ(a.sampled.saturated, b.sampled.saturated);
  // With one rank there are hooks, and no codecs.
  EXPECT_TRUE(a.encode_s > 0.0 || !work.sends);
  // The same values in the same order.
  EXPECT_EQ(a.delivered_error_squares, b.delivered_error_squares);
  EXPECT_EQ(a.delivered_value_squares, b.delivered_value_squares);
  EXPECT_GT(b.delivered_value_squares, 0.0);
}

TEST(DeviceReducer, EveryPathGivesTheBitsOfTheCpu) {
  Communicator comm;
  for (const char* codec : {"none", "fp16", "q8:block=64", "q4:block=64,ef=off", "q16:block=200"}) {
    SCOPED_TRACE(codec);
    const Outcome on_host = run_on_host(comm, codec, "ring");
    const Work work = work_of(comm, codec, "ring");
    expect_same(run_on_device(comm, codec, "ring", true), on_host, work);
    expect_same(run_on_device(comm, codec, "ring", false), on_host, work);
  }
  for (const Topology& topology : topology_list()) {
    SCOPED_TRACE(topology.name);
    const std::string name(topology.name);
    const Outcome on_host = run_on_host(comm, "q8:block=64", name);
    expect_same(run_on_device(comm, "q8:block=64", name, true), on_host,
                work_of(comm, "q8:block=64", name));
  }
}

TEST(DeviceReducer, CanBeDestroyedInTheMiddleOfAStep) {
  Communicator comm;
  const test::TestDevice device = test::make_test_device();
  DeviceArray<float> gradient(*device, kElements);
  ReducerOptions options = options_of(comm, "ring");
  options.device = device.get();
  options.is_final = [](std::size_t b) { return b == 0; };
  Reducer reducer(comm, gradient.span(), plan("q8:block=64"), options);
  reducer.begin_step(0);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

}  // namespace
}  // namespace dp
