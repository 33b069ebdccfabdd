// The emulator itself: that it runs right programs right, and that wrong ones show.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <thread>
#include <vector>

#include "kernels/cuda/launch.cuh"

namespace dp::cuda {
namespace {

constexpr unsigned kAll = 0xFFFFFFFFu;

class Stream {
 public:
  explicit Stream(unsigned flags = cudaStreamNonBlocking) {
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, flags), cudaSuccess);
  }
  ~Stream() { EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess); }
  operator cudaStream_t() const { return stream_; }  // NOLINT(google-explicit-constructor)
  void wait() const { EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess); }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  explicit Event(unsigned flags = cudaEventDefault) {
    EXPECT_EQ(cudaEventCreateWithFlags(&event_, flags), cudaSuccess);
  }
  ~Event() { EXPECT_EQ(cudaEventDestroy(event_), cudaSuccess); }
  operator cudaEvent_t() const { return event_; }  // NOLINT(google-explicit-constructor)

 private:
  cudaEvent_t event_ = nullptr;
};

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t count) : count_(count) {
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(T)), cudaSuccess);
  }
  ~DeviceArray() { EXPECT_EQ(cudaFree(data_), cudaSuccess); }
  [[nodiscard]] T* get() const { return data_; }
  [[nodiscard]] std::vector<T> values() const {
    std::vector<T> host(count_);
    EXPECT_EQ(cudaMemcpy(host.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return host;
  }

 private:
  T* data_ = nullptr;
  std::size_t count_;
};

void run(cudaStream_t stream, std::function<void()> work) {
  EXPECT_EQ(cuda_on_cpu::enqueue(stream, std::move(work)), cudaSuccess);
}

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

// The worker is a thread, so the process that is to die starts afresh.
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
    // The worker closes it as soon as it has nothing to do.
    for (;;) {
      *static_cast<volatile char*>(array.get()) = 1;
      std::this_thread::yield();
    }
  };
  EXPECT_DEATH(touch(), "the host touched byte 0 of 100");
}

// ---- streams and events
// -------------------------------------------------------------------------------

TEST(Queue, OneStreamRunsInOrder) {
  const Stream stream;
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) run(stream, [&order, i] { order.push_back(i); });
  stream.wait();
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
}

// A value that one stream writes and another reads, in `times` rounds: how often the old one came.
int count_stale(bool waits, int times) {
  const Stream writer, reader;
  const Event written(cudaEventDisableTiming);
  int value = 0, stale = 0;
  for (int i = 1; i <= times; ++i) {
    run(writer, [&value, i] { value = i; });
    EXPECT_EQ(cudaEventRecord(written, writer), cudaSuccess);
    if (waits) {
      EXPECT_EQ(cudaStreamWaitEvent(reader, written, 0), cudaSuccess);
    }
    run(reader, [&, i] { stale += value < i; });
  }
  reader.wait();
  writer.wait();
  return stale;
}
TEST(Queue, EventsOrderStreams) { EXPECT_EQ(count_stale(true, 200), 0); }
TEST(Queue, AMissingWaitShows) { EXPECT_GT(count_stale(false, 200), 0); }

TEST(Queue, AHostThatDoesNotWaitReadsOldValues) {
  const Stream stream;
  std::atomic<int> value = 0;
  int stale = 0;
  for (int i = 1; i <= 200; ++i) {
    run(stream, [&value, i] { value = i; });
    stale += value < i;
  }
  stream.wait();
  EXPECT_GT(stale, 0);
}

TEST(Queue, AHostThatWritesTooLateIsNotSeen) {
  const Stream stream;
  int stale = 0;
  for (int i = 1; i <= 200; ++i) {
    std::atomic<int> input = 0;
    int seen = -1;
    run(stream, [&] { seen = input; });
    input = i;
    stream.wait();
    stale += seen != i;
  }
  EXPECT_GT(stale, 0);
}

TEST(Queue, AWaitForAnotherStreamDoesNotHelp) {
  const Stream one, other;
  int stale = 0;
  std::atomic<int> value = 0;
  for (int i = 1; i <= 200; ++i) {
    run(one, [&value, i] { value = i; });
    run(other, [] {});
    other.wait();
    stale += value < i;
  }
  one.wait();
  EXPECT_GT(stale, 0);
}

TEST(Queue, ThePollingHostSeesProgress) {
  const Stream stream;
  void* memory = nullptr;
  ASSERT_EQ(cudaHostAlloc(&memory, sizeof(int), cudaHostAllocMapped), cudaSuccess);
  auto* flag = new (memory) std::atomic<int>(0);
  run(stream, [=] { *flag = 1; });
  while (*flag == 0) std::this_thread::yield();  // the test's time limit ends it otherwise
  EXPECT_EQ(cudaFreeHost(memory), cudaSuccess);
}

