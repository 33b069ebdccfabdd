// Streams, events and enqueued operations.
#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "tests/cuda_on_cpu/api.hpp"
#include "tests/cuda_on_cpu/block.hpp"
#include "tests/cuda_on_cpu/launch.hpp"

namespace dp::cuda_on_cpu {

namespace {

bool is_capture_open(const std::shared_ptr<Capture>& capture) {
  const auto& open = Queue::get().captures;
  return std::find(open.begin(), open.end(), capture) != open.end();
}

// The stream of a handle for an operation of the calling thread, or the error.
cudaError_t find_for_work_locked(cudaStream_t& stream) {
  Queue& queue = Queue::get();
  if (const cudaError_t verdict = devices_verdict(); verdict != cudaSuccess) return verdict;
  if (queue.is_worker()) return cudaErrorNotPermitted;
  stream = queue.find_locked(stream);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (stream != queue.legacy()) {
    if (stream->device != current_device()) return cudaErrorInvalidResourceHandle;
    return cudaSuccess;
  }
  if (const auto capture = queue.forbidding_locked()) {
    capture->is_invalid = true;
    return cudaErrorStreamCaptureImplicit;
  }
  return cudaSuccess;
}

// Adds a node behind what the stream has captured so far.
cudaError_t capture_locked(CUstream_st& stream, Node node) {
  if (stream.capture->is_invalid) return cudaErrorStreamCaptureInvalidated;
  node.after = stream.captured;
  node.priority = stream.priority;
  stream.captured = {stream.capture->nodes.size()};
  stream.capture->nodes.push_back(std::move(node));
  return cudaSuccess;
}

cudaError_t record_event(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  Queue& queue = Queue::get();
  std::unique_lock lock(queue.mutex);
  if (const cudaError_t code = find_for_work_locked(stream); code != cudaSuccess) return code;
  if (!stream->capture) {
    event->state->capture = nullptr;
    event->state->record = queue.append_locked(stream, {});
    queue.after_enqueue(lock);
    return cudaSuccess;
  }
  if (flags == cudaEventRecordExternal) {
    Node node;
    node.event = event->state;
    return capture_locked(*stream, std::move(node));
  }
  if (stream->capture->is_invalid) return cudaErrorStreamCaptureInvalidated;
  event->state->record = nullptr;
  event->state->capture = stream->capture;
  event->state->after = stream->captured;
  return cudaSuccess;
}

cudaError_t wait_event(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  Queue& queue = Queue::get();
  std::unique_lock lock(queue.mutex);
  if (flags != cudaEventWaitDefault) return cudaErrorInvalidValue;  // nobody uses external waits
  // A stream of another device may be made to wait.
  if (queue.is_worker()) return cudaErrorNotPermitted;
  stream = queue.find_locked(stream);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  const EventState& state = *event->state;
  if (state.capture && !is_capture_open(state.capture)) return cudaErrorInvalidValue;
  if (!state.capture) {
    if (stream->capture) {
      if (!state.record) return cudaSuccess;
      stream->capture->is_invalid = true;
      return cudaErrorStreamCaptureIsolation;
    }
    if (state.record && !state.record->is_done) stream->waits.push_back(state.record);
    return cudaSuccess;
  }
  if (stream->capture && stream->capture != state.capture) {
    stream->capture->is_invalid = state.capture->is_invalid = true;
    return cudaErrorStreamCaptureMerge;
  }
  if (!stream->capture) {
    stream->capture = state.capture;
    stream->captured.clear();
    state.capture->streams.push_back(stream);
  }
  for (const std::size_t node : state.after) {
    if (std::find(stream->captured.begin(), stream->captured.end(), node) ==
        stream->captured.end()) {
      stream->captured.push_back(node);
    }
  }
  return cudaSuccess;
}

// The record of an event, for calls that query or wait; null if it was never recorded.
cudaError_t record_of_locked(cudaEvent_t event, RecordPtr& record) {
  if (event == nullptr) return cudaErrorInvalidResourceHandle;
  if (event->state->capture) {
    event->state->capture->is_invalid = true;
    return cudaErrorCapturedEvent;
  }
  record = event->state->record;
  return unsafe_verdict_locked();
}

cudaError_t find_for_waiting_locked(cudaStream_t& stream) {
  Queue& queue = Queue::get();
  stream = queue.find_locked(stream);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (stream->capture) {
    stream->capture->is_invalid = true;
    return cudaErrorStreamCaptureUnsupported;
  }
  return unsafe_verdict_locked();
}

}  // namespace

cudaError_t unsafe_verdict_locked() {
  Queue& queue = Queue::get();
  if (queue.is_worker()) return cudaErrorNotPermitted;
  if (device_fault() != cudaSuccess) return device_fault();
  const auto capture = queue.forbidding_locked();
  if (!capture) return cudaSuccess;
  capture->is_invalid = true;
  return cudaErrorStreamCaptureUnsupported;
}

cudaError_t submit(cudaStream_t stream, std::function<void()> work, RecordPtr* record,
                   bool is_host) {
  Queue& queue = Queue::get();
  std::unique_lock lock(queue.mutex);
  if (const cudaError_t code = find_for_work_locked(stream); code != cudaSuccess) return code;
  if (stream->capture) {
    Node node;
    node.work = std::move(work);
    node.is_host = is_host;
    return capture_locked(*stream, std::move(node));
  }
  Operation operation;
  operation.work = std::move(work);
  operation.is_host = is_host;
  const RecordPtr appended = queue.append_locked(stream, std::move(operation));
  if (record != nullptr) *record = appended;
  queue.after_enqueue(lock);
  return cudaSuccess;
}

cudaError_t enqueue(cudaStream_t stream, std::function<void()> work, const void* kernel) {
  if (kernel != nullptr) {
    Queue& queue = Queue::get();
    const std::lock_guard lock(queue.mutex);
    queue.load_by_launch_locked(kernel);
  }
  return note(submit(stream, std::move(work)));
}

cudaError_t launch(dim3 blocks, unsigned threads, cudaStream_t stream, std::function<void()> body,
                   const void* kernel) {
  constexpr unsigned kMostX = 0x7FFFFFFFu, kMostYZ = 65535;
  if (threads == 0 || threads > 1024 || blocks.x == 0 || blocks.y == 0 || blocks.z == 0 ||
      blocks.x > kMostX || blocks.y > kMostYZ || blocks.z > kMostYZ) {
    return note(cudaErrorInvalidConfiguration);
  }
  if (is_old_gpu()) return note(cudaErrorNoKernelImageForDevice);
  // On the worker, so that every run of a graph uses other orders.
  static std::uint64_t runs = environment_seed() << 32;
  static const bool loads_all = [] {
    const char* loading = std::getenv("CUDA_MODULE_LOADING");
    return loading != nullptr && std::string_view(loading) == "EAGER";
  }();
  return enqueue(
      stream, [=, body = std::move(body)] { run_blocks(blocks, threads, ++runs, body); },
      loads_all ? nullptr : kernel);
}

}  // namespace dp::cuda_on_cpu

