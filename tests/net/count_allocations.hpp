// Counts the allocations that a piece of code makes on any thread, leaving out those that oneDNN
// and the OpenMP runtime make on their own account.
//
// The program's malloc is replaced (glibc lets it be), so operator new and C allocations are both
// seen. An allocation is a library's if the innermost caller outside of libc and libstdc++ is in
// that library. Not under sanitizers, whose own malloc must stay.
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