TEST(Queue, TheLegacyStreamKeepsOrderWithBlockingStreams) {
  const Stream blocking(cudaStreamDefault);
  int value = 0, wrong = 0;
  for (int i = 1; i <= 100; ++i) {
    run(blocking, [&value, i] { value = i; });
    run(nullptr, [&, i] { wrong += value != i; });
    run(blocking, [&, i] { wrong += value != i; });
  }
  blocking.wait();
  EXPECT_EQ(wrong, 0);
}

TEST(Queue, EventsMeasureAndTellWhetherTheyHaveCome) {
  const Stream stream;
  const Event from, to, silent(cudaEventDisableTiming);
  float ms = -1;
  EXPECT_EQ(cudaEventElapsedTime(&ms, from, to), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventQuery(from), cudaSuccess);
  std::atomic<bool> may_end = false;
  // Neither in haste nor otherwise may the enqueuing call wait for what waits for this thread.
  std::thread release([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    may_end = true;
  });
  EXPECT_EQ(cudaEventRecord(from, stream), cudaSuccess);
  run(stream, [&] {
    while (!may_end) std::this_thread::yield();
  });
  EXPECT_EQ(cudaEventRecord(to, stream), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(silent, stream), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(to), cudaSuccess);
  release.join();
  EXPECT_EQ(cudaEventQuery(to), cudaSuccess);
  EXPECT_EQ(cudaEventElapsedTime(&ms, from, to), cudaSuccess);
  EXPECT_GE(ms, 0);
  EXPECT_EQ(cudaEventElapsedTime(&ms, from, silent), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidResourceHandle);
}

TEST(Queue, TheWorkersOperationsMustNotCallCuda) {
  const Stream stream;
  cudaError_t code = cudaSuccess;
  run(stream, [&] { code = cudaStreamSynchronize(stream); });
  stream.wait();
  EXPECT_EQ(code, cudaErrorNotPermitted);
}

// ---- graphs
// -----------------------------------------------------------------------------------------

cudaGraphExec_t instantiate(cudaGraph_t graph) {
  cudaGraphExec_t executable = nullptr;
  EXPECT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  return executable;
}

TEST(Graph, CapturesAndReplaysAForkThatJoins) {
  const Stream main, side;
  const Event forked, joined;
  std::vector<int> order;
  ASSERT_EQ(cudaStreamBeginCapture(main, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  run(main, [&] { order.push_back(0); });
  ASSERT_EQ(cudaEventRecord(forked, main), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(side, forked, 0), cudaSuccess);
  run(side, [&] { order.push_back(1); });
  run(main, [&] { order.push_back(2); });
  ASSERT_EQ(cudaEventRecord(joined, side), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(main, joined, 0), cudaSuccess);
  run(main, [&] { order.push_back(3); });
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(main, &graph), cudaSuccess);
  EXPECT_TRUE(order.empty());
  const cudaGraphExec_t executable = instantiate(graph);
  int side_first = 0;
  for (int i = 0; i < 50; ++i) {
    order.clear();
    ASSERT_EQ(cudaGraphLaunch(executable, main), cudaSuccess);
    main.wait();
    ASSERT_EQ(order.size(), 4u);
    EXPECT_EQ(order[0], 0);
    EXPECT_EQ(order[3], 3);
    side_first += order[1] == 1;
  }
  EXPECT_GT(side_first, 0);
  EXPECT_LT(side_first, 50);
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
}

TEST(Graph, PrioritiesMustNotBeForgotten) {
  const Stream main;
  const Event forked, joined;
  cudaStream_t urgent = nullptr;
  ASSERT_EQ(cudaStreamCreateWithPriority(&urgent, cudaStreamNonBlocking, -5), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(main, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  run(main, [] {});
  ASSERT_EQ(cudaEventRecord(forked, main), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(urgent, forked, 0), cudaSuccess);
  run(urgent, [] {});
  ASSERT_EQ(cudaEventRecord(joined, urgent), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(main, joined, 0), cudaSuccess);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(main, &graph), cudaSuccess);
  cudaGraphExec_t executable = nullptr;
  EXPECT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaErrorInvalidValue);
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, cudaGraphInstantiateFlagUseNodePriority),
            cudaSuccess);
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(urgent), cudaSuccess);
  static_cast<void>(cudaGetLastError());
}

TEST(Graph, ExternalEventsAreMarkedByEveryLaunch) {
  const Stream stream;
  const Event from, to;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  ASSERT_EQ(cudaEventRecordWithFlags(from, stream, cudaEventRecordExternal), cudaSuccess);
  run(stream, [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); });
  ASSERT_EQ(cudaEventRecordWithFlags(to, stream, cudaEventRecordExternal), cudaSuccess);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  const cudaGraphExec_t executable = instantiate(graph);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
    ASSERT_EQ(cudaEventSynchronize(to), cudaSuccess);
    float ms = 0;
    EXPECT_EQ(cudaEventElapsedTime(&ms, from, to), cudaSuccess);
    EXPECT_GE(ms, 1);
  }
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
}

