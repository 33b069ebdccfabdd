// Memory, copies and fills.
#include <cstring>

#include "tests/cuda_on_cpu/api.hpp"
#include "tests/cuda_on_cpu/block.hpp"
#include "tests/cuda_on_cpu/launch.hpp"
#include "tests/cuda_on_cpu/memory.hpp"

namespace dp::cuda_on_cpu {

namespace {

// Freeing waits for everything, as CUDA's does.
cudaError_t wait_for_device() {
  Queue& queue = Queue::get();
  std::unique_lock lock(queue.mutex);
  if (const cudaError_t verdict = unsafe_verdict_locked(); verdict != cudaSuccess) return verdict;
  for (const RecordPtr& record : queue.last_records_locked(current_device())) {
    queue.wait(lock, record);
  }
  return device_fault();
}

cudaError_t may_allocate() {
  if (const cudaError_t verdict = devices_verdict(); verdict != cudaSuccess) return verdict;
  const std::lock_guard lock(Queue::get().mutex);
  return unsafe_verdict_locked();
}

cudaError_t check_copy(const void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  if (!is_whole(to, bytes) || !is_whole(from, bytes)) return cudaErrorInvalidValue;
  if (kind == cudaMemcpyDefault) return cudaSuccess;
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  // Pinned memory may count as either kind.
  const auto fits = [](const void* memory, bool is_device) {
    const MemoryKind its = kind_of(memory);
    return its == MemoryKind::pinned || is_device == (its == MemoryKind::device);
  };
  return fits(to, to_device) && fits(from, from_device) ? cudaSuccess : cudaErrorInvalidValue;
}

bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(stream, &status) == cudaSuccess &&
         status != cudaStreamCaptureStatusNone;
}

// Enqueues, and waits if the caller asks for it or the memory is not pinned.
cudaError_t transfer(cudaStream_t stream, bool waits, std::function<void()> work) {
  Queue& queue = Queue::get();
  if (waits) {
    std::unique_lock lock(queue.mutex);
    if (const cudaError_t verdict = unsafe_verdict_locked(); verdict != cudaSuccess) return verdict;
  }
  RecordPtr record;
  if (const cudaError_t code = submit(stream, std::move(work), &record); code != cudaSuccess) {
    return code;
  }
  if (waits && record) {
    std::unique_lock lock(queue.mutex);
    queue.wait(lock, record);
  }
  return device_fault();
}

}  // namespace

void require_usable(const void* memory) {
  if (memory != nullptr && kind_of(memory) == MemoryKind::pageable) {
    die("a kernel is given %p, which is neither memory of the device nor pinned", memory);
  }
}

}  // namespace dp::cuda_on_cpu

using namespace dp::cuda_on_cpu;

extern "C" {

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  *memory = nullptr;
  if (const cudaError_t verdict = may_allocate(); verdict != cudaSuccess) return note(verdict);
  if (bytes == 0) return cudaSuccess;
  *memory = allocate_device(bytes, current_device());
  return note(*memory != nullptr ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaFree(void* memory) {
  if (memory == nullptr) return cudaSuccess;
  if (const cudaError_t verdict = wait_for_device(); verdict != cudaSuccess) return note(verdict);
  return note(free_device(memory) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) {
  *memory = nullptr;
  if (const cudaError_t verdict = may_allocate(); verdict != cudaSuccess) return note(verdict);
  *memory = allocate_pinned(bytes);
  return note(*memory != nullptr ? cudaSuccess : cudaErrorMemoryAllocation);
}
cudaError_t cudaMallocHost(void** memory, std::size_t bytes) {
  return cudaHostAlloc(memory, bytes, cudaHostAllocDefault);
}
cudaError_t cudaFreeHost(void* memory) {
  if (memory == nullptr) return cudaSuccess;
  if (const cudaError_t verdict = wait_for_device(); verdict != cudaSuccess) return note(verdict);
  return note(free_pinned(memory) ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaHostGetDevicePointer(void** device_memory, void* memory, unsigned) {
  if (kind_of(memory) != MemoryKind::pinned) return note(cudaErrorInvalidValue);
  *device_memory = memory;
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  if (const cudaError_t code = check_copy(to, from, bytes, kind); code != cudaSuccess) {
    return note(code);
  }
  const bool is_pageable =
      kind_of(to) == MemoryKind::pageable || kind_of(from) == MemoryKind::pageable;
  if (is_pageable && is_capturing(stream)) {
    static_cast<void>(transfer(stream, true, {}));  // spoils the capture
    return note(cudaErrorStreamCaptureUnsupported);
  }
  return note(transfer(stream, is_pageable, [=] { std::memmove(to, from, bytes); }));
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  if (bytes == 0) return cudaSuccess;
  if (const cudaError_t code = check_copy(to, from, bytes, kind); code != cudaSuccess) {
    return note(code);
  }
  return note(transfer(nullptr, true, [=] { std::memmove(to, from, bytes); }));
}

cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  if (kind_of(memory) == MemoryKind::pageable || !is_whole(memory, bytes)) {
    return note(cudaErrorInvalidValue);
  }
  return note(submit(stream, [=] { fill(memory, value, bytes); }));
}
cudaError_t cudaMemset(void* memory, int value, std::size_t bytes) {
  return cudaMemsetAsync(memory, value, bytes, nullptr);
}

}  // extern "C"
