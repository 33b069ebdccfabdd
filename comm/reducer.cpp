#include "comm/reducer.hpp"

#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "comm/hierarchical.hpp"
#include "comm/stopwatch.hpp"

namespace dp {
namespace {

using namespace std::chrono_literals;
// How long the thread sleeps when no bucket of its own is under way: within a step, where a
// neighbour's messages may come, and between steps, where only other ranks' questions do.
constexpr auto kRestInStep = 1ms;
constexpr auto kRestBetweenSteps = 100ms;
// How often other ranks' questions are answered within a step.
constexpr auto kServe = 20ms;

constexpr std::size_t kNoBuffer = static_cast<std::size_t>(-1);

double ratio_root(double a, double b) { return b > 0.0 ? std::sqrt(a / b) : 0.0; }

}  // namespace

double CommCost::relative_error() const {
  return ratio_root(sampled.error_squares, sampled.value_squares);
}
double CommCost::saturation() const {
  return sampled.values > 0
             ? static_cast<double>(sampled.saturated) / static_cast<double>(sampled.values)
             : 0.0;
}
double CommCost::delivered_relative_error() const {
  return ratio_root(delivered_error_squares, delivered_value_squares);
}
double CommCost::residual_norm() const { return std::sqrt(residual_squares); }

Reducer::Reducer(Communicator& communicator, std::span<float> gradient, std::vector<Bucket> buckets,
                 const ReducerOptions& options)
    : communicator_(communicator),
      gradient_(gradient),
      buckets_(std::move(buckets)),
      options_(options),
      mpi_(communicator),
      hosts_(options.hosts.empty() ? host_numbers(communicator.hosts()) : options.hosts),
      is_ready_(std::make_unique<std::atomic<bool>[]>(buckets_.size())) {
  DP_ASSERT(hosts_.size() == static_cast<std::size_t>(communicator_.size()),
            "{} hosts for {} ranks", hosts_.size(), communicator_.size());
  static_cast<void>(find_topology(options_.topology));
  check_streams(buckets_.size());
  if (options_.throttle_bits_per_s > 0.0) throttled_.emplace(mpi_, options_.throttle_bits_per_s);
  const CodecSpec exact = parse_codec_spec("none");
  exact_ = options_.device == nullptr ? make_codec(exact) : make_codec(exact, *options_.device);
  std::vector<std::string> specs;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    DP_ASSERT(buckets_[b].offset + buckets_[b].elements <= gradient.size(),
              "bucket {} ends behind the gradient", b);
    specs.push_back(buckets_[b].codec);
  }
  specs_.resize(buckets_.size());
  codecs_.resize(buckets_.size());
  exchanges_.resize(buckets_.size());
  make_exchanges(specs);
  buffer_of_.assign(buckets_.size(), kNoBuffer);
  queue_.reserve(8);
  times_.buckets.resize(buckets_.size());
  hook_s_.resize(buckets_.size());
  starts_.resize(buckets_.size());
  posted_ = started_ = first_open_ = buckets_.size();
  step_job_.is_done = true;
  communicator_.set_timeout_s(options_.comm_timeout_s);
  // An earlier reducer's last messages have all been taken when every rank has come here.
  communicator_.barrier();
  thread_ = std::thread([this] { main_loop(); });
}

Reducer::~Reducer() {
  if (std::uncaught_exceptions() == 0 && step_job_.is_done) {
    // What this rank still forwards to others comes to its end before the thread does.
    try {
      run([](Communicator&) {});
    } catch (...) {
      // The thread's failure has been thrown to the caller already, or nobody waits for it any
      // more.
    }
  }
  must_stop_ = true;
  {
    const std::lock_guard lock(mutex_);
    to_thread_.notify_all();
  }
  thread_.join();
  if (first_open_ == buckets_.size()) return;
  // Transfers are under way and may still write: their memory is left to the end of the job.
  for (auto& exchange : exchanges_) static_cast<void>(exchange.release());
  for (auto& buffers : buffers_) static_cast<void>(buffers.release());
}

