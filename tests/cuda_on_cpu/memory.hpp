// Memory of the emulated devices, and pinned memory of the host.
//
// Device memory starts as bytes 0xFF (NaN as a float, -1 as an integer; the first 2 MiB of large
// allocations, zeros behind them). A page without access
// follows it, and what lies between its end and that page, at most 255 bytes, and before its
// beginning is checked when it is freed. While the worker has nothing to do, the host cannot touch
// it either (large allocations apart, for which this would take long).
#pragma once

#include <cstddef>

namespace dp::cuda_on_cpu {

// Null when the device has less left. Device memory counts in multiples of 512 bytes.
[[nodiscard]] void* allocate_device(std::size_t bytes, int device);
[[nodiscard]] void* allocate_pinned(std::size_t bytes);
// False when `memory` is not the beginning of such an allocation. Ends the process when something
// was written beside it.
[[nodiscard]] bool free_device(void* memory);
[[nodiscard]] bool free_pinned(void* memory);

[[nodiscard]] std::size_t device_bytes();  // of each device
[[nodiscard]] std::size_t free_bytes(int device);

enum class MemoryKind { device, pinned, pageable };
// The kind of the allocation that `memory` points into.
[[nodiscard]] MemoryKind kind_of(const void* memory);
// Whether a range that begins in device or pinned memory also ends there. True for pageable memory.
[[nodiscard]] bool is_whole(const void* memory, std::size_t bytes);

// memset; cheap for many zeros. By the worker.
void fill(void* memory, int value, std::size_t bytes);

// By the worker: before it runs an operation, and before it pauses.
void open_device_memory();
void close_device_memory();

}  // namespace dp::cuda_on_cpu
