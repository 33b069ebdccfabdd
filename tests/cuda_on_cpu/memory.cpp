#include "tests/cuda_on_cpu/memory.hpp"

#include <sys/mman.h>
#include <unistd.h>
#include <csignal>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "tests/cuda_on_cpu/block.hpp"

namespace dp::cuda_on_cpu {

namespace {

constexpr unsigned char kPoison = 0xFF, kGuard = 0xA7;
constexpr std::size_t kUnit = 512, kAlignment = 256;
constexpr std::size_t kMostPoisoned = 2u << 20;
// Changing the access of 64 MiB takes about a millisecond. Allocations above the first size stay
// accessible, and all do once their sum exceeds the second size.
constexpr std::size_t kLargestClosed = 4u << 20, kMostClosed = 64u << 20;

struct Allocation {
  std::size_t bytes = 0;
  MemoryKind kind = MemoryKind::device;
  int device = 0;
  unsigned char* mapping = nullptr;  // pages of the device's memory and a page without access
  std::size_t mapping_bytes = 0;
  bool is_open = true;
};

struct Memory {
  std::mutex mutex;
  std::map<std::uintptr_t, Allocation> allocations;
  std::map<int, std::size_t> used;
  std::size_t used_to_close = 0;
  std::atomic<bool> has_closed = false, has_open = false;
};

Memory& state() {
  static Memory& memory = *new Memory;
  return memory;
}

std::size_t page() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }
std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}
std::uintptr_t address_of(const void* memory) { return reinterpret_cast<std::uintptr_t>(memory); }

void set_access(Allocation& allocation, bool is_open) {
  if (allocation.kind != MemoryKind::device || allocation.bytes > kLargestClosed) return;
  if (allocation.is_open == is_open) return;
  const std::size_t bytes = allocation.mapping_bytes - page();
  if (mprotect(allocation.mapping, bytes, is_open ? PROT_READ | PROT_WRITE : PROT_NONE) != 0) {
    die("mprotect failed");
  }
  allocation.is_open = is_open;
}

// The allocation that contains an address; its pages count as part of it.
const std::pair<const std::uintptr_t, Allocation>* find(std::uintptr_t address) {
  auto& allocations = state().allocations;
  auto at = allocations.upper_bound(address);
  if (at != allocations.end() && at->second.mapping != nullptr &&
      address >= address_of(at->second.mapping)) {
    return &*at;
  }
  if (at == allocations.begin()) return nullptr;
  --at;
  const Allocation& a = at->second;
  // The address after the last byte still belongs to the allocation.
  const std::uintptr_t end =
      a.mapping == nullptr ? at->first + a.bytes + 1 : address_of(a.mapping) + a.mapping_bytes;
  return address < end ? &*at : nullptr;
}

struct sigaction old_action;

// Prints the meaning of a fault in device memory, then lets it happen again.
void explain_fault(int, siginfo_t* info, void*) {
  const std::uintptr_t address = address_of(info->si_addr);
  if (const auto* found = find(address); found != nullptr && found->second.mapping != nullptr) {
    const auto offset = static_cast<std::ptrdiff_t>(address - found->first);
    const bool is_inside = offset >= 0 && offset < static_cast<std::ptrdiff_t>(found->second.bytes);
    std::fprintf(stderr, "cuda_on_cpu: %s byte %td of %zu of device memory\n",
                 is_inside ? "the host touched" : "an access outside:", offset,
                 found->second.bytes);
  }
  sigaction(SIGSEGV, &old_action, nullptr);
}

