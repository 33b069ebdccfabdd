#include "tests/fuzz/hdf5_trial.hpp"

#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>
#include <vector>

#include "io/files/trial.hpp"
#include "kernels/base/error.hpp"

// The sanitizers' own functions, where the program has them.
extern "C" {
[[gnu::weak]] int __asan_report_present();
[[gnu::weak]] void* __asan_get_report_address();
[[gnu::weak]] std::size_t __asan_get_alloc_stack(void* address, void** stack, std::size_t size,
                                                 int* thread);
}

namespace dp {
namespace {

constexpr int kFaultOfHdf5 = 99;
constexpr std::size_t kMostFrames = 64;
constexpr std::size_t kMostAllocation_bytes = std::size_t{64} << 20;
constexpr suseconds_t kLook_us = 10'000;
constexpr int kMostLooks = 30, kLooksAtHang = 20;  // a small file takes less than five
constexpr unsigned kLimit_s = 60;  // by the clock; it is reached where the child waits for a lock

struct Range {
  std::uintptr_t begin, end;
};
std::vector<Range> hdf5;        // NOLINT: handlers of signals have no other way
std::vector<Range> own_memory;  // NOLINT: the program's variables and its stack
bool is_child = false;          // NOLINT
int looks = 0, looks_in_hdf5 = 0;

int note_places(dl_phdr_info* info, std::size_t, void*) {
  const std::string_view name = info->dlpi_name;  // empty: this program
  const bool is_hdf5 = name.find("libhdf5") != std::string_view::npos;
  if (!is_hdf5 && !name.empty()) return 0;
  for (const ElfW(Phdr) & part : std::span(info->dlpi_phdr, info->dlpi_phnum)) {
    if (part.p_type != PT_LOAD) continue;
    const std::uintptr_t begin = info->dlpi_addr + part.p_vaddr;
    (is_hdf5 ? hdf5 : own_memory).push_back({begin, begin + part.p_memsz});
  }
  return 0;
}

void note_stack() {
  pthread_attr_t attributes;
  if (::pthread_getattr_np(::pthread_self(), &attributes) != 0) std::abort();
  void* begin = nullptr;
  std::size_t bytes = 0;
  ::pthread_attr_getstack(&attributes, &begin, &bytes);
  ::pthread_attr_destroy(&attributes);
  own_memory.push_back(
      {reinterpret_cast<std::uintptr_t>(begin), reinterpret_cast<std::uintptr_t>(begin) + bytes});
}

bool is_in(std::span<const Range> ranges, void* place) {
  const auto at = reinterpret_cast<std::uintptr_t>(place);
  return std::ranges::any_of(ranges, [at](Range r) { return at >= r.begin && at < r.end; });
}

bool is_hdf5_in(std::span<void* const> stack) {
  return std::ranges::any_of(stack, [](void* place) { return is_in(hdf5, place); });
}

bool is_hdf5_at_work() {
  std::array<void*, kMostFrames> stack;
  const int count = ::backtrace(stack.data(), static_cast<int>(stack.size()));
  return is_hdf5_in(std::span(stack).first(static_cast<std::size_t>(std::max(count, 0))));
}

// Whether HDF5 was given memory of ours. Without it, HDF5 has come there by reading far beyond its
// own.
bool has_memory_of_ours(std::span<void* const> stack) {
  return std::ranges::any_of(stack, [](void* place) {
    Dl_info found;
    if (!is_in(hdf5, place) || ::dladdr(place, &found) == 0 || found.dli_sname == nullptr) {
      return false;
    }
    const std::string_view name = found.dli_sname;
    return name == "H5Aread" || name == "H5Dread";
  });
}

// Whether AddressSanitizer reports on memory that HDF5 did not allocate, but was given. HDF5 itself
// is compiled without it, so nothing is known of HDF5's own variables. While a report is under way,
// __asan_locate_address would wait for ever for any memory but the heap's.
bool is_about_other_memory() {
  if (__asan_report_present == nullptr || __asan_report_present() == 0) return false;
  void* const address = __asan_get_report_address();
  std::array<void*, kMostFrames> stack;
  const int frames = ::backtrace(stack.data(), static_cast<int>(stack.size()));
  if (address == nullptr ||
      !has_memory_of_ours(std::span(stack).first(static_cast<std::size_t>(std::max(frames, 0)))))
    return false;
  if (is_in(own_memory, address)) return true;
  int thread = 0;
  const std::size_t count =
      __asan_get_alloc_stack(address, stack.data(), stack.size(), &thread);  // 0: nobody's
  return count > 0 && !is_hdf5_in(std::span(stack).first(count));
}

[[noreturn]] void end_by_fault() {
  ::_exit(is_hdf5_at_work() && !is_about_other_memory() ? kFaultOfHdf5 : EXIT_FAILURE);
}

void look_for_hang(int) {
  looks_in_hdf5 = is_hdf5_at_work() ? looks_in_hdf5 + 1 : 0;
  if (++looks < kMostLooks) return;
  ::_exit(looks_in_hdf5 >= kLooksAtHang ? kFaultOfHdf5 : EXIT_FAILURE);
}

void handle(int number, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART | SA_ONSTACK;
  ::sigaction(number, &action, nullptr);
}

[[noreturn]] void be_child(const std::function<void()>& read) {
  is_child = true;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const rlimit no_core = {0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  // HDF5 may use up the stack, too.
  static std::array<std::byte, std::size_t{1} << 17> memory;
  const stack_t stack = {.ss_sp = memory.data(), .ss_flags = 0, .ss_size = memory.size()};
  ::sigaltstack(&stack, nullptr);
  for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
    handle(number, [](int) { end_by_fault(); });
  }
  handle(SIGPROF, look_for_hang);
  const itimerval look = {.it_interval = {0, kLook_us}, .it_value = {0, kLook_us}};
  ::setitimer(ITIMER_PROF, &look, nullptr);
  handle(SIGALRM, SIG_DFL);
  ::alarm(kLimit_s);
  try {
    read();
  } catch (...) {
    // The second reading finds it again.
  }
  ::_exit(0);
}

}  // namespace

void try_in_child(const std::string&, const std::function<void()>& read) {
  // A fault that destroys the stack may hide that HDF5 was at work; it does not every time.
  for (int trial = 0; trial < 3; ++trial) {
    const pid_t child = ::fork();
    if (child < 0) return;
    if (child == 0) be_child(read);
    int result = 0;
    while (::waitpid(child, &result, 0) < 0 && errno == EINTR) {
    }
    if (result == 0) return;
    if (WIFEXITED(result) && WEXITSTATUS(result) == kFaultOfHdf5) {
      throw_error(ErrorKind::data, "HDF5: reading crashed, or not at all");
    }
  }
}

namespace fuzz {

void prepare_trials() {
  hdf5.clear();
  own_memory.clear();
  ::dl_iterate_phdr(note_places, nullptr);
  note_stack();
  if (hdf5.empty()) std::abort();
  is_hdf5_at_work();  // the first call loads a library
}

}  // namespace fuzz
}  // namespace dp

// AddressSanitizer calls it before it writes a report, which takes a second.
extern "C" void __asan_on_error();
extern "C" void __asan_on_error() {
  if (dp::is_child) dp::end_by_fault();
}

// And this one after every allocation, before libFuzzer looks at it.
extern "C" void __sanitizer_malloc_hook(const volatile void*, std::size_t bytes);
extern "C" void __sanitizer_malloc_hook(const volatile void*, std::size_t bytes) {
  if (dp::is_child && bytes > dp::kMostAllocation_bytes) dp::end_by_fault();
}
