// Ends the process if a wait for its GPU does not end. Every call that waits for a hanging GPU
// would wait for ever, including calls of destructors.
//
// A thread checks now and then which waits go on (kernels/device_waits.hpp). The operations of a
// training step may take five times the timeout of a silent rank (--comm-timeout), because no step
// takes that long. The other ranks have not given up by then: they wait ten timeouts for a rank
// that still answers (comm/mpi/liveness.hpp).
//
// The thread that answers the other ranks may itself wait for a codec's kernels. In that time this
// rank is silent to the other ranks, so the wait may take only half of the timeout.
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
  std::string timeout_option;  // ends the message
  double timeout_s = 60.0;
  // For tests. If set, receives the message, and the process does not end.
  std::function<void(const std::string&)> on_end = {};
};

class DeviceWatch {
 public:
  static constexpr double kPatience = 5.0, kPromptPatience = 0.5;  // timeouts

  // The watch may outlive the device, so that it also watches the waits of the device's destructor.
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
