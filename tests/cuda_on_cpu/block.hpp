// The threads of a block as fibers, on the calling thread. A fiber runs thread after thread; where
// one waits, it is left suspended and another fiber goes on with the threads that have not begun.
// So a kernel without barriers costs no more than a loop. The order of threads, of blocks and of
// those that leave a barrier together is drawn from a seed.
//
// Ends the process with a line that names the place where threads of a block wait for others that
// have ended, or at different barriers, and where a warp's operation lacks lanes.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <source_location>

namespace dp::cuda_on_cpu {

// All of a kernel. One at a time in a process.
void run_blocks(dim3 blocks, unsigned threads, std::uint64_t seed,
                const std::function<void()>& body);

// ---- called by the running thread of a kernel ----

// Until all threads of the block are here.
void wait_for_block(const std::source_location& where);

enum class WarpOperation { sync, shuffle_xor, shuffle_down, shuffle_up, shuffle, vote, reduce };

// Until all 32 lanes of the warp are here with the same operation; returns what each brought, valid
// until the lane's next but one call.
const std::uint64_t* exchange_in_warp(WarpOperation operation, unsigned mask, std::uint64_t value,
                                      const std::source_location& where);

[[noreturn]] void die(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace dp::cuda_on_cpu
