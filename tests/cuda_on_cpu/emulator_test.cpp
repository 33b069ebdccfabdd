// Tests of the emulator, part kernels and memory: correct programs run correctly, and faulty ones
// are detected.
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <thread>
#include <vector>

#include "tests/cuda_on_cpu/emulator_testing.hpp"

namespace dp::cuda {
namespace {

// ---- kernels
// --------------------------------------------------------------------------------------

__global__ void count_kernel(unsigned* counts, std::size_t size) {
  for (std::size_t i = first_item(); i < size; i += item_stride()) ++counts[i];
}

TEST(Kernel, RunsEveryThreadOfEveryBlockOnce) {
  const Stream stream;
  const std::size_t size = 3 * 5 * 7 * 96;
  const DeviceArray<unsigned> counts(size);
  ASSERT_EQ(cudaMemsetAsync(counts.get(), 0, size * sizeof(unsigned), stream), cudaSuccess);
  EXPECT_EQ(cuda_on_cpu::launch(dim3(3, 5, 7), 96, stream,
                                [at = counts.get()] {
                                  const unsigned block =
                                      (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x +
                                      blockIdx.x;
                                  ++at[block * blockDim.x + threadIdx.x];
                                }),
            cudaSuccess);
  launch(count_kernel, Launch{.blocks = dim3(4), .threads = 64}, stream, counts.get(), size);
  stream.wait();
  EXPECT_EQ(counts.values(), std::vector<unsigned>(size, 2));
}

__global__ void scan_kernel(const unsigned* x, unsigned* y) {
  __shared__ unsigned values[256];
  const unsigned i = threadIdx.x;
  values[i] = x[blockIdx.x * blockDim.x + i];
  __syncthreads();
  for (unsigned step = 1; step < blockDim.x; step *= 2) {
    const unsigned other = i >= step ? values[i - step] : 0;
    __syncthreads();
    values[i] += other;
    __syncthreads();
  }
  y[blockIdx.x * blockDim.x + i] = values[i];
}

TEST(Kernel, BarriersSeparateThePartsOfABlock) {
  const Stream stream;
  const DeviceArray<unsigned> x(512), y(512);
  ASSERT_EQ(cudaMemsetAsync(x.get(), 0, 512 * sizeof(unsigned), stream), cudaSuccess);
  launch(count_kernel, Launch{.blocks = dim3(2), .threads = 256}, stream, x.get(),
         std::size_t{512});
  for (int repeat = 0; repeat < 10; ++repeat) {
    launch(scan_kernel, Launch{.blocks = dim3(2), .threads = 256}, stream, x.get(), y.get());
  }
  stream.wait();
  const auto values = y.values();
  for (unsigned i = 0; i < 512; ++i) EXPECT_EQ(values[i], i % 256 + 1);
}

__global__ void hasty_kernel(unsigned* y) {
  __shared__ unsigned values[64];
  values[threadIdx.x] = threadIdx.x;  // and no barrier
  y[threadIdx.x] = values[(threadIdx.x + 1) % 64];
  __syncthreads();
  values[threadIdx.x] = 1000;
}

TEST(Kernel, AMissingBarrierShows) {
  const Stream stream;
  const DeviceArray<unsigned> y(64);
  unsigned wrong = 0;
  for (int repeat = 0; repeat < 20; ++repeat) {
    launch(hasty_kernel, Launch{.blocks = dim3(1), .threads = 64}, stream, y.get());
    stream.wait();
    for (unsigned i = 0; const unsigned value : y.values()) wrong += value != (i++ + 1) % 64;
  }
  EXPECT_GT(wrong, 0u);
}

__global__ void warp_kernel(float* sums, int* results) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  double both = lane;
  for (int step = 16; step > 0; step /= 2) both += __shfl_xor_sync(kAll, both, step);
  sums[threadIdx.x] = static_cast<float>(both);
  int* at = results + threadIdx.x * 8;
  at[0] = __shfl_down_sync(kAll, lane, 3u);
  at[1] = __shfl_up_sync(kAll, lane, 2u);
  at[2] = __shfl_sync(kAll, lane, 5);
  at[3] = __shfl_sync(kAll, lane, 9, 8);  // lane 1 of each group of 8
  at[4] = static_cast<int>(__ballot_sync(kAll, lane % 3 == 0));
  at[5] = __any_sync(kAll, lane == 31);
  at[6] = __all_sync(kAll, lane != 31);
  at[7] = static_cast<int>(__reduce_max_sync(kAll, static_cast<unsigned>(lane * 2)));
  __syncwarp();
}

TEST(Kernel, OperationsOfAWarp) {
  const Stream stream;
  const DeviceArray<float> sums(96);
  const DeviceArray<int> results(96 * 8);
  launch(warp_kernel, Launch{.blocks = dim3(1), .threads = 96}, stream, sums.get(), results.get());
  stream.wait();
  EXPECT_EQ(sums.values(), std::vector<float>(96, 496.0f));
  int ballot = 0;
  for (int lane = 0; lane < 32; lane += 3) ballot |= static_cast<int>(1u << lane);
  const auto all = results.values();
  for (int thread = 0; thread < 96; ++thread) {
    const int lane = thread % 32;
    const std::vector<int> expected{lane + 3 < 32 ? lane + 3 : lane,
                                    lane >= 2 ? lane - 2 : lane,
                                    5,
                                    lane / 8 * 8 + 1,
                                    ballot,
                                    1,
                                    0,
                                    62};
    EXPECT_EQ(std::vector<int>(all.begin() + thread * 8, all.begin() + thread * 8 + 8), expected);
  }
}

__global__ void sum_kernel(float* sum) {
  __shared__ float shared[32];
  const float value = block_sum(1.0f / static_cast<float>(threadIdx.x + 1), shared);
  const float again = block_sum(1.0f, shared);
  if (threadIdx.x == 0) sum[blockIdx.x] = value + again;
}

TEST(Kernel, BlockSumRepeatsBitForBit) {
  const Stream stream;
  const DeviceArray<float> sums(40);
  launch(sum_kernel, Launch{.blocks = dim3(40), .threads = 1024}, stream, sums.get());
  stream.wait();
  const auto values = sums.values();
  EXPECT_NEAR(values[0], 7.509176 + 1024, 1e-3);
  EXPECT_EQ(values, std::vector<float>(40, values[0]));
}

__global__ void atomics_kernel(unsigned* at) {
  atomicAdd(at, 2);
  atomicMax(at + 1, threadIdx.x);
  atomicOr(at + 2, 1u << threadIdx.x % 32);
}

TEST(Kernel, AtomicsOnIntegers) {
  const Stream stream;
  const DeviceArray<unsigned> at(3);
  ASSERT_EQ(cudaMemsetAsync(at.get(), 0, 12, stream), cudaSuccess);
  launch(atomics_kernel, Launch{.blocks = dim3(3), .threads = 64}, stream, at.get());
  stream.wait();
  EXPECT_EQ(at.values(), (std::vector<unsigned>{384, 63, kAll}));
}

TEST(Kernel, RefusesConfigurationsThatCudaRefuses) {
  const Stream stream;
  const auto nothing = [] {};
  EXPECT_EQ(cuda_on_cpu::launch(dim3(1), 1025, stream, nothing), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cuda_on_cpu::launch(dim3(0), 32, stream, nothing), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cuda_on_cpu::launch(dim3(1, 65536), 32, stream, nothing),
            cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

// The worker is a thread, so a death test must start its process afresh.
class KernelDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  static void run_alone(unsigned threads, std::function<void()> body) {
    const Stream stream;
    static_cast<void>(cuda_on_cpu::launch(dim3(1), threads, stream, std::move(body)));
    stream.wait();
  }
};

TEST_F(KernelDeathTest, ABarrierThatSomeThreadsMiss) {
  EXPECT_DEATH(run_alone(64,
                         [] {
                           if (threadIdx.x < 40) __syncthreads();
                         }),
               "emulator_test.cpp:[0-9]+: 40 threads wait at a barrier, 24 have ended");
}
TEST_F(KernelDeathTest, TwoBarriers) {
  const auto body = [] {
    if (threadIdx.x < 40) {
      __syncthreads();
    } else {
      __syncthreads();
    }
  };
  EXPECT_DEATH(run_alone(64, body), "threads of a block wait at different barriers");
}
TEST_F(KernelDeathTest, AShuffleThatSomeLanesMiss) {
  EXPECT_DEATH(run_alone(64,
                         [] {
                           if (threadIdx.x != 7) static_cast<void>(__shfl_xor_sync(kAll, 1, 1));
                         }),
               "a warp's operation that not all of its lanes reach");
}
TEST_F(KernelDeathTest, AShuffleOfAPartOfAWarp) {
  EXPECT_DEATH(run_alone(48, [] { static_cast<void>(__shfl_xor_sync(kAll, 1, 1)); }),
               "an operation of a part of a warp");
  EXPECT_DEATH(run_alone(32, [] { static_cast<void>(__shfl_xor_sync(0xFFFFu, 1, 1)); }),
               "an operation of a part of a warp");
}

// ---- memory
// -----------------------------------------------------------------------------------------

TEST(Memory, StartsAsNaN) {
  const DeviceArray<float> array(100);
  for (const float value : array.values()) EXPECT_TRUE(std::isnan(value));
}

TEST(Memory, IsLimited) {
  std::size_t free = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, free + 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(memory, nullptr);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  ASSERT_EQ(cudaMalloc(&memory, 1000), cudaSuccess);
  std::size_t less = 0;
  ASSERT_EQ(cudaMemGetInfo(&less, &total), cudaSuccess);
  EXPECT_EQ(free - less, 1024u);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaErrorInvalidValue);
}

TEST(Memory, CopiesAreCheckedAgainstTheirRanges) {
  const DeviceArray<char> array(100);
  std::vector<char> host(200);
  EXPECT_EQ(cudaMemcpy(array.get(), host.data(), 101, cudaMemcpyHostToDevice),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(host.data(), array.get() + 50, 51, cudaMemcpyDeviceToHost),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(array.get(), host.data(), 100, cudaMemcpyDeviceToHost),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemset(array.get() + 1, 0, 100), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemset(host.data(), 0, 1), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(array.get() + 50, host.data(), 50, cudaMemcpyHostToDevice), cudaSuccess);
}

TEST(Memory, IsFilledWithZerosAndOtherBytes) {
  constexpr std::size_t kSize = (2u << 20) + 777;
  const DeviceArray<unsigned char> array(kSize + 200);
  ASSERT_EQ(cudaMemset(array.get(), 7, kSize + 200), cudaSuccess);
  ASSERT_EQ(cudaMemset(array.get() + 100, 0, kSize), cudaSuccess);
  const auto values = array.values();
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(values[i], i < 100 || i >= 100 + kSize ? 7 : 0) << i;
  }
}

class MemoryDeathTest : public KernelDeathTest {};

TEST_F(MemoryDeathTest, WritesBesideAnAllocation) {
  const auto write_at = [](int offset) {
    const DeviceArray<char> array(100);
    run_alone(32, [at = array.get() + offset] { at[threadIdx.x] = 1; });
  };
  write_at(68);
  EXPECT_DEATH(write_at(69), "something wrote past the end of 100 bytes");
  EXPECT_DEATH(write_at(-32), "something wrote before the beginning of 100 bytes");
  EXPECT_DEATH(write_at(300), "an access outside: byte 3[0-9]+ of 100 of device memory");
}
TEST_F(MemoryDeathTest, AKernelThatIsGivenMemoryOfTheHost) {
  const auto give = [] {
    const Stream stream;
    std::vector<unsigned> counts(64);
    launch(count_kernel, Launch{.blocks = dim3(1), .threads = 64}, stream, counts.data(),
           counts.size());
  };
  EXPECT_DEATH(give(), "which is neither memory of the device nor pinned");
}
TEST_F(MemoryDeathTest, TheHostCannotTouchIt) {
  const auto touch = [] {
    const DeviceArray<char> array(100);
    run_alone(32, [at = array.get()] { at[threadIdx.x] = 1; });
    // The worker closes it when it becomes idle.
    for (;;) {
      *static_cast<volatile char*>(array.get()) = 1;
      std::this_thread::yield();
    }
  };
  EXPECT_DEATH(touch(), "the host touched byte 0 of 100");
}

}  // namespace
}  // namespace dp::cuda
