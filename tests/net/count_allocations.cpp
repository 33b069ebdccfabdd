#include "tests/net/count_allocations.hpp"

#include <dlfcn.h>
#include <execinfo.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define DP_COUNTS_ALLOCATIONS 1
#else
#define DP_COUNTS_ALLOCATIONS 0
#endif

namespace dp::test {
namespace {

constexpr std::size_t kMostShown = 5;
constexpr int kMostFrames = 24;

std::atomic<bool> is_counting{false};
std::atomic<std::size_t> count{0};
std::array<std::array<void*, kMostFrames>, kMostShown> shown;
thread_local bool is_inside = false;  // backtrace may allocate on its own

bool is_in(const char* object, const char* library) {
  const char* slash = std::strrchr(object, '/');
  return std::strncmp(slash != nullptr ? slash + 1 : object, library, std::strlen(library)) == 0;
}

[[maybe_unused]] void note_allocation() {
  if (!is_counting.load(std::memory_order_relaxed) || is_inside) return;
  is_inside = true;
  std::array<void*, kMostFrames> frames{};
  const int depth = backtrace(frames.data(), kMostFrames);
  bool is_ours = true;
  // Frames 0 and 1 are this function and the replaced malloc.
  for (int i = 2; i < depth; ++i) {
    Dl_info info{};
    if (dladdr(frames[static_cast<std::size_t>(i)], &info) == 0) continue;
    if (is_in(info.dli_fname, "libc.") || is_in(info.dli_fname, "libstdc++")) continue;
    is_ours = !is_in(info.dli_fname, "libdnnl") && !is_in(info.dli_fname, "libgomp");
    break;
  }
  if (is_ours) {
    const std::size_t at = count.fetch_add(1);
    if (at < kMostShown) shown[at] = frames;
  }
  is_inside = false;
}

}  // namespace

bool can_count_allocations() { return DP_COUNTS_ALLOCATIONS != 0; }

AllocationCount::AllocationCount(const std::function<void()>& code) {
  std::array<void*, 4> frames{};
  backtrace(frames.data(), 4);  // the first call loads a library
  count = 0;
  is_counting = true;
  code();
  is_counting = false;
  ours = count;
  for (std::size_t i = 0; i < ours && i < kMostShown; ++i) {
    for (std::size_t k = 2; k < 10; ++k) {
      Dl_info info{};
      if (shown[i][k] == nullptr || dladdr(shown[i][k], &info) == 0) continue;
      std::array<char, 256> text{};
      std::snprintf(text.data(), text.size(), " %s+0x%zx", info.dli_fname,
                    static_cast<std::size_t>(static_cast<char*>(shown[i][k]) -
                                             static_cast<char*>(info.dli_fbase)));
      first_callers += text.data();
    }
    first_callers += "\n";
  }
}

}  // namespace dp::test

#if DP_COUNTS_ALLOCATIONS
extern "C" {
void* __libc_malloc(std::size_t size);                      // NOLINT: glibc's names
void* __libc_calloc(std::size_t count, std::size_t size);   // NOLINT
void* __libc_realloc(void* memory, std::size_t size);       // NOLINT
void* __libc_memalign(std::size_t alignment, std::size_t);  // NOLINT

void* malloc(std::size_t size) {
  dp::test::note_allocation();
  return __libc_malloc(size);
}
void* calloc(std::size_t count, std::size_t size) {
  dp::test::note_allocation();
  return __libc_calloc(count, size);
}
void* realloc(void* memory, std::size_t size) {
  dp::test::note_allocation();
  return __libc_realloc(memory, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) {
  dp::test::note_allocation();
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** memory, std::size_t alignment, std::size_t size) {
  dp::test::note_allocation();
  *memory = __libc_memalign(alignment, size);
  return *memory != nullptr ? 0 : ENOMEM;
}
}
#endif