void Reducer::begin_step(std::uint64_t step) {
  std::unique_lock lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  DP_ASSERT(step_job_.is_done, "step {} is not over", step_);
  for (std::size_t b = 0; b < buckets_.size(); ++b) is_ready_[b] = false;
  step_ = step;
  submit(step_job_, lock);
}

void Reducer::bucket_ready(std::size_t bucket) {
  DP_ASSERT(bucket < buckets_.size() && !options_.is_final, "bucket {} of {}", bucket,
            buckets_.size());
  is_ready_[bucket].store(true, std::memory_order_release);
  const std::lock_guard lock(mutex_);
  to_thread_.notify_one();
}

StepVerdict Reducer::wait_step() {
  std::unique_lock lock(mutex_);
  wait_for(step_job_, lock);
  return verdict_;
}

void Reducer::run_job(void (*call)(void*, Communicator&), void* context) {
  Job job{.call = call, .context = context, .error = {}, .is_done = false};
  std::unique_lock lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  submit(job, lock);
  wait_for(job, lock);
  if (job.error) std::rethrow_exception(job.error);
}

void Reducer::submit(Job& job, std::unique_lock<std::mutex>&) {
  job.is_done = false;
  queue_.push_back(&job);
  to_thread_.notify_one();
}

void Reducer::wait_for(Job& job, std::unique_lock<std::mutex>& lock) {
  to_caller_.wait(lock, [&] { return job.is_done || failure_; });
  if (!job.is_done) std::rethrow_exception(failure_);
}

CommTimes Reducer::take_times() {
  return run([this](Communicator&) {
    CommTimes taken = times_;
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      CommCost& cost = taken.buckets[b];
      const ExchangeStats& stats = exchanges_[b]->stats();
      cost.encode_s = stats.encode_s + std::exchange(hook_s_[b], 0.0);
      cost.decode_s = stats.decode_s;
      cost.wire_s = std::max(0.0, cost.comm_s - cost.encode_s - cost.decode_s - cost.peer_wait_s);
      cost.sent_bytes = stats.sent_bytes;
      cost.received_bytes = stats.received_bytes;
      cost.sampled = stats.sampled;
      if (!residual_.empty() && specs_[b].feedback) {
        cost.residual_squares = exact_->memory().squares_of_sum(
            residual_.data() + buckets_[b].offset, nullptr, buckets_[b].elements);
      }
      taken.total.encode_s += cost.encode_s;
      taken.total.decode_s += cost.decode_s;
      taken.total.sent_bytes += cost.sent_bytes;
      taken.total.received_bytes += cost.received_bytes;
      taken.total.sampled += cost.sampled;
      taken.total.residual_squares += cost.residual_squares;
      taken.total.delivered_error_squares += cost.delivered_error_squares;
      taken.total.delivered_value_squares += cost.delivered_value_squares;
      taken.total.sample_bytes += cost.sample_bytes;
      exchanges_[b]->clear_stats();
      times_.buckets[b] = {};
    }
    CommCost& total = taken.total;
    total.wire_s =
        std::max(0.0, total.comm_s - total.encode_s - total.decode_s - total.peer_wait_s);
    times_.total = {};
    seen_codec_s_ = 0.0;
    return taken;
  });
}

