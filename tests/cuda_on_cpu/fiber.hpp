// A fiber: its own stack, and the switch between stacks, known to the sanitizers.
#pragma once

#include <cstddef>

namespace dp::cuda_on_cpu {

class Fiber {
 public:
  // Represents the calling thread, to return to.
  Fiber();
  // A fiber that calls entry(), which never returns, when it is switched to for the first time.
  // `number` staggers the stacks, so that their first lines do not share a cache set.
  Fiber(void (*entry)(), std::size_t number);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Leaves `from`, which is running, and continues in `to`. Returns when something switches back.
  static void switch_to(Fiber& from, Fiber& to);
  // Call first in entry().
  static void begin();

  // Virtual memory: untouched pages cost nothing.
  static constexpr std::size_t kStackBytes = 256 << 10;

 private:
  void* stack_pointer_ = nullptr;
  std::byte* memory_ = nullptr;  // a guard page, then the stack
  const void* bottom_ = nullptr;
  std::size_t bytes_ = 0;
  void* fake_stack_ = nullptr;  // AddressSanitizer's
  void* race_state_ = nullptr;  // ThreadSanitizer's
};

}  // namespace dp::cuda_on_cpu
