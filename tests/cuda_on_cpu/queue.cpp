#include "tests/cuda_on_cpu/queue.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "tests/cuda_on_cpu/api.hpp"
#include "tests/cuda_on_cpu/block.hpp"
#include "tests/cuda_on_cpu/memory.hpp"

namespace dp::cuda_on_cpu {

namespace {

constexpr unsigned kStretch = 24;  // operations between changes of haste

bool all_done(const std::vector<RecordPtr>& records) {
  return std::all_of(records.begin(), records.end(), [](const auto& r) { return r->is_done; });
}

Trouble environment_trouble() {
  const char* text = std::getenv("DP_CUDA_ON_CPU_TROUBLE");
  if (text == nullptr) return {};
  const std::string_view given = text;
  if (given == "count") return {.kind = Trouble::Kind::count};
  const bool hangs = given.starts_with("hang:");
  if (!hangs && !given.starts_with("fail:")) die("DP_CUDA_ON_CPU_TROUBLE=%s", text);
  return {.kind = hangs ? Trouble::Kind::hang : Trouble::Kind::fail,
          .after = std::strtoull(text + 5, nullptr, 10)};
}

}  // namespace

std::uint64_t environment_seed() {
  const char* text = std::getenv("DP_CUDA_ON_CPU_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 1;
}

Queue::Queue() : trouble_(environment_trouble()), seed_(environment_seed()), choices_(seed_) {}

thread_local bool Queue::is_in_host_function = false;

// Never destroyed: the worker may still look at it while the process ends.
Queue& Queue::get() {
  static Queue& queue = *new Queue;
  return queue;
}

void Queue::start_locked() {
  if (worker_.joinable()) return;
  worker_ = std::thread([this] { run_worker(); });
  std::atexit([] { get().stop(); });
}

void Queue::stop() {
  {
    const std::lock_guard lock(mutex);
    stops_ = true;
  }
  work_.notify_all();
  if (worker_.joinable() && !is_worker()) worker_.join();
  if (trouble_.kind == Trouble::Kind::count) {
    std::fprintf(stderr, "cuda_on_cpu: %llu operations\n",
                 static_cast<unsigned long long>(operations_));
  }
}

cudaStream_t Queue::find_locked(cudaStream_t stream) {
  if (stream == nullptr || stream == cudaStreamLegacy) return &legacy_;
  for (const auto& each : streams_) {
    if (each.get() == stream && !each->is_destroyed) return stream;
  }
  return nullptr;
}

cudaStream_t Queue::create_locked(unsigned flags, int priority, int device) {
  streams_.push_back(std::make_unique<CUstream_st>());
  CUstream_st& stream = *streams_.back();
  stream.flags = flags;
  stream.priority = priority;
  stream.device = device;
  return &stream;
}

void Queue::destroy_locked(cudaStream_t stream) {
  stream->is_destroyed = true;
  if (!stream->operations.empty()) return;  // the worker removes it
  std::erase_if(streams_, [&](const auto& each) { return each.get() == stream; });
}

RecordPtr Queue::append_locked(cudaStream_t stream, Operation operation) {
  start_locked();
  operation.waits.insert(operation.waits.end(), stream->waits.begin(), stream->waits.end());
  stream->waits.clear();
  // The legacy stream runs behind and before those that were not created as non-blocking.
  if (stream == &legacy_) {
    for (const auto& other : streams_) {
      if ((other->flags & cudaStreamNonBlocking) == 0 && other->last) {
        operation.waits.push_back(other->last);
      }
    }
  } else if ((stream->flags & cudaStreamNonBlocking) == 0 && legacy_.last) {
    operation.waits.push_back(legacy_.last);
  }
  host_functions_ += operation.is_host ? 1 : 0;
  if (operation.graph) {
    const std::vector<Node>& nodes = *operation.graph->nodes;
    host_functions_ += static_cast<std::size_t>(
        std::count_if(nodes.begin(), nodes.end(), [](const Node& node) { return node.is_host; }));
  }
  operation.record = std::make_shared<Record>();
  operation.record->stream = stream;
  stream->last = operation.record;
  stream->operations.push_back(std::move(operation));
  ++appended_;
  work_.notify_one();
  return stream->last;
}

void Queue::after_enqueue(std::unique_lock<std::mutex>& lock) {
  Choices choices(seed_ + appended_ / kStretch);
  if (choices.below(3) != 0 || is_worker()) return;
  is_idle_ = false;
  ++hasty_;
  work_.notify_one();
  done_.wait(lock, [&] { return is_idle_ || stops_; });
  --hasty_;
}

void Queue::wait(std::unique_lock<std::mutex>& lock, const RecordPtr& record) {
  if (record->is_done) return;
  wanted_.push_back(record);
  work_.notify_one();
  done_.wait(lock, [&] { return record->is_done || stops_; });
}

void Queue::load_by_launch_locked(const void* kernel) {
  if (!loaded_.insert(kernel).second || host_functions_ == 0) return;
  die("the first launch of a kernel, which loads it, while %zu functions of the host are in a "
      "queue: "
      "loading may wait for the device, and the device for them",
      host_functions_);
}

std::vector<RecordPtr> Queue::last_records_locked(int device) const {
  std::vector<RecordPtr> records;
  if (legacy_.last) records.push_back(legacy_.last);
  for (const auto& stream : streams_) {
    if (stream->device == device && stream->last) records.push_back(stream->last);
  }
  return records;
}

std::shared_ptr<Capture> Queue::forbidding_locked() const {
  for (const auto& capture : captures) {
    const bool is_own = capture->thread == std::this_thread::get_id();
    if (capture->mode == cudaStreamCaptureModeGlobal ||
        (capture->mode == cudaStreamCaptureModeThreadLocal && is_own)) {
      return capture;
    }
  }
  return nullptr;
}

// ---- the worker ---------------------------------------------------------------------------------

bool Queue::is_ready_locked(const CUstream_st& stream) const {
  if (stream.operations.empty()) return false;
  const Operation& first = stream.operations.front();
  if (first.is_running || (first.graph && first.graph->left > 0 && first.graph->ready.empty())) {
    return false;
  }
  return all_done(first.waits);
}

// A stream's operations and the operations of other streams that they wait for.
void Queue::find_needed_locked(const CUstream_st* stream,
                               std::vector<const CUstream_st*>& needed) const {
  if (std::find(needed.begin(), needed.end(), stream) != needed.end()) return;
  needed.push_back(stream);
  const auto follow = [&](const CUstream_st& s) {
    if (&s != stream) return;
    for (const Operation& operation : s.operations) {
      for (const RecordPtr& record : operation.waits) {
        if (!record->is_done) find_needed_locked(record->stream, needed);
      }
    }
  };
  follow(legacy_);
  for (const auto& each : streams_) follow(*each);
}

// A stream whose first operation may run, or null.
cudaStream_t Queue::choose_locked() {
  std::vector<const CUstream_st*> needed;
  for (const RecordPtr& record : wanted_) find_needed_locked(record->stream, needed);
  std::vector<cudaStream_t> ready, wanted;
  const auto look = [&](CUstream_st& stream) {
    if (!is_ready_locked(stream)) return;
    ready.push_back(&stream);
    if (std::find(needed.begin(), needed.end(), &stream) != needed.end()) wanted.push_back(&stream);
  };
  look(legacy_);
  for (const auto& stream : streams_) look(*stream);
  if (ready.empty()) return nullptr;
  const auto& from = !wanted.empty() && choices_.below(8) != 0 ? wanted : ready;
  return from[choices_.below(from.size())];
}

void Queue::run_worker() {
  std::unique_lock lock(mutex);
  std::uint64_t burst = 0;  // operations that run without anyone's asking before the next pause
  while (!stops_) {
    cudaStream_t stream = choose_locked();
    if (stream == nullptr) {
      close_device_memory();
      is_idle_ = true;
      done_.notify_all();
      work_.wait(lock);
      is_idle_ = false;
      continue;
    }
    is_idle_ = false;
    if (wanted_.empty() && hasty_ == 0 && burst == 0) {
      close_device_memory();
      const auto until = Clock::now() + std::chrono::microseconds(20 + choices_.below(300));
      work_.wait_until(lock, until, [&] { return stops_ || !wanted_.empty() || hasty_ > 0; });
      burst = 1 + choices_.below(16);
      continue;  // there may be other streams by now
    }
    burst = wanted_.empty() && burst > 0 ? burst - 1 : 0;
    open_device_memory();
    run_one(lock, *stream);
  }
  open_device_memory();  // for what looks at it while the process ends
  done_.notify_all();
}

void Queue::finish_locked(Record& record) {
  record.is_done = true;
  record.time = Clock::now();
  // The thread that waited for it wakes up later; nothing more is run on its behalf.
  std::erase_if(wanted_, [&](const RecordPtr& each) { return each.get() == &record; });
}

bool Queue::may_run(std::unique_lock<std::mutex>& lock) {
  ++operations_;
  if (trouble_.after > 0 && operations_ > trouble_.after) {
    if (trouble_.kind == Trouble::Kind::fail) set_device_fault(cudaErrorIllegalAddress);
    if (trouble_.kind == Trouble::Kind::hang) {
      close_device_memory();
      while (!stops_) {
        is_idle_ = true;  // nobody who only enqueues waits for it
        done_.notify_all();
        work_.wait(lock);
      }
    }
  }
  return device_fault() == cudaSuccess && !stops_;
}

void Queue::run_one(std::unique_lock<std::mutex>& lock, CUstream_st& stream) {
  // Appending does not move what is in a deque.
  Operation& operation = stream.operations.front();
  if (operation.graph != nullptr && operation.graph->left > 0) {
    GraphRun& run = *operation.graph;
    const std::size_t pick = choices_.below(run.ready.size());
    const std::size_t node = run.ready[pick];
    run.ready.erase(run.ready.begin() + static_cast<std::ptrdiff_t>(pick));
    const Node& what = (*run.nodes)[node];
    const bool runs = what.work && may_run(lock);
    if (runs && what.is_host) {
      run_host_function(stream, what.work, node);
      return;
    }
    if (runs) {
      lock.unlock();
      what.work();
      lock.lock();
    }
    finish_node_locked(stream, node);
    if (run.left > 0) return;
  } else if (operation.work && may_run(lock)) {
    if (operation.is_host) {
      operation.is_running = true;
      run_host_function(stream, operation.work, kNoNode);
      return;
    }
    lock.unlock();
    operation.work();
    lock.lock();
  }
  finish_first_locked(lock, stream);
}

void Queue::run_host_function(CUstream_st& stream, std::function<void()> work, std::size_t node) {
  std::thread([this, &stream, work = std::move(work), node] {
    is_in_host_function = true;
    work();
    std::unique_lock lock(mutex);
    bool is_last = true;
    if (node != kNoNode) {
      finish_node_locked(stream, node);
      is_last = stream.operations.front().graph->left == 0;
    }
    if (is_last) finish_first_locked(lock, stream);
    work_.notify_one();
  }).detach();
}

void Queue::finish_node_locked(CUstream_st& stream, std::size_t node) {
  GraphRun& run = *stream.operations.front().graph;
  if (run.records[node]) finish_locked(*run.records[node]);
  host_functions_ -= (*run.nodes)[node].is_host ? 1 : 0;
  for (const std::size_t other : (*run.nodes)[node].before) {
    if (--run.missing[other] == 0) run.ready.push_back(other);
  }
  if (--run.left > 0) done_.notify_all();
}

void Queue::finish_first_locked(std::unique_lock<std::mutex>& lock, CUstream_st& stream) {
  finish_locked(*stream.operations.front().record);
  host_functions_ -= stream.operations.front().is_host ? 1 : 0;
  Operation ended = std::move(stream.operations.front());
  stream.operations.pop_front();
  if (stream.is_destroyed && stream.operations.empty()) destroy_locked(&stream);
  done_.notify_all();
  lock.unlock();
  ended = {};  // what its functions hold ends without the mutex
  lock.lock();
}

}  // namespace dp::cuda_on_cpu