void Reducer::main_loop() {
  pthread_setname_np(pthread_self(), "dp-reducer");
  // Sleeps of this thread end when they should and not 50 us later, as the kernel would have it.
  prctl(PR_SET_TIMERSLACK, 5000ul);
  try {
    if (options_.thread_start) options_.thread_start();
    std::unique_lock lock(mutex_);
    while (!must_stop_) {
      if (queue_.empty()) {
        to_thread_.wait_for(lock, kRestBetweenSteps);
        if (queue_.empty()) {
          lock.unlock();
          communicator_.serve();
          lock.lock();
          continue;
        }
      }
      Job* job = queue_.front();
      queue_.erase(queue_.begin());
      running_step_ = step_;
      lock.unlock();
      std::exception_ptr error;
      if (job->call == nullptr) {
        exchange_step();
      } else {
        try {
          job->call(job->context, communicator_);
        } catch (...) {
          error = std::current_exception();
        }
      }
      lock.lock();
      job->error = error;
      job->is_done = !must_stop_ || job->call != nullptr;
      to_caller_.notify_all();
      if (job->call == nullptr && job->is_done) {
        // The caller has its sums; what this rank still forwards to others goes on.
        lock.unlock();
        Clock::time_point last = Clock::now();
        Deadline deadline = communicator_.deadline();
        while (first_open_ < buckets_.size() && !must_stop_) {
          const bool has_moved = look();
          account(last);
          if (has_moved) {
            deadline.moved();
            continue;
          }
          rest();
          deadline.check(communicator_.whereabouts(), [&] { return describe_wait(); });
        }
        if (!must_stop_) compare_samples();
        lock.lock();
      }
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    to_caller_.notify_all();
  }
}

// Runs the step until every sum is in place.
void Reducer::exchange_step() {
  if (options_.trace != nullptr) options_.trace->begin_step(running_step_);
  is_sampling_ = std::exchange(must_sample_, false);
  if (is_sampling_) {
    for (auto& exchange : exchanges_) exchange->measure_saturation();
  }
  posted_ = started_ = first_open_ = 0;
  communicator_.set_whereabouts({.step = running_step_, .buckets_begun = 0, .is_in_step = 1});
  Deadline deadline = communicator_.deadline();
  Clock::time_point last = Clock::now();
  const auto is_delivered = [](const auto& exchange) { return exchange->delivered(); };
  std::size_t delivered = 0;
  while (delivered < buckets_.size() && !must_stop_) {
    // The look that starts a bucket counts; time without one does not.
    const bool was_in_flight = is_in_flight();
    if (!was_in_flight) last = Clock::now();
    const bool has_moved = look();
    if (was_in_flight || is_in_flight()) account(last);
    for (; delivered < started_ && is_delivered(exchanges_[delivered]); ++delivered) {
      if (is_sampling_) sample_->take_delivered(delivered);
      if (!options_.on_delivered) continue;
      call_hook(options_.on_delivered, delivered);
      account(last);
    }
    if (has_moved || !is_in_flight()) deadline.moved();
    if (has_moved) continue;
    rest();
    if (is_in_flight()) {
      deadline.check(communicator_.whereabouts(), [&] { return describe_wait(); });
    }
  }
  if (must_stop_) return;
  verdict_.finite = std::all_of(exchanges_.begin(), exchanges_.end(),
                                [](const auto& exchange) { return exchange->finite(); });
  if (!verdict_.finite) {
    for (auto& exchange : exchanges_) exchange->put_back_delivered();
  }
  communicator_.set_whereabouts({.step = running_step_,
                                 .buckets_begun = static_cast<std::uint32_t>(started_),
                                 .is_in_step = 0});
}

// Every rank has all sums by now, or soon: the comparison keeps nobody from the next computation.
void Reducer::compare_samples() {
  if (!is_sampling_ || !verdict_.finite) return;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const ErrorSample::Result result = sample_->compare(communicator_, b);
    times_.buckets[b].delivered_error_squares += result.error_squares;
    times_.buckets[b].delivered_value_squares += result.value_squares;
    times_.buckets[b].sample_bytes += result.sent_bytes;
  }
}

// One look at everything in flight. True if something moved.
bool Reducer::look() {
  if (options_.on_look) options_.on_look();
  bool has_moved = post_and_start();
  for (std::size_t b = first_open_; b < posted_; ++b) {
    if (buffer_of_[b] == kNoBuffer) continue;  // over
    has_moved |= exchanges_[b]->progress();
    if (starts_[b].at_ns != 0 && exchanges_[b]->delivered()) trace_delivered(b);
    if (!exchanges_[b]->done()) continue;
    is_buffer_free_[buffer_of_[b]] = true;
    buffer_of_[b] = kNoBuffer;
  }
  while (first_open_ < started_ && exchanges_[first_open_]->done()) {
    ++first_open_;
    has_moved = true;
  }
  if (has_moved)
    pace_.moved(std::chrono::duration<double>(Clock::now().time_since_epoch()).count());
  return has_moved;
}

