// cuda_on_cpu: kernels and streams of CUDA on the processor, for tests on machines without a GPU.
//
// The sources of kernels/cuda are compiled by the host's compiler, with prelude.hpp in front of
// each, and linked with a runtime that has the signatures of CUDA's. Streams are queues that one
// *worker* thread runs, in an order as unhelpful as the dependencies allow (queue.hpp); a kernel's
// blocks run one after the other, the threads of a block as fibers (block.hpp); device memory is
// poisoned, guarded and out of the host's reach (memory.cpp).
//
// Wrong kernels end the process with one line that begins with "cuda_on_cpu:". Wrong calls return
// the error that CUDA returns.
//
// Environment:
//   DP_CUDA_ON_CPU_DEVICES    how many GPUs there are (1); "no-driver", "old-driver", "old-gpu";
//                             "taken": one that another process has, and that takes one at a time
//   DP_CUDA_ON_CPU_MEMORY_MB  memory of each (4096)
//   DP_CUDA_ON_CPU_SEED       which of the allowed orders is taken (1)
//   DP_CUDA_ON_CPU_TROUBLE    "fail:N": after N operations all work is dropped, and calls return
//                             cudaErrorIllegalAddress; "hang:N": after N operations none ends any
//                             more; "count": prints at the end how many have run
//   CUDA_MODULE_LOADING       EAGER: kernels are loaded from the start, except those of libraries,
//                             which may load theirs when they are first used
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <type_traits>

namespace dp::cuda_on_cpu {

// Enqueues a kernel: `body` is called once for each thread of each block. `kernel` is what must be
// loaded for it; null: nothing.
cudaError_t launch(dim3 blocks, unsigned threads, cudaStream_t stream, std::function<void()> body,
                   const void* kernel = nullptr);

// Enqueues work of a library: a single call on the worker.
cudaError_t enqueue(cudaStream_t stream, std::function<void()> work, const void* kernel = nullptr);

// Ends the process when `memory` is not null and not memory that a kernel can use.
void require_usable(const void* memory);

// What launch.cuh calls: a kernel with its arguments, whose pointers are looked at.
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
