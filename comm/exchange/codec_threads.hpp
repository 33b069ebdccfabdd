// Threads that help the reducer's thread to encode several segments of a bucket at a time.
//
// A segment's payload does not depend on the thread that encodes it, so results do not depend on
// the number of threads. Threads help when a step waits for the codec: at the end of backward, and
// with a GPU, which computes a step in a few milliseconds.
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

  // The number of threads for a rank with that many cores: a quarter of the cores, since the rest
  // compute.
  [[nodiscard]] static std::size_t for_cores(std::size_t cores) {
    return std::clamp<std::size_t>(cores / 4, 1, kMost);
  }
  // The number of threads for one of `ranks` ranks on this host: for_cores() of the smaller of two
  // numbers: the cores that this process may use, and an equal share of the host's cores.
  [[nodiscard]] static std::size_t on_host_of(std::size_t ranks);

  [[nodiscard]] std::size_t size() const { return helpers_.size() + 1; }

  // Calls body(i) once for each i < count, on these threads and the caller's, and waits for all of
  // them. Then throws the first exception of a body, if there was one. One caller at a time.
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
