// Helpers shared by the functions of the emulated runtime.
#pragma once

#include <cuda_runtime_api.h>

#include <mutex>

#include "tests/cuda_on_cpu/queue.hpp"

namespace dp::cuda_on_cpu {

// Records an error for cudaGetLastError and returns it.
cudaError_t note(cudaError_t code);

// cudaSuccess if there are devices, otherwise the reason.
[[nodiscard]] cudaError_t devices_verdict();
// Reports an error in a kernel: from here on all calls except those about errors fail with `code`.
// (On a GPU until the process ends; here until a test sets cudaSuccess.)
void set_device_fault(cudaError_t code);
[[nodiscard]] cudaError_t device_fault();
[[nodiscard]] int current_device();  // the calling thread's
[[nodiscard]] bool is_old_gpu();

// For calls that may wait or allocate: an error while the calling thread captures (it also
// invalidates the capture), and on the worker, whose operations must not call CUDA.
[[nodiscard]] cudaError_t unsafe_verdict_locked();

// Appends to a stream, or to the capture that it takes part in.
// A host function runs on its own thread.
cudaError_t submit(cudaStream_t stream, std::function<void()> work, RecordPtr* record = nullptr,
                   bool is_host = false);

}  // namespace dp::cuda_on_cpu
