// Tests of the emulator, part streams, graphs and devices: correct programs run correctly, and
// faulty ones are detected.
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <thread>
#include <vector>

#include "tests/cuda_on_cpu/api.hpp"
#include "tests/cuda_on_cpu/emulator_testing.hpp"

namespace dp::cuda {
namespace {

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

// One stream writes a value and another reads it, `times` times. Returns how often the old value
// was read.
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
  // The enqueuing call must not wait for work that waits for this thread, in haste or otherwise.
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

// Begins a capture, calls the body, and returns the result of ending the capture.
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
