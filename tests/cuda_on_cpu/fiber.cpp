#include "tests/cuda_on_cpu/fiber.hpp"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

#ifndef __x86_64__
#error "the switch of fibers is written for x86-64"
#endif

// void dp_switch_stack(void** leave /* rdi */, void* enter /* rsi */): saves the callee-saved
// registers on the old stack and restores them from the new one.
asm(R"(
.text
.p2align 4
.type dp_switch_stack, @function
dp_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size dp_switch_stack, .-dp_switch_stack
)");
extern "C" void dp_switch_stack(void** leave, void* enter);

namespace dp::cuda_on_cpu {

Fiber::Fiber() {
  pthread_attr_t attributes;
  void* address = nullptr;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) std::abort();
  pthread_attr_getstack(&attributes, &address, &bytes_);
  pthread_attr_destroy(&attributes);
  bottom_ = address;
#if defined(__SANITIZE_THREAD__)
  race_state_ = __tsan_get_current_fiber();
#endif
}

Fiber::Fiber(void (*entry)(), std::size_t number) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* memory = mmap(nullptr, kStackBytes + page, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, page, PROT_NONE) != 0) std::abort();
  memory_ = static_cast<std::byte*>(memory);
  bottom_ = memory_ + page;
  bytes_ = kStackBytes;
  // As if dp_switch_stack had been called by entry's caller: six registers, the address to return
  // to, and rsp + 8 a multiple of 16 at entry.
  auto* top = reinterpret_cast<std::uintptr_t*>(memory_ + page + kStackBytes - 64 * (number % 61));
  *--top = 0;
  *--top = reinterpret_cast<std::uintptr_t>(entry);
  for (int i = 0; i < 6; ++i) *--top = 0;
  stack_pointer_ = top;
#if defined(__SANITIZE_THREAD__)
  race_state_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
  if (memory_ == nullptr) return;
  munmap(memory_, kStackBytes + static_cast<std::size_t>(sysconf(_SC_PAGESIZE)));
#if defined(__SANITIZE_THREAD__)
  __tsan_destroy_fiber(race_state_);
#endif
}

void Fiber::switch_to(Fiber& from, Fiber& to) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&from.fake_stack_, to.bottom_, to.bytes_);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(to.race_state_, 0);
#endif
  dp_switch_stack(&from.stack_pointer_, to.stack_pointer_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(from.fake_stack_, nullptr, nullptr);
#endif
}

void Fiber::begin() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
}

}  // namespace dp::cuda_on_cpu
