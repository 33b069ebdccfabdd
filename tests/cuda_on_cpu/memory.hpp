// Memory of the emulated devices, and pinned host memory.
//
// Device memory is initialised with bytes 0xFF (NaN as a float, -1 as an integer); in large
// allocations only the first 2 MiB, with zeros after them. A page without access follows it. The
// bytes between its end and that page (at most 255) and the bytes before its beginning are checked
// when it is freed. While the worker is idle, the host cannot access it either, except for large
// allocations, for which this would take too long.
#pragma once

#include <cstddef>

namespace dp::cuda_on_cpu {

// Null if the device has less left. Device memory is counted in multiples of 512 bytes.
[[nodiscard]] void* allocate_device(std::size_t bytes, int device);
[[nodiscard]] void* allocate_pinned(std::size_t bytes);
// False if `memory` is not the beginning of such an allocation. Ends the process if something was
// written next to it.
[[nodiscard]] bool free_device(void* memory);
[[nodiscard]] bool free_pinned(void* memory);

[[nodiscard]] std::size_t device_bytes();  // of each device
[[nodiscard]] std::size_t free_bytes(int device);

enum class MemoryKind { device, pinned, pageable };
// The kind of the allocation that `memory` points into.
[[nodiscard]] MemoryKind kind_of(const void* memory);
// Whether a range that begins in device or pinned memory also ends there. True for pageable memory.
[[nodiscard]] bool is_whole(const void* memory, std::size_t bytes);

// memset, cheap for many zeros. Called by the worker.
void fill(void* memory, int value, std::size_t bytes);

// Called by the worker before it runs an operation, and before it pauses.
void open_device_memory();
void close_device_memory();

}  // namespace dp::cuda_on_cpu
