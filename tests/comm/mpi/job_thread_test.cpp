// The thread that runs jobs: their order, their errors, its failure, its end. No test waits for a
// clock: where something must have happened, the test waits until it has.
#include "comm/mpi/job_thread.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>

namespace dp {
namespace {

using namespace std::chrono_literals;

// A posted job that throws a sentence.
void fail(void*) { throw std::runtime_error("the link is gone"); }

// What f throws, or "nothing".
template <class F>
std::string thrown_by(F f) {
  try {
    f();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing";
}

// What every call says that comes after a failure.
void expect_failure(JobThread& thread, const std::string& message) {
  EXPECT_EQ(thrown_by([&] { thread.run([] {}); }), message);
  EXPECT_EQ(thrown_by([&] { thread.post(fail, nullptr); }), message);
  EXPECT_EQ(thrown_by([&] { thread.throw_failure(); }), message);
}

TEST(JobThread, RunsJobsInTheirOrderOnOneThread) {
  struct Job {
    std::vector<int>* order;
    int number;
  };
  std::vector<int> order;
  std::thread::id started_on;
  JobThread thread({.start = [&] { started_on = std::this_thread::get_id(); }});
  EXPECT_TRUE(thread.is_over(0));
  std::vector<Job> jobs;
  for (int i = 0; i < 5; ++i) jobs.push_back({&order, i});
  JobThread::Number last = 0;
  for (Job& job : jobs) {
    const JobThread::Number number = thread.post(
        [](void* p) {
          const auto* in = static_cast<Job*>(p);
          in->order->push_back(in->number);
        },
        &job);
    EXPECT_EQ(number, last + 1);
    last = number;
  }
  const std::thread::id ran_on = thread.run([&] {
    order.push_back(5);
    return std::this_thread::get_id();
  });
  EXPECT_TRUE(thread.is_over(last));
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(ran_on, started_on);
  EXPECT_NE(ran_on, std::this_thread::get_id());
}

TEST(JobThread, GivesBackResultsThatCanOnlyBeMoved) {
  JobThread thread({});
  const std::unique_ptr<int> result = thread.run([] { return std::make_unique<int>(7); });
  EXPECT_EQ(*result, 7);
}

TEST(JobThread, ThrowsAJobsErrorToItsCallerAndGoesOn) {
  JobThread thread({});
  EXPECT_EQ(thrown_by([&] { thread.run([] { throw std::runtime_error("no such file"); }); }),
            "no such file");
  EXPECT_EQ(thrown_by([&] { thread.run([]() -> int { throw std::logic_error("a bug"); }); }),
            "a bug");
  EXPECT_EQ(thrown_by([&] { thread.throw_failure(); }), "nothing");
  EXPECT_EQ(thread.run([] { return 3; }), 3);
}

TEST(JobThread, AFailureOfAPostedJobReachesAllLaterCalls) {
  JobThread thread({});
  bool has_run = false;
  const JobThread::Number good = thread.post([](void*) {}, nullptr);
  // A job that holds the others up, so that the last is there before the one that fails runs.
  std::atomic<bool> may_go = false;
  thread.post([](void* p) { static_cast<std::atomic<bool>*>(p)->wait(false); }, &may_go);
  const JobThread::Number bad = thread.post(fail, nullptr);
  const JobThread::Number behind =
      thread.post([](void* p) { *static_cast<bool*>(p) = true; }, &has_run);
  may_go = true;
  may_go.notify_one();
  EXPECT_EQ(thrown_by([&] { thread.wait(behind); }), "the link is gone");
  EXPECT_EQ(thrown_by([&] { thread.wait(bad); }), "the link is gone");
  EXPECT_FALSE(thread.is_over(bad));
  EXPECT_FALSE(has_run);
  // What was over before the failure stays so.
  EXPECT_EQ(thrown_by([&] { thread.wait(good); }), "nothing");
  expect_failure(thread, "the link is gone");
}

TEST(JobThread, WaitsSoLongAtMost) {
  JobThread thread({});
  std::atomic<bool> may_go = false;
  const auto job =
      thread.post([](void* p) { static_cast<std::atomic<bool>*>(p)->wait(false); }, &may_go);
  EXPECT_FALSE(thread.wait_for(job, std::chrono::milliseconds(20)));
  may_go = true;
  may_go.notify_all();
  EXPECT_TRUE(thread.wait_for(job, std::chrono::minutes(1)));
}

TEST(JobThread, AFailureAtTheStartOrBetweenJobsReachesAllLaterCalls) {
  JobThread at_start({.start = [] { throw std::runtime_error("no such device"); }});
  EXPECT_EQ(thrown_by([&] { at_start.run([] {}); }), "no such device");
  expect_failure(at_start, "no such device");

  JobThread between({.idle = [] { throw std::runtime_error("a rank is gone"); }, .rest = 1ms});
  while (thrown_by([&] { between.throw_failure(); }) == "nothing") std::this_thread::sleep_for(1ms);
  expect_failure(between, "a rank is gone");
}

TEST(JobThread, DoesSomethingSmallBetweenJobs) {
  std::atomic<int> calls = 0;
  JobThread thread({.idle = [&] { ++calls; }, .rest = 1ms});
  for (int round = 0; round < 3; ++round) {
    const int before = thread.run([&] { return calls.load(); });
    while (calls == before) std::this_thread::sleep_for(1ms);
  }
}

// A job that sleeps for long is woken by its caller.
TEST(JobThread, ANapEndsWhenTheCallerWakesIt) {
  struct Sleeper {
    JobThread* thread = nullptr;
    std::atomic<bool> sleeps = false, has_work = false;
  } sleeper;
  JobThread thread({});
  sleeper.thread = &thread;
  const JobThread::Number job = thread.post(
      [](void* p) {
        auto* in = static_cast<Sleeper*>(p);
        while (!in->has_work) {
          in->thread->nap(1h, [&] {
            in->sleeps = true;
            return in->has_work.load();
          });
        }
      },
      &sleeper);
  while (!sleeper.sleeps) std::this_thread::sleep_for(1ms);
  EXPECT_FALSE(thread.is_over(job));
  sleeper.has_work = true;
  thread.wake();
  thread.wait(job);
  EXPECT_TRUE(thread.is_over(job));
}

// The job that is running ends, in its sleep, and those behind it never run.
TEST(JobThread, StopsInTheMiddleOfAJob) {
  struct Sleeper {
    JobThread* thread = nullptr;
    std::atomic<bool> runs = false;
    bool is_at_its_end = false, is_later_run = false;
  } sleeper;
  {
    JobThread thread({});
    sleeper.thread = &thread;
    thread.post(
        [](void* p) {
          auto* in = static_cast<Sleeper*>(p);
          in->runs = true;
          while (!in->thread->must_stop()) in->thread->nap(1h, [] { return false; });
          in->is_at_its_end = true;
        },
        &sleeper);
    thread.post([](void* p) { static_cast<Sleeper*>(p)->is_later_run = true; }, &sleeper);
    while (!sleeper.runs) std::this_thread::sleep_for(1ms);
    thread.stop();
    EXPECT_TRUE(sleeper.is_at_its_end);
    // The destructor stops once more.
  }
  EXPECT_TRUE(sleeper.is_at_its_end);
  EXPECT_FALSE(sleeper.is_later_run);
}

}  // namespace
}  // namespace dp
