#include "app/process/device_watch.hpp"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>

#include "app/process/run_status.hpp"
#include "comm/mpi/runtime/job_end.hpp"
#include "kernels/base/error.hpp"

namespace dp {

DeviceWatch::DeviceWatch(std::shared_ptr<DeviceWaits> waits, DeviceWatchOptions options)
    : waits_(std::move(waits)), options_(std::move(options)), thread_([this] { main_loop(); }) {}

DeviceWatch::~DeviceWatch() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void DeviceWatch::main_loop() {
  pthread_setname_np(pthread_self(), "dp-gpu-watch");
  struct Watched {
    DeviceWaits::Kind kind;
    double patience;
    std::uint64_t number = 0;
    int looks = 0;  // how often this wait was found going on
  };
  Watched watched[] = {{DeviceWaits::Kind::step, kPatience},
                       {DeviceWaits::Kind::prompt, kPromptPatience}};
  const std::chrono::duration<double> look(
      std::clamp(kPromptPatience * options_.timeout_s / 10.0, 0.005, 1.0));
  std::unique_lock lock(mutex_);
  // Counts looks instead of the clock's seconds, because time in which the process itself was
  // stopped must not count as waiting.
  while (!changed_.wait_for(lock, look, [this] { return is_over_; })) {
    for (Watched& kind : watched) {
      const std::optional<DeviceWaits::Open> open = waits_->oldest(kind.kind);
      const std::uint64_t number = open ? open->number : 0;
      kind.looks = number != 0 && number == kind.number ? kind.looks + 1 : 0;
      kind.number = number;
      const double waited_s = kind.looks * look.count();
      if (kind.looks > 1 && waited_s >= kind.patience * options_.timeout_s) {
        return end(open->what, waited_s, kind.patience);
      }
    }
  }
}

void DeviceWatch::end(const char* what, double waited_s, double patience) {
  const std::string message = fmt::format(
      "{} has not finished {} in {:.0f} s. Check nvidia-smi and dmesg (\"Xid\"), or raise {} (now "
      "{:g} s; the limit here is {:g} times that).",
      options_.gpu, what, waited_s, options_.timeout_option, options_.timeout_s, patience);
  if (options_.on_end) return options_.on_end(message);
  const std::string line = options_.program + ": " + message + "\n";
  static_cast<void>(!::write(STDERR_FILENO, line.data(), line.size()));
  constexpr int kExitCode = static_cast<int>(ErrorKind::device);
  RunStatus::say_end(kExitCode);
  end_job_now(kExitCode);
}

}  // namespace dp