bool Reducer::post_and_start() {
  bool has_moved = false;
  for (std::size_t set = 0; set < buffers_.size() && posted_ < buckets_.size(); ++set) {
    if (!is_buffer_free_[set]) continue;
    exchanges_[posted_]->post_receives(*buffers_[set], running_step_);
    is_buffer_free_[set] = false;
    buffer_of_[posted_++] = set;
  }
  while (started_ < posted_ && is_bucket_final(started_)) {
    exchanges_[started_]->prepare();
    if (is_sampling_) sample_->take_input(started_);
    if (options_.trace != nullptr) trace_start(started_);
    exchanges_[started_++]->start();
    communicator_.set_whereabouts({.step = running_step_,
                                   .buckets_begun = static_cast<std::uint32_t>(started_),
                                   .is_in_step = 1});
    has_moved = true;
  }
  return has_moved;
}

bool Reducer::is_bucket_final(std::size_t bucket) const {
  if (options_.is_final) return options_.is_final(bucket);
  return is_ready_[bucket].load(std::memory_order_acquire);
}

// What hooks do is this rank's work and not the network's.
void Reducer::call_hook(const std::function<void(std::size_t)>& hook, std::size_t bucket) {
  double hook_s = 0.0;
  {
    const Stopwatch watch(hook_s, options_.trace,
                          {.step = static_cast<std::uint32_t>(running_step_),
                           .id = static_cast<std::uint32_t>(bucket),
                           .kind = TraceKind::hook});
    hook(bucket);
  }
  hook_s_[bucket] += hook_s;
  // A bucket that is over is in flight once more for its sake.
  if (bucket < started_ && exchanges_[bucket]->done()) times_.buckets[bucket].comm_s += hook_s;
}

// Puts the time since `last` where it belongs.
void Reducer::account(Clock::time_point& last) {
  const auto now = Clock::now();
  const double passed_s = std::chrono::duration<double>(now - last).count();
  if (options_.trace != nullptr) trace_idle(last, now);
  last = now;
  double codec_s = 0.0;
  for (const auto& exchange : exchanges_) {
    codec_s += exchange->stats().encode_s + exchange->stats().decode_s;
  }
  for (const double hook_s : hook_s_) codec_s += hook_s;
  const double idle_s = std::max(0.0, passed_s - (codec_s - seen_codec_s_));
  seen_codec_s_ = codec_s;
  times_.total.comm_s += passed_s;
  bool is_oldest = true;
  for (std::size_t b = first_open_; b < started_; ++b) {
    if (exchanges_[b]->done()) continue;
    times_.buckets[b].comm_s += passed_s;
    if (exchanges_[b]->waits_for_peer()) {
      times_.buckets[b].peer_wait_s += idle_s;
      if (is_oldest) times_.total.peer_wait_s += idle_s;
    }
    is_oldest = false;
  }
}

// Nothing has moved: sleeps a moment. Where nothing of this rank is under way, a bucket that the
// caller says to be ready ends the sleep.
void Reducer::rest() {
  if (Clock::now() - served_at_ > kServe) {
    communicator_.serve();
    served_at_ = Clock::now();
  }
  if (is_in_flight() || options_.is_final) {
    const std::chrono::duration<double> by_pace(pace_.sleep_s());
    std::this_thread::sleep_for(
        options_.sleep_us > 0 ? std::chrono::microseconds(options_.sleep_us)
                              : std::chrono::duration_cast<std::chrono::microseconds>(by_pace));
    return;
  }
  std::unique_lock lock(mutex_);
  if (started_ < posted_ && is_bucket_final(started_)) return;
  if (!must_stop_) to_thread_.wait_for(lock, kRestInStep);
}

std::string Reducer::describe_wait() const {
  return fmt::format("the exchange of bucket {} in step {}", first_open_, running_step_);
}

}  // namespace dp
