// Tests the path of gradients between a GPU and the exchanging thread, on both paths, also in
// replayed recordings: that thread sees the bucket's values when it is final, and the next
// operation sees the sums.
#include "kernels/bucket_link.hpp"

#include <atomic>
#include <chrono>
#include <stop_token>
#include <thread>

#include "kernels/base/error.hpp"
#include "kernels/elementwise.hpp"
#include "tests/kernels/kernel_testing.hpp"

namespace dp::test {
namespace {

// The second bucket is empty; the last ones have odd lengths.
const std::vector<BucketSlice> kBuckets = {{70000, 5003}, {70000, 0}, {1003, 68997}, {0, 1003}};
constexpr std::size_t kCount = 75003;

class Link : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!on_gpu()) GTEST_SKIP() << "only a GPU needs a link to host memory";
  }
};

// Waits for a bucket like the reducer. False after a minute, or if stopped.
bool poll(const BucketLink& link, std::size_t bucket, const std::stop_token& stop) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!link.is_final(bucket)) {
    if (std::chrono::steady_clock::now() > end || stop.stop_requested()) return false;
    std::this_thread::yield();
  }
  return true;
}

// In each step "backward" adds 1 to the gradient, bucket by bucket. The exchange checks the values
// and replaces them by the step's sum, and the "update" copies the sums away.
TEST_P(Link, CarriesGradientsOverSteps) {
  const bool is_host_path = GetParam();
  const TestDevice device = make_test_device({.tune = false});
  // The exchange's own queue on the same GPU.
  const TestDevice exchange = make_test_device({.tune = false});
  const Device::Memory gradient_memory = device->allocate(kCount * sizeof(float));
  const Device::Memory ones_memory = device->allocate(kCount * sizeof(float));
  const Device::Memory result_memory = device->allocate(kCount * sizeof(float));
  const Device::Memory host_memory = device->allocate_host(kCount * sizeof(float));
  auto* gradient = reinterpret_cast<float*>(gradient_memory.get());
  auto* ones = reinterpret_cast<float*>(ones_memory.get());
  auto* result = reinterpret_cast<float*>(result_memory.get());
  auto* host = reinterpret_cast<float*>(host_memory.get());
  const std::vector<float> one(kCount, 1.0f);
  device->upload(ones, one.data(), kCount * sizeof(float));

  const auto link = make_bucket_link(*device, gradient, is_host_path ? host : nullptr, kBuckets);
  for (std::size_t b = 0; b < kBuckets.size(); ++b) EXPECT_FALSE(link->is_final(b)) << "at first";

  const auto slice = [](float* all, const BucketSlice& s) {
    return TensorView{TensorDesc::nhwc({s.elements, 1, 1, 1}), all + s.offset};
  };
  const auto backward = device->record([&] {
    for (std::size_t b = 0; b < kBuckets.size(); ++b) {
      const TensorView part = slice(gradient, kBuckets[b]);
      add(*device, part, slice(ones, kBuckets[b]), part);
      link->bucket_final(b);
    }
    link->end_backward();
  });
  const auto update = device->record([&] {
    copy(*device, slice(gradient, {0, kCount}), slice(result, {0, kCount}));
  });

  float before = 0.0f;
  for (std::uint64_t step = 0; step < 60; ++step) {
    const auto sum = static_cast<float>(step * 37 % 1000);
    link->begin_step(step);
    for (std::size_t b = 0; b < kBuckets.size(); ++b) {
      EXPECT_FALSE(link->is_final(b)) << "bucket " << b << " of step " << step;
    }
    std::atomic<int> wrong{0}, late{0};
    std::jthread exchanger([&, before](const std::stop_token& stop) {
      exchange->make_current();
      std::vector<float> found(kCount);
      for (std::size_t b = 0; b < kBuckets.size(); ++b) {
        const BucketSlice& s = kBuckets[b];
        if (!poll(*link, b, stop)) late += 1;
        float* values = is_host_path ? host + s.offset : found.data() + s.offset;
        const std::size_t bytes = s.elements * sizeof(float);
        if (!is_host_path) exchange->download(values, gradient + s.offset, bytes);
        for (std::size_t i = 0; i < s.elements; ++i) {
          if (values[i] != before + 1.0f) wrong += 1;
          values[i] = sum;
        }
        if (!is_host_path) exchange->upload(gradient + s.offset, values, bytes);
        link->return_sums(b);
      }
    });
    backward->replay();
    exchanger.join();
    link->await_sums();
    update->replay();
    before = sum;
    EXPECT_EQ(late, 0) << "step " << step;
    EXPECT_EQ(wrong, 0) << "step " << step;
    std::vector<float> sums(kCount);
    // Not in every step, because it waits: consecutive steps without a wait are the harder case.
    if (step % 3 != 1) continue;
    device->download(sums.data(), result, kCount * sizeof(float));
    EXPECT_EQ(sums, std::vector<float>(kCount, sum)) << "step " << step;
  }
}

// Without buckets there is no error, in a recording either.
TEST_P(Link, HasNoBuckets) {
  const TestDevice device = make_test_device({.tune = false});
  const Device::Memory memory = device->allocate(4), host = device->allocate_host(4);
  const auto link =
      make_bucket_link(*device, reinterpret_cast<float*>(memory.get()),
                       GetParam() ? reinterpret_cast<float*>(host.get()) : nullptr, {});
  const auto backward = device->record([&] {
    device->fill_zero(memory.get(), 4);
    link->end_backward();
  });
  for (std::uint64_t step = 0; step < 3; ++step) {
    link->begin_step(step);
    backward->replay();
    link->await_sums();
  }
  device->synchronize();
}

INSTANTIATE_TEST_SUITE_P(Paths, Link, testing::Bool(),
                         [](const auto& path) { return path.param ? "Host" : "Device"; });

TEST(BucketLink, IsNotForCpus) {
  if (on_gpu()) GTEST_SKIP() << "about the CPU";
  const TestDevice device = make_test_device({});
  EXPECT_THROW(static_cast<void>(make_bucket_link(*device, nullptr, nullptr, {})), Error);
}

}  // namespace
}  // namespace dp::test
