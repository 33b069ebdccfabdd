// What the functions of the emulated runtime share.
#pragma once

#include <cuda_runtime_api.h>

#include <mutex>

#include "tests/cuda_on_cpu/queue.hpp"

namespace dp::cuda_on_cpu {

// Notes an error for cudaGetLastError and returns it.
cudaError_t note(cudaError_t code);

// cudaSuccess where there are devices, and the reason where not.
[[nodiscard]] cudaError_t devices_verdict();
// An error in a kernel: from here on all calls but those about errors fail with `code`. (On a GPU
// until the process ends; here until a test sets cudaSuccess.)
void set_device_fault(cudaError_t code);
[[nodiscard]] cudaError_t device_fault();
[[nodiscard]] int current_device();  // the calling thread's
[[nodiscard]] bool is_old_gpu();

// For calls that may wait or that allocate: an error (which also spoils the capture) while the
// calling thread captures, and on the worker, whose operations must not call CUDA.
[[nodiscard]] cudaError_t unsafe_verdict_locked();

// Appends to a stream, or to the capture that it takes part in.
// A function of the host runs on a thread of its own.
cudaError_t submit(cudaStream_t stream, std::function<void()> work, RecordPtr* record = nullptr,
                   bool is_host = false);

}  // namespace dp::cuda_on_cpu
