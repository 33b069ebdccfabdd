#include "comm/mpi/job_thread.hpp"

#include <pthread.h>
#include <sys/prctl.h>

namespace dp {

JobThread::JobThread(JobThreadOptions options) : options_(std::move(options)) {
  queue_.reserve(kUsualJobs);
  thread_ = std::thread([this] { main_loop(); });
}

JobThread::Number JobThread::post(void (*call)(void*), void* context) {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  queue_.push_back({call, context});
  to_thread_.notify_one();
  return ++posted_;
}

void JobThread::wait(Number job) {
  std::unique_lock lock(mutex_);
  ++waiting_;
  to_callers_.wait(lock, [&] { return over_ >= job || failure_; });
  --waiting_;
  if (over_ < job) std::rethrow_exception(failure_);
}

bool JobThread::wait_for(Number job, std::chrono::duration<double> most) {
  std::unique_lock lock(mutex_);
  ++waiting_;
  to_callers_.wait_for(lock, most, [&] { return over_ >= job || failure_; });
  --waiting_;
  if (over_ < job && failure_) std::rethrow_exception(failure_);
  return over_ >= job;
}

bool JobThread::is_over(Number job) {
  const std::lock_guard lock(mutex_);
  return over_ >= job;
}

void JobThread::throw_failure() {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
}

void JobThread::wake() {
  const std::lock_guard lock(mutex_);
  to_thread_.notify_one();
}

void JobThread::stop() {
  must_stop_ = true;
  wake();
  if (thread_.joinable()) thread_.join();
}

void JobThread::run_job(void (*call)(void*), void* context) {
  struct Guarded {
    Job job;
    std::exception_ptr error;
  } guarded{{call, context}, {}};
  wait(post(
      [](void* p) {
        auto* in = static_cast<Guarded*>(p);
        try {
          in->job.call(in->job.context);
        } catch (...) {
          in->error = std::current_exception();
        }
      },
      &guarded));
  if (guarded.error) std::rethrow_exception(guarded.error);
}

void JobThread::main_loop() {
  pthread_setname_np(pthread_self(), options_.name);
  // Lets the kernel prolong this thread's sleeps by at most 5 us. The default is 50 us.
  prctl(PR_SET_TIMERSLACK, 5000ul);
  try {
    if (options_.start) options_.start();
    std::unique_lock lock(mutex_);
    while (!must_stop_) {
      if (queue_.empty()) {
        to_thread_.wait_for(lock, options_.rest);
        if (queue_.empty()) {
          lock.unlock();
          if (options_.idle) options_.idle();
          lock.lock();
        }
        continue;
      }
      const Job job = queue_.front();
      queue_.erase(queue_.begin());
      lock.unlock();
      job.call(job.context);
      lock.lock();
      ++over_;
      to_callers_.notify_all();
    }
  } catch (...) {
    {
      const std::lock_guard lock(mutex_);
      failure_ = std::current_exception();
      to_callers_.notify_all();
    }
    if (options_.failed) options_.failed(std::current_exception());
  }
}

}  // namespace dp
