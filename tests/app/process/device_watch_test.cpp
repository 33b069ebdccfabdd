#include "app/process/device_watch.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <thread>

namespace dp {
namespace {

using namespace std::chrono_literals;

// A watch that keeps its message. 2 ms of timeout: it ends a wait after a tenth of a second.
struct Watched {
  std::shared_ptr<DeviceWaits> shared_waits = std::make_shared<DeviceWaits>();
  DeviceWaits& waits = *shared_waits;
  std::promise<std::string> promise;
  std::future<std::string> message = promise.get_future();
  std::atomic<bool> has_ended = false;
  DeviceWatch watch{shared_waits,
                    {.gpu = "the GPU of rank 1 on host a",
                     .program = "dptrain",
                     .timeout_option = "--comm-timeout",
                     .timeout_s = 0.002,
                     .on_end = [this](const std::string& text) {
                       has_ended = true;
                       promise.set_value(text);
                     }}};
};

TEST(DeviceWatch, EndsAWaitThatDoesNotEnd) {
  Watched watched;
  const DeviceWaits::Wait wait(watched.waits, "the copy of a batch");
  const std::string text = watched.message.get();
  EXPECT_TRUE(
      text.starts_with("the GPU of rank 1 on host a has not finished the copy of a batch in "))
      << text;
  EXPECT_NE(text.find("raise --comm-timeout (now 0.002 s; the limit here is 5 times that)."),
            std::string::npos)
      << text;
}

// Other ranks take this one for silent after the timeout.
TEST(DeviceWatch, EndsAPromptWaitBeforeTheTimeout) {
  Watched watched;
  const DeviceWaits::HostFunction function(watched.waits);
  const DeviceWaits::Wait step(watched.waits, "a step's operations");
  const DeviceWaits::Wait wait(watched.waits, "a codec's kernels", DeviceWaits::Kind::prompt);
  const std::string text = watched.message.get();
  EXPECT_TRUE(text.find("has not finished a codec's kernels") != std::string::npos &&
              text.find("the limit here is 0.5 times that") != std::string::npos)
      << text;
}

// A device's destructor waits for its last operations, while the watch still looks.
TEST(DeviceWatch, SeesTheLastWaitOfADevice) {
  struct LastWait {
    std::shared_ptr<DeviceWaits> waits = std::make_shared<DeviceWaits>();
    std::future<void>* until = nullptr;
    ~LastWait() {
      const DeviceWaits::Wait wait(*waits, "its last operations");
      until->wait();
    }
  };
  std::promise<void> seen;
  std::future<void> is_seen = seen.get_future();
  auto device = std::make_unique<LastWait>();
  device->until = &is_seen;
  const DeviceWatch watch(device->waits, {.gpu = "the GPU",
                                          .program = "dptrain",
                                          .timeout_option = "--comm-timeout",
                                          .timeout_s = 0.002,
                                          .on_end = [&](const std::string&) { seen.set_value(); }});
  device.reset();
  EXPECT_EQ(is_seen.wait_for(0s), std::future_status::ready);
}

TEST(DeviceWatch, WaitsThatEndAreNoTrouble) {
  Watched watched;
  for (int i = 0; i < 50; ++i) {
    const DeviceWaits::Wait wait(watched.waits, "a kernel");
    std::this_thread::sleep_for(1ms);
  }
  std::this_thread::sleep_for(30ms);
  EXPECT_FALSE(watched.has_ended);
}

TEST(DeviceWatch, OtherRanksMayKeepAGpuWaiting) {
  Watched watched;
  std::optional<DeviceWaits::HostFunction> function(std::in_place, watched.waits);
  const DeviceWaits::Wait wait(watched.waits, "a step's operations");
  std::this_thread::sleep_for(100ms);
  EXPECT_FALSE(watched.has_ended);
  function.reset();
  EXPECT_FALSE(watched.message.get().empty());
}

}  // namespace
}  // namespace dp
