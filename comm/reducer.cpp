#include "comm/reducer.hpp"

#include <algorithm>
#include <thread>
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

}  // namespace

Reducer::Reducer(Communicator& communicator, std::span<float> gradient, std::vector<Bucket> buckets,
                 const ReducerOptions& options)
    : communicator_(communicator),
      gradient_(gradient),
      buckets_(std::move(buckets)),
      options_(options),
      hosts_(options.hosts.empty() ? host_numbers(communicator) : options.hosts),
      exchanges_(buckets_.size()),
      is_ready_(std::make_unique<std::atomic<bool>[]>(buckets_.size())),
      meter_(exchanges_, options.trace) {
  DP_ASSERT(hosts_.size() == static_cast<std::size_t>(communicator_.size()),
            "{} hosts for {} ranks", hosts_.size(), communicator_.size());
  static_cast<void>(find_topology(options_.topology));
  check_streams(buckets_.size());
  if (options_.throttle_bits_per_s > 0.0) link_.emplace(options_.throttle_bits_per_s);
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
  make_exchanges(specs);
  buffer_of_.assign(buckets_.size(), kNoBuffer);
  is_delivered_.resize(buckets_.size());
  posted_ = started_ = delivered_ = first_open_ = buckets_.size();
  communicator_.set_timeout_s(options_.comm_timeout_s);
  // An earlier reducer's last messages have all been taken when every rank has come here.
  communicator_.barrier();
  thread_.emplace(JobThreadOptions{.name = "dp-reducer",
                                   .start = options_.thread_start,
                                   .idle = [this] { communicator_.serve(); },
                                   .rest = kRestBetweenSteps});
}

Reducer::~Reducer() {
  if (std::uncaught_exceptions() == 0 && thread_->is_over(deliver_job_)) {
    // What this rank still forwards to others comes to its end before the thread does.
    try {
      thread_->run([] {});
    } catch (...) {
      // The thread's failure has been thrown to the caller already, or nobody waits for it any
      // more.
    }
  }
  thread_->stop();
  if (first_open_ == buckets_.size()) return;
  // Transfers are under way and may still write: their memory is left to the end of the job.
  for (auto& exchange : exchanges_) static_cast<void>(exchange.release());
  for (auto& buffers : buffers_) static_cast<void>(buffers.release());
}

void Reducer::begin_step(std::uint64_t step) {
  thread_->throw_failure();
  DP_ASSERT(thread_->is_over(deliver_job_), "step {} is not over", step_);
  for (std::size_t b = 0; b < buckets_.size(); ++b) is_ready_[b] = false;
  step_ = step;
  deliver_job_ =
      thread_->post([](void* self) { static_cast<Reducer*>(self)->deliver_sums(); }, this);
  thread_->post([](void* self) { static_cast<Reducer*>(self)->end_transfers(); }, this);
}

void Reducer::bucket_ready(std::size_t bucket) {
  DP_ASSERT(bucket < buckets_.size() && !options_.is_final, "bucket {} of {}", bucket,
            buckets_.size());
  is_ready_[bucket].store(true, std::memory_order_release);
  thread_->wake();
}

StepVerdict Reducer::wait_step() {
  thread_->wait(deliver_job_);
  return verdict_;
}

CommTimes Reducer::take_times() {
  return run([this](Communicator&) {
    CommTimes taken = meter_.take();
    if (residual_.empty()) return taken;
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      if (!specs_[b].feedback) continue;
      const double squares = exact_->memory().squares_of_sum(residual_.data() + buckets_[b].offset,
                                                             nullptr, buckets_[b].elements);
      taken.buckets[b].residual_squares = squares;
      taken.total.residual_squares += squares;
    }
    return taken;
  });
}

// The first job of a step: every sum is in place when it ends.
void Reducer::deliver_sums() {
  running_step_ = step_;
  if (options_.trace != nullptr) options_.trace->begin_step(running_step_);
  is_sampling_ = std::exchange(must_sample_, false);
  if (is_sampling_) {
    for (auto& exchange : exchanges_) exchange->measure_saturation();
  }
  posted_ = started_ = delivered_ = first_open_ = 0;
  is_delivered_.assign(buckets_.size(), false);
  communicator_.set_whereabouts({.step = running_step_, .buckets_begun = 0, .is_in_step = 1});
  exchange_until([this] { return delivered_ == buckets_.size(); });
  if (thread_->must_stop()) return;
  verdict_.finite = std::all_of(exchanges_.begin(), exchanges_.end(),
                                [](const auto& exchange) { return exchange->finite(); });
  if (!verdict_.finite) {
    for (auto& exchange : exchanges_) exchange->put_back_delivered();
  }
  communicator_.set_whereabouts({.step = running_step_,
                                 .buckets_begun = static_cast<std::uint32_t>(started_),
                                 .is_in_step = 0});
}

// The second job of a step: the caller has its sums, and what this rank still forwards to others
// goes on.
void Reducer::end_transfers() {
  exchange_until([this] { return first_open_ == buckets_.size(); });
  if (!thread_->must_stop()) compare_samples();
}

// Looks at what is in flight, accounts for the time, hands over the sums and rests.
template <class IsReached>
void Reducer::exchange_until(IsReached is_reached) {
  Deadline deadline = communicator_.deadline();
  meter_.skip();
  while (!is_reached() && !thread_->must_stop()) {
    // The look that starts a bucket counts; time without one does not.
    const bool was_in_flight = is_in_flight();
    if (!was_in_flight) meter_.skip();
    const bool has_moved = look();
    if (was_in_flight || is_in_flight()) meter_.account(first_open_, started_);
    for (; delivered_ < started_ && exchanges_[delivered_]->delivered(); ++delivered_) {
      hand_over(delivered_);
    }
    if (has_moved || !is_in_flight()) deadline.moved();
    if (has_moved) continue;
    rest();
    if (is_in_flight()) {
      deadline.check(communicator_.whereabouts(), [&] { return describe_wait(); });
    }
  }
}

// The bucket's sum is in place.
void Reducer::hand_over(std::size_t bucket) {
  if (is_sampling_) sample_->take_delivered(bucket);
  if (!options_.on_delivered) return;
  call_hook(options_.on_delivered, bucket);
  meter_.account(first_open_, started_);
}

// Every rank has all sums by now, or soon: the comparison keeps nobody from the next computation.
void Reducer::compare_samples() {
  if (!is_sampling_ || !verdict_.finite) return;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    meter_.add_error(b, sample_->compare(communicator_, b));
  }
}

// One look at everything in flight. True if something moved.
bool Reducer::look() {
  if (options_.on_look) options_.on_look();
  bool has_moved = post_and_start();
  for (std::size_t b = first_open_; b < posted_; ++b) {
    if (buffer_of_[b] == kNoBuffer) continue;  // over
    has_moved |= exchanges_[b]->progress();
    if (!is_delivered_[b] && b < started_ && exchanges_[b]->delivered()) {
      is_delivered_[b] = true;
      meter_.bucket_delivered(b);
    }
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
    meter_.bucket_starts(started_);
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
  meter_.add_hook(bucket, hook_s);
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
  thread_->nap(kRestInStep, [this] { return started_ < posted_ && is_bucket_final(started_); });
}

std::string Reducer::describe_wait() const {
  return fmt::format("the exchange of bucket {} in step {}", first_open_, running_step_);
}

}  // namespace dp
