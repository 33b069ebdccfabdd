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
  DeviceWaits waits;
  std::promise<std::string> promise;
  std::future<std::string> message = promise.get_future();
  std::atomic<bool> has_ended = false;
  DeviceWatch watch{waits,
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
      text.starts_with("the GPU of rank 1 on host a has not ended the copy of a batch for "))
      << text;
  EXPECT_NE(text.find("(option --comm-timeout; this may take 5 times as long)"), std::string::npos)
      << text;
}

// Other ranks take this one for silent after the timeout.
TEST(DeviceWatch, EndsAPromptWaitBeforeTheTimeout) {
  Watched watched;
  const DeviceWaits::HostFunction function(watched.waits);
  const DeviceWaits::Wait step(watched.waits, "a step's operations");
  const DeviceWaits::Wait wait(watched.waits, "a codec's kernels", DeviceWaits::Kind::prompt);
  const std::string text = watched.message.get();
  EXPECT_TRUE(text.find("has not ended a codec's kernels") != std::string::npos &&
              text.find("this may take 0.5 times as long") != std::string::npos)
      << text;
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
