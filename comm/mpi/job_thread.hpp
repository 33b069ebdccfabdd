// A thread that runs jobs one after the other, and calls a short function (`idle`) between them
// from time to time.
//
// A caller hands over a job in one of two ways:
//     run(f)      waits for the job and throws its exception; the thread continues.
//     post(...)   returns at once; wait() waits for the job. An exception of the job is a failure.
// A *failure* (an exception of a posted job, of start or of idle) ends the thread. Every call that
// waits for an unfinished job throws the failure, and so does every later post() and run(). Nothing
// is restarted.
//
// Jobs are numbered in the order in which they are posted; job 0 does not exist and counts as over.
// A long job checks must_stop() and sleeps in nap(). stop() and the destructor ask the running job
// to end, wait until it has ended, and drop all later jobs.
//
// Any thread may call these functions, except a job on its own thread. Nothing is allocated while
// at most kUsualJobs are waiting.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace dp {

struct JobThreadOptions {
  const char* name = "dp-jobs";      // for debuggers and top; at most 15 characters
  std::function<void()> start = {};  // called once, before all jobs
  std::function<void()> idle = {};   // called while no job is waiting, at least every `rest`
  // called when a failure ends the thread
  std::function<void(const std::exception_ptr&)> failed = {};
  std::chrono::milliseconds rest{100};  // the longest sleep between two calls of idle
};

class JobThread {
 public:
  using Number = std::uint64_t;
  static constexpr std::size_t kUsualJobs = 8;

  explicit JobThread(JobThreadOptions options);
  ~JobThread() { stop(); }
  JobThread(const JobThread&) = delete;
  JobThread& operator=(const JobThread&) = delete;

  // The job is call(context). Returns its number.
  Number post(void (*call)(void*), void* context);
  // Waits until that job and all jobs before it are over.
  void wait(Number job);
  // Like wait(), but waits at most for `most`. Returns false if the job is not over yet.
  [[nodiscard]] bool wait_for(Number job, std::chrono::duration<double> most);
  [[nodiscard]] bool is_over(Number job);
  // Throws the failure, if there is one.
  void throw_failure();

  // Runs f() as a job and returns what it returns.
  template <class F>
  auto run(F f) -> std::invoke_result_t<F> {
    using Result = std::invoke_result_t<F>;
    if constexpr (std::is_void_v<Result>) {
      run_job([](void* p) { (*static_cast<F*>(p))(); }, &f);
    } else {
      struct Context {
        F* f;
        std::optional<Result> result;
      } context{&f, std::nullopt};
      run_job(
          [](void* p) {
            auto* in = static_cast<Context*>(p);
            in->result.emplace((*in->f)());
          },
          &context);
      return std::move(*context.result);
    }
  }

  // Ends a nap.
  void wake();
  // Ends the thread. Nothing may be posted or waited for afterwards.
  void stop();

  // The next three functions are for jobs.
  [[nodiscard]] bool must_stop() const { return must_stop_; }
  // Whether a caller is waiting for this job or a later one.
  [[nodiscard]] bool is_awaited() const { return waiting_ > 0; }
  // Sleeps until wake(), the end of the time, or stop(). Does not sleep if has_work() is true.
  template <class HasWork>
  void nap(std::chrono::microseconds most, HasWork has_work) {
    std::unique_lock lock(mutex_);
    // No wake-up is lost between this check and the sleep: whoever makes has_work() true calls
    // wake() afterwards, and wake() waits for the lock.
    if (has_work() || must_stop_) return;
    to_thread_.wait_for(lock, most);
  }

 private:
  struct Job {
    void (*call)(void*);
    void* context;
  };
  void run_job(void (*call)(void*), void* context);
  void main_loop();

  JobThreadOptions options_;
  std::mutex mutex_;
  std::condition_variable to_thread_, to_callers_;
  std::vector<Job> queue_;
  Number posted_ = 0, over_ = 0;  // the last job that was posted, and the last that is over
  std::exception_ptr failure_;
  std::atomic<bool> must_stop_ = false;
  std::atomic<int> waiting_ = 0;  // the number of callers that wait
  std::thread thread_;
};

}  // namespace dp