// Begins a capture, does something, and returns what its end says.
cudaError_t capture(cudaStream_t stream, const std::function<void()>& body) {
  EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  body();
  cudaGraph_t graph = nullptr;
  const cudaError_t code = cudaStreamEndCapture(stream, &graph);
  if (graph != nullptr) static_cast<void>(cudaGraphDestroy(graph));
  static_cast<void>(cudaGetLastError());
  return code;
}

TEST(Graph, AForkThatDoesNotJoin) {
  const Stream main, side;
  const Event forked;
  const cudaError_t code = capture(main, [&] {
    run(main, [] {});
    EXPECT_EQ(cudaEventRecord(forked, main), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(side, forked, 0), cudaSuccess);
    run(side, [] {});
  });
  EXPECT_EQ(code, cudaErrorStreamCaptureUnjoined);
  bool has_run = false;  // the side stream is free again
  run(side, [&] { has_run = true; });
  side.wait();
  EXPECT_TRUE(has_run);
}

TEST(Graph, WhatACaptureForbids) {
  const Stream stream, other;
  const Event event;
  void* memory = nullptr;
  char host = 0;
  const DeviceArray<char> array(1);
  const auto forbidden = [&](cudaError_t expected, const std::function<cudaError_t()>& call) {
    EXPECT_EQ(capture(stream, [&] { EXPECT_EQ(call(), expected); }),
              cudaErrorStreamCaptureInvalidated);
  };
  forbidden(cudaErrorStreamCaptureUnsupported, [&] { return cudaStreamSynchronize(stream); });
  forbidden(cudaErrorStreamCaptureUnsupported, [&] { return cudaStreamSynchronize(other); });
  forbidden(cudaErrorStreamCaptureUnsupported, [&] { return cudaDeviceSynchronize(); });
  forbidden(cudaErrorStreamCaptureUnsupported, [&] { return cudaMalloc(&memory, 1); });
  forbidden(cudaErrorStreamCaptureUnsupported,
            [&] { return cudaMemcpyAsync(array.get(), &host, 1, cudaMemcpyHostToDevice, stream); });
  forbidden(cudaErrorStreamCaptureImplicit,
            [&] { return cudaMemsetAsync(array.get(), 0, 1, nullptr); });
  EXPECT_EQ(cudaEventRecord(event, other), cudaSuccess);
  forbidden(cudaErrorStreamCaptureIsolation, [&] { return cudaStreamWaitEvent(stream, event, 0); });
  forbidden(cudaErrorCapturedEvent, [&] {
    EXPECT_EQ(cudaEventRecord(event, stream), cudaSuccess);
    return cudaEventSynchronize(event);
  });
}

TEST(Graph, OtherThreadsGoOnDuringACapture) {
  const Stream stream, other;
  const cudaError_t code = capture(stream, [&] {
    run(stream, [] {});
    std::thread([&] {
      run(other, [] {});
      other.wait();
      void* memory = nullptr;
      EXPECT_EQ(cudaMalloc(&memory, 1), cudaSuccess);
      EXPECT_EQ(cudaFree(memory), cudaSuccess);
    }).join();
  });
  EXPECT_EQ(code, cudaSuccess);
}

// ---- devices
// ----------------------------------------------------------------------------------------

class Devices : public testing::Test {
 protected:
  void TearDown() override {
    unsetenv("DP_CUDA_ON_CPU_DEVICES");
    static_cast<void>(cudaGetLastError());
  }
  static cudaError_t count_of(const char* setting, int& count) {
    setenv("DP_CUDA_ON_CPU_DEVICES", setting, 1);
    return cudaGetDeviceCount(&count);
  }
};

TEST_F(Devices, AreAsManyAsTheEnvironmentSays) {
  int count = -1, version = -1;
  EXPECT_EQ(count_of("3", count), cudaSuccess);
  EXPECT_EQ(count, 3);
  EXPECT_EQ(cudaSetDevice(3), cudaErrorInvalidDevice);
  EXPECT_EQ(count_of("0", count), cudaErrorNoDevice);
  EXPECT_EQ(count_of("old-driver", count), cudaErrorInsufficientDriver);
  EXPECT_EQ(cudaDriverGetVersion(&version), cudaSuccess);
  EXPECT_LT(version, CUDART_VERSION);
  EXPECT_EQ(count_of("no-driver", count), cudaErrorInsufficientDriver);
  EXPECT_EQ(cudaDriverGetVersion(&version), cudaSuccess);
  EXPECT_EQ(version, 0);
}

TEST_F(Devices, AStreamBelongsToOne) {
  setenv("DP_CUDA_ON_CPU_DEVICES", "2", 1);
  const Stream stream;
  std::thread([&] {
    EXPECT_EQ(cudaSetDevice(1), cudaSuccess);
    EXPECT_EQ(cuda_on_cpu::enqueue(stream, [] {}), cudaErrorInvalidResourceHandle);
  }).join();
}

}  // namespace
}  // namespace dp::cuda
