// Tests of the emulator: devices that fail, and kernels that are loaded too late.
#include <atomic>
#include <thread>

#include "tests/cuda_on_cpu/api.hpp"
#include "tests/cuda_on_cpu/emulator_testing.hpp"

namespace dp::cuda {
namespace {

TEST(Fault, StaysUntilTheEnd) {
  const Stream stream;
  const Event event;
  void* memory = nullptr;
  run(stream, [] { cuda_on_cpu::set_device_fault(cudaErrorIllegalAddress); });
  // A kernel's error is returned by the first call that waits for it, and then by every call.
  for (int repeat = 0; repeat < 2; ++repeat) {
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
    EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  }
  EXPECT_EQ(cudaMalloc(&memory, 16), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaEventRecord(event, stream), cudaErrorIllegalAddress);
  EXPECT_EQ(cuda_on_cpu::enqueue(stream, [] {}), cudaErrorIllegalAddress);
  cuda_on_cpu::set_device_fault(cudaSuccess);
  stream.wait();
}

TEST(Fault, DropsTheWorkBehindIt) {
  const Stream stream;
  bool has_run = false;
  run(stream, [] { cuda_on_cpu::set_device_fault(cudaErrorIllegalAddress); });
  static_cast<void>(cuda_on_cpu::enqueue(stream, [&] { has_run = true; }));
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorIllegalAddress);
  EXPECT_FALSE(has_run);
  cuda_on_cpu::set_device_fault(cudaSuccess);
  static_cast<void>(cudaGetLastError());
}

// ---- loading
// ----------------------------------------------------------------------------------------

__global__ void one_kernel(int* value) { *value = 1; }
__global__ void other_kernel(int* value) { *value = 2; }

// Keeps a host function waiting while it exists.
class HostFunction {
 public:
  explicit HostFunction(cudaStream_t stream) {
    const auto wait = [](void* self) {
      while (!static_cast<HostFunction*>(self)->may_end_) std::this_thread::yield();
    };
    EXPECT_EQ(cudaLaunchHostFunc(stream, wait, this), cudaSuccess);
  }
  void end() { may_end_ = true; }

 private:
  std::atomic<bool> may_end_ = false;
};

void launch_behind_a_function() {
  const Stream waiting, other;
  const DeviceArray<int> value(1);
  launch(one_kernel, Launch{.threads = 32}, other, value.get());
  const HostFunction function(waiting);
  launch(other_kernel, Launch{.threads = 32}, other, value.get());
}

TEST(LoadingDeathTest, ByALaunchBehindAFunctionOfTheHost) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH(launch_behind_a_function(), "the first launch of a kernel");
}

TEST(Loading, BeforehandIsRight) {
  const Stream waiting, other;
  const DeviceArray<int> value(1);
  cudaFuncAttributes attributes{};
  EXPECT_EQ(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(one_kernel)),
            cudaSuccess);
  launch(other_kernel, Launch{.threads = 32}, other, value.get());
  HostFunction function(waiting);
  launch(one_kernel, Launch{.threads = 32}, other, value.get());
  launch(other_kernel, Launch{.threads = 32}, other, value.get());
  function.end();
  waiting.wait();
  other.wait();
}

}  // namespace
}  // namespace dp::cuda
