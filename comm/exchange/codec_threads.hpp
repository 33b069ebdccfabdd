// Threads that encode several segments of a bucket at a time, beside the reducer's own.
//
// A segment's payload is the same whoever encodes it, so results do not depend on the number of
// threads. They help where a step waits for the codec: beside a GPU, which computes in a few
// milliseconds, and at the end of backward.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/mpi/job_thread.hpp"

namespace dp {

class CodecThreads {
 public:
  static constexpr std::size_t kMost = 4;

  // `threads`: from 1 (the caller alone) to kMost.
  explicit CodecThreads(std::size_t threads);

  // How many a rank with that number of cores uses: a quarter of them, since the others compute.
  [[nodiscard]] static std::size_t for_cores(std::size_t cores) {
    return std::clamp<std::size_t>(cores / 4, 1, kMost);
  }
  // For one of `ranks` on this host: by the cores that its process may use, but at most its share
  // of the host's.
  [[nodiscard]] static std::size_t on_host_of(std::size_t ranks);

  [[nodiscard]] std::size_t size() const { return helpers_.size() + 1; }

  // Calls body(i) for all i < count, each once, on these threads, and returns when all have
  // returned. Then throws the first exception of a body. One caller at a time.
  template <class Body>
  void for_each(std::size_t count, const Body& body) {
    struct Work {
      const Body& body;
      std::size_t count;
      std::atomic<std::size_t> next = 0;
      std::mutex mutex = {};
      std::exception_ptr error = nullptr;

      void take_all() {
        try {
          for (std::size_t i = next++; i < count; i = next++) body(i);
        } catch (...) {
          const std::lock_guard lock(mutex);
          if (!error) error = std::current_exception();
        }
      }
    } work{body, count};
    std::array<JobThread::Number, kMost> jobs = {};
    std::size_t posted = 0;
    for (; posted < helpers_.size() && posted + 1 < count; ++posted) {
      jobs[posted] = helpers_[posted]->post(
          [](void* context) { static_cast<Work*>(context)->take_all(); }, &work);
    }
    work.take_all();
    while (posted-- > 0) helpers_[posted]->wait(jobs[posted]);
    if (work.error) std::rethrow_exception(work.error);
  }

 private:
  std::vector<std::unique_ptr<JobThread>> helpers_;
};

}  // namespace dp