void explain_faults() {
  static const bool once = [] {
    struct sigaction action {};
    action.sa_sigaction = &explain_fault;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    sigaction(SIGSEGV, &action, &old_action);
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace

std::size_t device_bytes() {
  const char* text = std::getenv("DP_CUDA_ON_CPU_MEMORY_MB");
  return static_cast<std::size_t>(text != nullptr ? std::atoll(text) : 4096) << 20;
}

std::size_t free_bytes(int device) {
  const std::lock_guard lock(state().mutex);
  return device_bytes() - state().used[device];
}

void* allocate_device(std::size_t bytes, int device) {
  Memory& memory = state();
  const std::lock_guard lock(memory.mutex);
  explain_faults();
  if (bytes > device_bytes()) return nullptr;
  const std::size_t counted = round_up(bytes, kUnit);
  if (counted > device_bytes() - memory.used[device]) return nullptr;
  const std::size_t data = round_up(bytes, kAlignment), pages = round_up(data, page());
  void* mapping = mmap(nullptr, pages + page(), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  Allocation allocation{.bytes = bytes,
                        .kind = MemoryKind::device,
                        .device = device,
                        .mapping = static_cast<unsigned char*>(mapping),
                        .mapping_bytes = pages + page(),
                        .is_open = true};
  if (mprotect(allocation.mapping + pages, page(), PROT_NONE) != 0) die("mprotect failed");
  unsigned char* first = allocation.mapping + (pages - data);
  std::memset(allocation.mapping, kGuard, pages - data);
  std::memset(first, kPoison, std::min(bytes, kMostPoisoned));
  std::memset(first + bytes, kGuard, data - bytes);
  memory.used[device] += counted;
  if (bytes <= kLargestClosed) memory.used_to_close += counted;
  memory.allocations.emplace(address_of(first), allocation);
  memory.has_open = true;
  return first;
}

bool free_device(void* address) {
  Memory& memory = state();
  const std::lock_guard lock(memory.mutex);
  const auto at = memory.allocations.find(address_of(address));
  if (at == memory.allocations.end() || at->second.kind != MemoryKind::device) return false;
  Allocation& a = at->second;
  set_access(a, true);
  const auto* first = static_cast<const unsigned char*>(address);
  const unsigned char* end = a.mapping + a.mapping_bytes - page();
  const auto is_guard = [](unsigned char byte) { return byte == kGuard; };
  if (!std::all_of(static_cast<const unsigned char*>(a.mapping), first, is_guard)) {
    die("something wrote before the beginning of %zu bytes of device memory", a.bytes);
  }
  if (!std::all_of(first + a.bytes, end, is_guard)) {
    die("something wrote past the end of %zu bytes of device memory", a.bytes);
  }
  munmap(a.mapping, a.mapping_bytes);
  memory.used[a.device] -= round_up(a.bytes, kUnit);
  if (a.bytes <= kLargestClosed) memory.used_to_close -= round_up(a.bytes, kUnit);
  memory.allocations.erase(at);
  return true;
}

void* allocate_pinned(std::size_t bytes) {
  Memory& memory = state();
  const std::lock_guard lock(memory.mutex);
  void* address = nullptr;
  if (posix_memalign(&address, page(), std::max<std::size_t>(bytes, 1)) != 0) return nullptr;
  std::memset(address, kPoison, bytes);
  Allocation allocation;
  allocation.bytes = bytes;
  allocation.kind = MemoryKind::pinned;
  memory.allocations.emplace(address_of(address), allocation);
  return address;
}

bool free_pinned(void* address) {
  Memory& memory = state();
  const std::lock_guard lock(memory.mutex);
  const auto at = memory.allocations.find(address_of(address));
  if (at == memory.allocations.end() || at->second.kind != MemoryKind::pinned) return false;
  memory.allocations.erase(at);
  std::free(address);
  return true;
}

MemoryKind kind_of(const void* memory) {
  const std::lock_guard lock(state().mutex);
  const auto* found = find(address_of(memory));
  return found != nullptr ? found->second.kind : MemoryKind::pageable;
}

bool is_whole(const void* memory, std::size_t bytes) {
  const std::lock_guard lock(state().mutex);
  const std::uintptr_t address = address_of(memory);
  const auto* found = find(address);
  if (found == nullptr) return true;
  return address >= found->first && address - found->first <= found->second.bytes &&
         bytes <= found->second.bytes - (address - found->first);
}

void fill(void* memory, int value, std::size_t bytes) {
  constexpr std::size_t kLarge = 1u << 20;
  if (value != 0 || bytes < kLarge || kind_of(memory) != MemoryKind::device) {
    std::memset(memory, value, bytes);
    return;
  }
  // Released pages read as zeros, and cost nothing until they are written.
  auto* first = static_cast<unsigned char*>(memory);
  const std::size_t head = round_up(address_of(first), page()) - address_of(first);
  const std::size_t pages = (bytes - head) / page() * page();
  std::memset(first, 0, head);
  if (madvise(first + head, pages, MADV_DONTNEED) != 0) die("madvise failed");
  std::memset(first + head + pages, 0, bytes - head - pages);
}

void open_device_memory() {
  Memory& memory = state();
  if (!memory.has_closed) return;
  const std::lock_guard lock(memory.mutex);
  for (auto& [address, allocation] : memory.allocations) set_access(allocation, true);
  memory.has_closed = false;
  memory.has_open = true;
}

void close_device_memory() {
  Memory& memory = state();
  if (!memory.has_open) return;
  const std::lock_guard lock(memory.mutex);
  if (memory.used_to_close > kMostClosed) return;
  for (auto& [address, allocation] : memory.allocations) set_access(allocation, false);
  memory.has_closed = true;
  memory.has_open = false;
}

}  // namespace dp::cuda_on_cpu
