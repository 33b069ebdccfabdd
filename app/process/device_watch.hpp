// Ends the process if a wait for its GPU does not end: the GPU stands still, and every call that
// waits for it would wait for ever, those of destructors too.
//
// A thread looks now and then which waits go on (kernels/device_waits.hpp). The operations of a
// step are waited for five times as long as a silent rank (--comm-timeout): no step takes so long,
// and the other ranks, which wait ten times as long for one that answers (comm/mpi/liveness.hpp),
// have not given up yet. While the thread that answers waits itself, for a codec's kernels, the
// others take this rank for silent, so such a wait gets half of the timeout.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "kernels/device_waits.hpp"

namespace dp {

struct DeviceWatchOptions {
  std::string gpu;             // "the GPU of rank 1 on host a", in the message
  std::string program;         // begins the message
  std::string timeout_option;  // ends it
  double timeout_s = 60.0;
  // Gets the message instead of the end of the process; for tests.
  std::function<void(const std::string&)> on_end = {};
};

class DeviceWatch {
 public:
  static constexpr double kPatience = 5.0, kPromptPatience = 0.5;  // timeouts

  // It may outlive the device, so that the waits of the device's destructor are seen, too.
  DeviceWatch(std::shared_ptr<DeviceWaits> waits, DeviceWatchOptions options);
  ~DeviceWatch();
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;

 private:
  void main_loop();
  void end(const char* what, double waited_s, double patience);

  std::shared_ptr<DeviceWaits> waits_;
  DeviceWatchOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace dp
