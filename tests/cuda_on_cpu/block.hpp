// The threads of a block as fibers on the calling thread. A fiber runs one thread after the other.
// If a thread waits, its fiber is suspended, and another fiber continues with the threads that have
// not begun. A kernel without barriers therefore costs no more than a loop. The order of threads,
// of blocks and of the threads that leave a barrier together is drawn from a seed.
//
// Ends the process with a line that names the place in these cases: threads of a block wait for
// others that have ended, or at different barriers; a warp operation lacks lanes.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <source_location>

namespace dp::cuda_on_cpu {

// Runs a whole kernel. One at a time in a process.
void run_blocks(dim3 blocks, unsigned threads, std::uint64_t seed,
                const std::function<void()>& body);

// ---- called by the running thread of a kernel ----

// Waits until all threads of the block are here.
void wait_for_block(const std::source_location& where);

enum class WarpOperation { sync, shuffle_xor, shuffle_down, shuffle_up, shuffle, vote, reduce };

// Waits until all 32 lanes of the warp are here with the same operation. Returns the lanes' values,
// valid until the lane's next call but one.
const std::uint64_t* exchange_in_warp(WarpOperation operation, unsigned mask, std::uint64_t value,
                                      const std::source_location& where);

[[noreturn]] void die(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace dp::cuda_on_cpu
