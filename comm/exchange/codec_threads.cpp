#include "comm/exchange/codec_threads.hpp"

#include <sched.h>
#include <unistd.h>

#include "kernels/base/error.hpp"

namespace dp {

CodecThreads::CodecThreads(std::size_t threads) {
  DP_ASSERT(threads >= 1 && threads <= kMost, "{} threads for codecs", threads);
  while (size() < threads) {
    helpers_.push_back(std::make_unique<JobThread>(
        JobThreadOptions{.name = "dp-codec", .rest = std::chrono::hours(1)}));
  }
}

std::size_t CodecThreads::on_host_of(std::size_t ranks) {
  cpu_set_t usable;
  if (::sched_getaffinity(0, sizeof usable, &usable) != 0) return 1;
  const auto cores = static_cast<std::size_t>(CPU_COUNT(&usable));
  const long of_host = std::max(::sysconf(_SC_NPROCESSORS_ONLN), 0L);
  const auto share = static_cast<std::size_t>(of_host) / std::max<std::size_t>(ranks, 1);
  return for_cores(std::min(cores, share));
}

}  // namespace dp
