// GoogleTest's main for a test program that mpirun runs as several ranks.
//
// Every rank runs the same tests in the same order. A failure is printed with its rank. At the end
// of each test the ranks agree on the verdict, so a failure on one rank fails the test on all. A
// test that skips says why; a program in which every test skipped ends with the exit code that
// ctest shows as "Skipped". If a rank leaves a test early (ASSERT before a collective), the others
// wait for it. A watchdog thread then ends the job after DP_TEST_LIMIT_S seconds (default 60) and
// prints the test's name.
#include <gtest/gtest.h>
#include <mpi.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>

#include "tests/support/skipped.hpp"

#ifdef DP_TEST_ON_DEVICE
#include "tests/support/test_device.hpp"
#endif

namespace {

constexpr int kHungExitCode = 124;

class Watchdog {
 public:
  Watchdog(int rank, std::chrono::seconds limit)
      : rank_(rank), limit_(limit), thread_([this] { watch(); }) {}
  ~Watchdog() {
    set("", true);
    thread_.join();
  }
  void start(const std::string& test) { set(test, false); }

 private:
  void set(const std::string& test, bool is_over) {
    const std::lock_guard lock(mutex_);
    test_ = test;
    is_over_ = is_over;
    deadline_ = std::chrono::steady_clock::now() + limit_;
    changed_.notify_all();
  }

  void watch() {
    std::unique_lock lock(mutex_);
    while (!is_over_) {
      if (test_.empty()) {
        changed_.wait(lock);
      } else if (changed_.wait_until(lock, deadline_) == std::cv_status::timeout &&
                 std::chrono::steady_clock::now() >= deadline_) {
        std::fprintf(stderr, "[rank %d] %s has not ended after %lld s: the job ends here\n", rank_,
                     test_.c_str(), static_cast<long long>(limit_.count()));
        std::fflush(stderr);
        // mpirun ends the other ranks when one exits without MPI_Finalize.
        _exit(kHungExitCode);
      }
    }
  }

  int rank_;
  std::chrono::seconds limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string test_;
  bool is_over_ = false;
  std::chrono::steady_clock::time_point deadline_;
  std::thread thread_;  // last, so that it starts when the other members exist
};

class RankListener : public testing::EmptyTestEventListener {
 public:
  RankListener(int rank, int size, MPI_Comm comm, std::chrono::seconds limit)
      : rank_(rank), size_(size), comm_(comm), watchdog_(rank, limit) {}
  [[nodiscard]] bool failed() const { return failed_; }

  void OnTestStart(const testing::TestInfo& info) override {
    failed_parts_ = 0;
    why_skipped_.clear();
    watchdog_.start(name(info));
    if (rank_ == 0) {
      std::printf("[ RUN      ] %s, %d ranks\n", name(info).c_str(), size_);
      std::fflush(stdout);
    }
  }
  void OnTestPartResult(const testing::TestPartResult& part) override {
    if (part.skipped()) why_skipped_ = part.message();
    if (!part.failed()) return;
    constexpr int kMostShown = 5;  // per rank and test
    if (++failed_parts_ > kMostShown) return;
    std::fprintf(stderr, "[rank %d] %s:%d: %s\n", rank_, part.file_name() ? part.file_name() : "?",
                 part.line_number(), part.message());
  }
  void OnTestEnd(const testing::TestInfo& info) override {
    // A test fails if it failed on any rank, or was skipped on some ranks only: a test must skip on
    // all.
    const int mine[] = {info.result()->Failed(), info.result()->Skipped(),
                        !info.result()->Skipped()};
    int any[3] = {};
    MPI_Allreduce(mine, any, 3, MPI_INT, MPI_MAX, comm_);
    const bool is_torn = any[1] != 0 && any[2] != 0;
    const bool failed = any[0] != 0 || is_torn;
    failed_ = failed_ || failed;
    watchdog_.start("");
    if (rank_ == 0) {
      if (is_torn) std::fprintf(stderr, "%s: skipped on some ranks only\n", name(info).c_str());
      if (!failed && any[1] != 0) {
        std::printf("[  SKIPPED ] %s: %s\n", name(info).c_str(), why_skipped_.c_str());
      } else {
        std::printf("%s %s\n", failed ? "[  FAILED  ]" : "[       OK ]", name(info).c_str());
      }
      std::fflush(stdout);
    }
  }

 private:
  static std::string name(const testing::TestInfo& info) {
    return std::string(info.test_suite_name()) + "." + info.name();
  }

  int rank_, size_;
  MPI_Comm comm_;
  int failed_parts_ = 0;
  std::string why_skipped_;
  bool failed_ = false;
  Watchdog watchdog_;
};

}  // namespace

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  // Verdicts have their own communicator, so that they do not disturb the tests.
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);

#ifdef DP_TEST_ON_DEVICE
  // All ranks are on one host and find the same.
  if (const std::string why = dp::test::why_no_device(); !why.empty()) {
    if (rank == 0) std::printf("[  SKIPPED ] %s\n", why.c_str());
    MPI_Comm_free(&comm);
    MPI_Finalize();
    return dp::test::kSkippedExitCode;
  }
#endif

  testing::InitGoogleTest(&argc, argv);
  const char* limit = std::getenv("DP_TEST_LIMIT_S");
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  auto* listener =
      new RankListener(rank, size, comm, std::chrono::seconds(limit ? std::atoi(limit) : 60));
  listeners.Append(listener);  // owns it
  const int own = RUN_ALL_TESTS();
  const bool failed = own != 0 || listener->failed();
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  if (rank == 0) {
    std::printf("%s: %d tests, %d of them skipped, %d ranks\n", failed ? "FAILED" : "PASSED",
                all.test_to_run_count(), all.skipped_test_count(), size);
  }
  MPI_Comm_free(&comm);
  MPI_Finalize();
  return dp::test::exit_code(failed);
}
