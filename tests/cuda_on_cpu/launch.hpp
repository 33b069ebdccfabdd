// cuda_on_cpu: CUDA's kernels and streams on the CPU, for tests on machines without a GPU.
//
// The sources of kernels/cuda are compiled by the host compiler, with prelude.hpp in front of each,
// and linked with a runtime that has CUDA's signatures. Streams are queues run by one *worker*
// thread, in an order as adverse as the dependencies allow (queue.hpp). A kernel's blocks run one
// after the other, the threads of a block as fibers (block.hpp). Device memory is poisoned, guarded
// and inaccessible to the host (memory.cpp).
//
// A faulty kernel ends the process with one line that begins with "cuda_on_cpu:". A faulty call
// returns the error that CUDA returns.
//
// Environment:
//   DP_CUDA_ON_CPU_DEVICES    number of GPUs (1); "no-driver", "old-driver", "old-gpu"; "taken":
//                             one GPU, used by another process, that takes one process at a time
//   DP_CUDA_ON_CPU_MEMORY_MB  memory of each (4096)
//   DP_CUDA_ON_CPU_SEED       selects one of the allowed orders (1)
//   DP_CUDA_ON_CPU_TROUBLE    "fail:N": after N operations all work is dropped, and calls return
//                             cudaErrorIllegalAddress; "hang:N": after N operations none ends any
//                             more; "count": prints at the end how many have run
//   CUDA_MODULE_LOADING       EAGER: kernels are loaded from the start, except kernels of
//                             libraries, which may be loaded on first use
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <type_traits>

namespace dp::cuda_on_cpu {

// Enqueues a kernel: `body` is called once for each thread of each block. `kernel` identifies the
// code to load; null: none.
cudaError_t launch(dim3 blocks, unsigned threads, cudaStream_t stream, std::function<void()> body,
                   const void* kernel = nullptr);

// Enqueues a library's work: a single call on the worker.
cudaError_t enqueue(cudaStream_t stream, std::function<void()> work, const void* kernel = nullptr);

// Ends the process if `memory` is neither null nor memory that a kernel can use.
void require_usable(const void* memory);

// Called by launch.cuh: a kernel with its arguments, whose pointers are checked.
template <class... Parameters>
cudaError_t launch_kernel(dim3 blocks, unsigned threads, cudaStream_t stream,
                          void (*kernel)(Parameters...),
                          std::type_identity_t<Parameters>... given) {
  const auto look_at = [](const auto& value) {
    if constexpr (std::is_pointer_v<std::remove_cvref_t<decltype(value)>>) {
      require_usable(const_cast<const void*>(static_cast<const volatile void*>(value)));
    }
  };
  (look_at(given), ...);
  return launch(
      blocks, threads, stream, [=] { kernel(given...); }, reinterpret_cast<const void*>(kernel));
}

}  // namespace dp::cuda_on_cpu
