// Streams, events and graphs of the emulator, and the worker that runs enqueued operations.
//
// The worker picks at random among the streams whose first operation may run. It prefers operations
// that a waiting host thread needs. While nobody waits, it first lets time pass, so that a host
// that reads without waiting sees old data. In some periods ("haste") it does the opposite and runs
// an operation before the call that enqueues it returns, so that data that the host writes too late
// is missed.
//
// A kernel is loaded by its first launch. On a GPU loading may wait for the whole device, so it may
// never end while a host function is in a queue; the emulator then ends the process.
//
// A test may let the device fail or hang after some operations (Trouble).
//
// One mutex guards everything here; functions whose names end in _locked require it.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "tests/cuda_on_cpu/random_order.hpp"

namespace dp::cuda_on_cpu {

using Clock = std::chrono::steady_clock;

// The completion of an enqueued operation.
struct Record {
  bool is_done = false;
  Clock::time_point time;
  const CUstream_st* stream = nullptr;
};
using RecordPtr = std::shared_ptr<Record>;

struct Capture;

// The current meaning of an event: the last record, or a place in a capture.
struct EventState {
  RecordPtr record;
  std::shared_ptr<Capture> capture;
  std::vector<std::size_t> after;  // nodes of the capture
};

// A node of a graph: work, or the recording of an event (or neither: a join).
struct Node {
  std::function<void()> work;
  bool is_host = false;  // a function of the host
  std::shared_ptr<EventState> event;
  std::vector<std::size_t> after, before;  // before: filled in when the graph is instantiated
  int priority = 0;                        // of the stream that it was captured from
};

struct Capture {
  cudaStream_t origin = nullptr;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  std::vector<Node> nodes;
  std::vector<cudaStream_t> streams;  // that take part
  bool is_invalid = false;
};

// One launch of a graph.
struct GraphRun {
  std::shared_ptr<const std::vector<Node>> nodes;
  std::vector<RecordPtr> records;    // of nodes that mark an event
  std::vector<std::size_t> missing;  // for each node: how many it waits for
  std::vector<std::size_t> ready;    // nodes that may run
  std::size_t left = 0;
};

struct Operation {
  std::vector<RecordPtr> waits;
  std::function<void()> work;
  bool is_host = false;     // a function of the host
  bool is_running = false;  // it runs on its own thread
  std::unique_ptr<GraphRun> graph;
  RecordPtr record;
};

}  // namespace dp::cuda_on_cpu

// The types behind CUDA's handles.
struct CUstream_st {
  std::deque<dp::cuda_on_cpu::Operation> operations;
  std::vector<dp::cuda_on_cpu::RecordPtr> waits;  // of the next operation
  dp::cuda_on_cpu::RecordPtr last;                // of the operation enqueued last
  std::shared_ptr<dp::cuda_on_cpu::Capture> capture;
  std::vector<std::size_t> captured;  // the nodes that the next one comes after
  unsigned flags = 0;
  int device = 0, priority = 0;
  bool is_destroyed = false;  // goes when it is empty
};

struct CUevent_st {
  unsigned flags = 0;
  std::shared_ptr<dp::cuda_on_cpu::EventState> state;
};

struct CUgraph_st {
  std::shared_ptr<std::vector<dp::cuda_on_cpu::Node>> nodes;
};

struct CUgraphExec_st {
  std::shared_ptr<const std::vector<dp::cuda_on_cpu::Node>> nodes;
  dp::cuda_on_cpu::RecordPtr last;  // launches of one executable graph run one after the other
};

namespace dp::cuda_on_cpu {

// The device failure set by the environment: "fail:N", "hang:N" or "count" (launch.hpp).
struct Trouble {
  enum class Kind { none, fail, hang, count } kind = Kind::none;
  std::uint64_t after = 0;  // operations
};

class Queue {
 public:
  static Queue& get();

  std::mutex mutex;

  // Null or 1 is the legacy default stream. Returns null if there is no such stream (any more).
  [[nodiscard]] cudaStream_t find_locked(cudaStream_t stream);
  [[nodiscard]] cudaStream_t legacy() { return &legacy_; }
  cudaStream_t create_locked(unsigned flags, int priority, int device);
  void destroy_locked(cudaStream_t stream);

  // Appends to a stream that is not capturing.
  RecordPtr append_locked(cudaStream_t stream, Operation operation);
  // Call after an append, without the mutex: in periods of haste, waits until the worker is idle.
  void after_enqueue(std::unique_lock<std::mutex>& lock);
  void wait(std::unique_lock<std::mutex>& lock, const RecordPtr& record);
  [[nodiscard]] std::vector<RecordPtr> last_records_locked(int device) const;

  // Called by every launch: loads the kernel (or whatever `kernel` identifies) if necessary. Ends
  // the process if loading may never end.
  void load_by_launch_locked(const void* kernel);

  // The capture that forbids the calling thread to wait or allocate, or null.
  [[nodiscard]] std::shared_ptr<Capture> forbidding_locked() const;
  std::vector<std::shared_ptr<Capture>> captures;  // that are open

  // Whether the calling thread runs operations, which must not call CUDA.
  [[nodiscard]] bool is_worker() const {
    return is_in_host_function || std::this_thread::get_id() == worker_.get_id();
  }

 private:
  Queue();
  void run_worker();
  void start_locked();
  [[nodiscard]] cudaStream_t choose_locked();
  void finish_locked(Record& record);
  // Runs the first operation, or one node of it.
  void run_one(std::unique_lock<std::mutex>& lock, CUstream_st& stream);
  // Host functions run on their own threads, because they may wait for other streams or threads.
  // `node` is the place in the stream's graph.
  void run_host_function(CUstream_st& stream, std::function<void()> work, std::size_t node);
  void finish_node_locked(CUstream_st& stream, std::size_t node);
  void finish_first_locked(std::unique_lock<std::mutex>& lock, CUstream_st& stream);
  // Counts an operation that has work to do. False: the device has failed, and the operation is
  // dropped. Does not return while the device hangs.
  [[nodiscard]] bool may_run(std::unique_lock<std::mutex>& lock);
  [[nodiscard]] bool is_ready_locked(const CUstream_st& stream) const;
  void find_needed_locked(const CUstream_st* stream, std::vector<const CUstream_st*>& needed) const;
  void stop();

  static constexpr std::size_t kNoNode = static_cast<std::size_t>(-1);
  static thread_local bool is_in_host_function;

  std::vector<std::unique_ptr<CUstream_st>> streams_;
  CUstream_st legacy_;
  std::vector<RecordPtr> wanted_;  // that host threads wait for
  unsigned hasty_ = 0;             // host threads that wait for an idle worker
  bool is_idle_ = true, stops_ = false;
  Trouble trouble_;
  std::uint64_t operations_ = 0;    // that have run
  std::size_t host_functions_ = 0;  // that are in some queue and have not ended
  std::set<const void*> loaded_;    // kernels
  std::uint64_t appended_ = 0, seed_;
  Choices choices_;
  std::condition_variable work_, done_;
  std::thread worker_;
};

// The seed of the environment.
[[nodiscard]] std::uint64_t environment_seed();

}  // namespace dp::cuda_on_cpu