using namespace dp::cuda_on_cpu;

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  if (const cudaError_t verdict = devices_verdict(); verdict != cudaSuccess) return note(verdict);
  if (flags > cudaStreamNonBlocking) return note(cudaErrorInvalidValue);
  Queue& queue = Queue::get();
  const std::lock_guard lock(queue.mutex);
  *stream = queue.create_locked(flags, priority, current_device());
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return note(devices_verdict());
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Queue& queue = Queue::get();
  const std::lock_guard lock(queue.mutex);
  stream = queue.find_locked(stream);
  if (stream == nullptr || stream == queue.legacy()) return note(cudaErrorInvalidResourceHandle);
  queue.destroy_locked(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Queue& queue = Queue::get();
  std::unique_lock lock(queue.mutex);
  if (const cudaError_t code = find_for_waiting_locked(stream); code != cudaSuccess) {
    return note(code);
  }
  // Also waits for the events that the stream waits for.
  if (!stream->waits.empty()) queue.append_locked(stream, {});
  if (stream->last) queue.wait(lock, stream->last);
  return note(device_fault());
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  Queue& queue = Queue::get();
  const std::lock_guard lock(queue.mutex);
  if (const cudaError_t code = find_for_waiting_locked(stream); code != cudaSuccess) {
    return note(code);
  }
  // Not recorded as an error: it is none.
  return stream->last && !stream->last->is_done ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  Queue& queue = Queue::get();
  std::unique_lock lock(queue.mutex);
  if (const cudaError_t code = unsafe_verdict_locked(); code != cudaSuccess) return note(code);
  for (const RecordPtr& record : queue.last_records_locked(current_device())) {
    queue.wait(lock, record);
  }
  return note(device_fault());
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  return note(wait_event(stream, event, flags));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return note(submit(
      stream, [=] { function(data); }, nullptr, true));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if (const cudaError_t verdict = devices_verdict(); verdict != cudaSuccess) return note(verdict);
  *event = new CUevent_st{flags, std::make_shared<EventState>()};
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (event == nullptr) return note(cudaErrorInvalidResourceHandle);
  const std::lock_guard lock(Queue::get().mutex);
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  if (event == nullptr) return note(cudaErrorInvalidResourceHandle);
  return note(record_event(event, stream, flags));
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Queue& queue = Queue::get();
  std::unique_lock lock(queue.mutex);
  RecordPtr record;
  if (const cudaError_t code = record_of_locked(event, record); code != cudaSuccess) {
    return note(code);
  }
  if (record) queue.wait(lock, record);
  return note(device_fault());
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  const std::lock_guard lock(Queue::get().mutex);
  RecordPtr record;
  if (const cudaError_t code = record_of_locked(event, record); code != cudaSuccess) {
    return note(code);
  }
  return record && !record->is_done ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  if (from == nullptr || to == nullptr) return note(cudaErrorInvalidResourceHandle);
  const std::lock_guard lock(Queue::get().mutex);
  const RecordPtr first = from->state->record, last = to->state->record;
  if (!first || !last || ((from->flags | to->flags) & cudaEventDisableTiming) != 0) {
    return note(cudaErrorInvalidResourceHandle);
  }
  if (!first->is_done || !last->is_done) return cudaErrorNotReady;
  *milliseconds = std::chrono::duration<float, std::milli>(last->time - first->time).count();
  return cudaSuccess;
}

}  // extern "C"
