// The parts of a step whose update is enqueued before the training loop knows the sums. Each part
// sleeps for a known time, and must not be shorter in the clock's account.
#include "app/training/replica/step_clock.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tests/support/test_device.hpp"

namespace dp::test {
namespace {

using namespace std::chrono_literals;

TEST(StepClock, AnEarlyUpdateEndsBeforeTheLoopGoesOn) {
  const TestDevice device = make_test_device({.tune = false});
  StepClock clock(*device, nullptr);
  const auto spend = [&](std::chrono::milliseconds time) {
    device->synchronize();  // the marks made so far have their times
    std::this_thread::sleep_for(time);
  };
  constexpr int kSteps = 5;
  clock.begin();
  for (int step = 0; step < kSteps; ++step) {
    clock.step_begins(static_cast<std::uint64_t>(step));
    spend(2ms);
    clock.forward_ended();
    spend(3ms);
    clock.backward_ended();
    spend(1ms);
    const bool is_early = step != 2;
    if (is_early) clock.expect_early_update();
    spend(20ms);
    if (is_early) {
      clock.early_update_begins();
      spend(5ms);
      clock.early_update_ends();
      spend(10ms);
      clock.exchanged(0.0, 0.0, 0.0);
    } else {
      clock.exchanged(0.0, 0.0, 0.0);
      spend(5ms);
    }
    clock.updated();
  }
  const LoopTimes times = clock.take(true);
  EXPECT_EQ(times.steps, kSteps);
  // An event may be complete a moment before the host has seen it.
  constexpr double kSlack_s = 1e-3;
  EXPECT_GT(times.forward, kSteps * 2e-3 - kSlack_s);
  EXPECT_GT(times.backward, kSteps * 3e-3 - kSlack_s);
  EXPECT_GT(times.exposed_comm, kSteps * 21e-3 - kSlack_s);
  EXPECT_GT(times.optimizer, kSteps * 5e-3 - kSlack_s);
  // Behind the early updates of steps 0, 1 and 3; after the last step no other one begins.
  EXPECT_GT(times.other, 3 * 10e-3 - kSlack_s);
}

}  // namespace
}  // namespace dp::test
