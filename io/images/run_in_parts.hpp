// Divides work among threads for the duration of a call.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <thread>
#include <vector>

namespace dp {

// Runs f(begin, end) for pieces of [0, count) on `threads` threads (at least 1) and waits. If
// several pieces throw, the earliest piece's exception is rethrown, so the result does not depend
// on the number of threads. Pieces after a failed one may be skipped.
template <class F>
void run_in_parts(std::size_t count, std::size_t threads, std::size_t piece, F f) {
  const std::size_t pieces = (count + piece - 1) / piece;
  std::vector<std::exception_ptr> failures(pieces);
  std::atomic<std::size_t> next = 0, failed = pieces;
  const auto work = [&] {
    while (true) {
      const std::size_t i = next++;
      if (i >= pieces || i > failed) return;
      try {
        f(i * piece, std::min((i + 1) * piece, count));
      } catch (...) {
        failures[i] = std::current_exception();
        std::size_t before = failed;
        while (i < before && !failed.compare_exchange_weak(before, i)) {
        }
      }
    }
  };
  {
    std::vector<std::jthread> workers;
    for (std::size_t i = 1; i < std::min(threads, pieces); ++i) workers.emplace_back(work);
    work();
  }
  if (failed < pieces) std::rethrow_exception(failures[failed]);
}

}  // namespace dp
