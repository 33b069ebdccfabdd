// Counts the allocations that a piece of code makes on any thread, except allocations that oneDNN
// and the OpenMP runtime make themselves.
//
// It replaces the program's malloc, which glibc allows, so it sees operator new and C allocations.
// An allocation belongs to a library if its innermost caller outside libc and libstdc++ is in that
// library. It does not count under sanitizers, which need their own malloc.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

namespace dp::test {

[[nodiscard]] bool can_count_allocations();

struct AllocationCount {
  explicit AllocationCount(const std::function<void()>& code);

  std::size_t ours = 0;
  std::string first_callers;  // of the first few, for addr2line
};

}  // namespace dp::test
