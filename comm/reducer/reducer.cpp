// Outline: the caller's functions post jobs or set flags. begin_step() posts the step's two jobs:
// deliver_sums(), until every bucket's sum is in place, and end_transfers(), until this rank has
// forwarded everything to others. Both run exchange_until(), the loop that looks at gatherings and
// buckets, adds up times, hands over sums, and rests when nothing has moved. A failure ends the
// thread, and the caller's next call throws the failure.
#include "comm/reducer/reducer.hpp"

#include <algorithm>
#include <thread>
#include <utility>

#include "comm/exchange/stopwatch.hpp"
#include "comm/mpi/link_model.hpp"

namespace dp {
namespace {

using namespace std::chrono_literals;
// The duration of one sleep of the thread while no bucket is in flight. In a step the sleep is
// short, because messages of other ranks may arrive; between steps only pings arrive.
constexpr auto kRestInStep = 1ms;
constexpr auto kRestBetweenSteps = 100ms;
// While an operation waits for other ranks' floats, the thread sleeps for an eighth of the time
// waited so far, but at least kRestInGather and at most kMostRestInGather.
constexpr auto kRestInGather = 20us, kMostRestInGather = 500us;
// The interval at which other ranks' pings are answered in a step.
constexpr auto kServe = 20ms;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Reducer::Reducer(Communicator& communicator, std::span<float> gradient, std::vector<Bucket> buckets,
                 const ReducerOptions& options)
    : communicator_(communicator),
      lent_(communicator),
      options_(options),
      exchanges_(communicator, gradient, std::move(buckets), options_),
      pipeline_(exchanges_.buckets().size(), options.buckets_in_flight, options.device,
                {.is_final = [this](std::size_t b) { return is_bucket_final(b); },
                 .starts = [this](std::size_t b) { bucket_starts(b); },
                 .delivered = [this](std::size_t b) { meter_.bucket_delivered(b); }}),
      is_ready_(std::make_unique<std::atomic<bool>[]>(exchanges_.buckets().size())),
      meter_(pipeline_.exchanges(), options.trace),
      gpu_(options.computing) {
  std::vector<CodecSpec> codecs;
  for (const Bucket& bucket : exchanges_.buckets()) codecs.push_back(bucket.codec);
  exchanges_.put_into(pipeline_, codecs);
  if (options_.desk != nullptr) {
    gather_.emplace(exchanges_.transport(), *options_.desk, options_.trace);
  }
  communicator_.set_timeout_s(options_.comm_timeout_s);
  // When every rank has reached this barrier, all messages of an earlier reducer have been
  // received.
  communicator_.barrier();
  thread_.emplace(JobThreadOptions{.name = "dp-reducer",
                                   .start = options_.thread_start,
                                   .idle = [this] { answer(); },
                                   .failed =
                                       [this](const std::exception_ptr& why) {
                                         if (options_.desk != nullptr) options_.desk->close(why);
                                       },
                                   .rest = kRestBetweenSteps});
  if (options_.desk != nullptr) options_.desk->open([this] { thread_->wake(); });
}

Reducer::~Reducer() {
  if (std::uncaught_exceptions() == 0 && thread_->is_over(deliver_job_)) {
    // Wait until this rank has forwarded everything to others, before the thread ends.
    try {
      thread_->run([] {});
    } catch (...) {
      // The caller has already received the thread's failure, or is no longer interested.
    }
  }
  thread_->stop();
  // An operation that still waits at the desk returns with an error.
  if (options_.desk != nullptr) options_.desk->close(nullptr);
  try {
    thread_->throw_failure();
    // The other ranks still need this rank's messages of the last step. Once MPI has these
    // messages, it delivers them, in MPI_Finalize at the latest.
    if (gather_) gather_->let_go();
    for (const auto& exchange : pipeline_.exchanges()) exchange->let_go();
  } catch (...) {
    // After a failure, messages cannot be handed over; the others will notice the failure, too.
  }
}

void Reducer::begin_step(std::uint64_t step) {
  thread_->throw_failure();
  DP_ASSERT(thread_->is_over(deliver_job_), "step {} is not over", step_);
  for (std::size_t b = 0; b < exchanges_.buckets().size(); ++b) is_ready_[b] = false;
  work_done_.store(0, std::memory_order_relaxed);
  follow_up_.reset();
  step_ = step;
  deliver_job_ =
      thread_->post([](void* self) { static_cast<Reducer*>(self)->deliver_sums(); }, this);
  thread_->post([](void* self) { static_cast<Reducer*>(self)->end_transfers(); }, this);
}

void Reducer::bucket_ready(std::size_t bucket) {
  DP_ASSERT(bucket < exchanges_.buckets().size() && !options_.is_final, "bucket {} of {}", bucket,
            exchanges_.buckets().size());
  is_ready_[bucket].store(true, std::memory_order_release);
  thread_->wake();
}

StepVerdict Reducer::wait_step(const FollowUp::Action* when_finite) {
  if (when_finite != nullptr) follow_up_.offer(*when_finite);
  thread_->wait(deliver_job_);
  return verdict_;
}

void Reducer::all_sum(std::span<std::int64_t> values) {
  run([&](Communicator& comm) {
    meter_.skip();
    comm.all_sum(values);
    meter_.account_waiting();
  });
}

// ---- between steps ------------------------------------------------------------------------------

void Reducer::scale_residual(float factor) {
  run([&](Communicator&) { exchanges_.state().scale_residual(factor); });
}

void Reducer::scale_memory(float factor) {
  run([&](Communicator&) {
    exchanges_.state().scale_residual(factor);
    exchanges_.state().scale_velocity(factor);
  });
}

void Reducer::list_state(StateVisitor& visitor) {
  exchanges_.state().list_state(visitor);
  for (std::size_t b = 0; b < exchanges_.buckets().size(); ++b) {
    pipeline_.exchange(b).list_state(fmt::format("exchange/bucket{}/", b), visitor);
  }
}

void Reducer::replace_codecs(const std::vector<CodecSpec>& codecs) {
  run([&](Communicator& communicator) {
    exchanges_.put_into(pipeline_, codecs);
    // A bucket's new messages have the same tags and numbers as its old ones. When every rank has
    // reached this barrier, all old ones have been received.
    communicator.barrier();
  });
}

void Reducer::sample_error() {
  run([this](Communicator& communicator) {
    if (sample_ == nullptr) {
      sample_ =
          std::make_unique<ErrorSample>(exchanges_.gradient(), exchanges_.buckets(),
                                        exchanges_.exact(), options_.device, communicator.size());
    }
    sample_->want();
  });
}

CommTimes Reducer::take_times() {
  DP_ASSERT(times_job_ == 0, "the times of step {} have been asked for, but not taken", step_);
  return run([this](Communicator&) {
    CommTimes taken = taken_times();
    for (std::size_t b = 0; b < exchanges_.buckets().size(); ++b) {
      const double squares = exchanges_.residual_squares(b);
      taken.buckets[b].residual_squares = squares;
      taken.total.residual_squares += squares;
    }
    return taken;
  });
}

CommTimes Reducer::taken_times() {
  CommTimes taken = meter_.take();
  if (gather_) taken.total.gathered = gather_->take_cost();
  return taken;
}

void Reducer::ask_times() {
  DP_ASSERT(times_job_ == 0, "the times of step {} have been asked for, but not taken", step_);
  times_job_ = thread_->post(
      [](void* self) {
        auto& reducer = *static_cast<Reducer*>(self);
        reducer.asked_times_ = reducer.taken_times();
      },
      this);
}

CommTimes Reducer::asked_times() {
  DP_ASSERT(times_job_ != 0, "the times of step {} have not been asked for", step_);
  thread_->wait(std::exchange(times_job_, 0));
  return std::move(asked_times_);
}

// ---- the thread ---------------------------------------------------------------------------------

// The first job of a step: every sum is in place when it ends.
void Reducer::deliver_sums() {
  running_step_ = step_;
  if (options_.trace != nullptr) options_.trace->begin_step(running_step_);
  if (sample_) sample_->begin_step();
  if (is_sampling()) {
    for (const auto& exchange : pipeline_.exchanges()) exchange->measure_saturation();
  }
  pipeline_.begin_step(running_step_);
  tell_whereabouts(0, true);
  exchange_until([this] { return pipeline_.has_delivered_all(); });
  if (thread_->must_stop()) return;
  verdict_.finite = std::ranges::all_of(pipeline_.exchanges(),
                                        [](const auto& exchange) { return exchange->finite(); });
  verdict_.busy = meter_.busy_until_now();
  // The action comes first, because a GPU may be idle until it has run.
  const FollowUp::Action* const action = follow_up_.take();
  if (action != nullptr && verdict_.finite) (*action)();
  verdict_.stop = communicator_.size() == 1 || exchanges_.buckets().empty()
                      ? options_.stop_wish != nullptr && *options_.stop_wish
                      : std::ranges::any_of(pipeline_.exchanges(), [](const auto& exchange) {
                          return exchange->stop_is_wished();
                        });
  take_rate();
  verdict_.clamped = {};
  for (std::size_t b = 0; b < exchanges_.buckets().size(); ++b) {
    verdict_.clamped.add(pipeline_.exchange(b).clamped(), exchanges_.buckets()[b].offset);
  }
  verdict_.first_not_finite = Exchange::kAllFinite;
  if (!verdict_.finite) {
    for (std::size_t b = exchanges_.buckets().size(); b-- > 0;) {
      const std::size_t place = pipeline_.exchanges()[b]->first_not_finite();
      if (place != Exchange::kAllFinite)
        verdict_.first_not_finite = exchanges_.buckets()[b].offset + place;
    }
    for (const auto& exchange : pipeline_.exchanges()) exchange->put_back_delivered();
  }
  tell_whereabouts(exchanges_.buckets().size(), false);
}

void Reducer::take_rate() {
  verdict_.rate = {};
  verdict_.grown_bucket = std::nullopt;
  double most = 0.0;
  for (std::size_t b = 0; b < exchanges_.buckets().size(); ++b) {
    const RateTally tally = pipeline_.exchange(b).rate_tally();
    verdict_.rate += tally;
    const double growth = growth_of(tally.own_squares);
    if (growth > most) verdict_.grown_bucket = b;
    most = std::max(most, growth);
  }
}

// The second job of a step: the caller has its sums, and this rank still forwards messages to
// others.
void Reducer::end_transfers() {
  exchange_until([this] { return pipeline_.is_over(); });
  if (!thread_->must_stop()) compare_samples();
}

// Looks at what is in flight, accounts for the time, hands over the sums and rests.
template <class IsReached>
void Reducer::exchange_until(IsReached is_reached) {
  Deadline deadline = communicator_.deadline();
  meter_.skip();
  while (!is_reached() && !thread_->must_stop()) {
    // Time with nothing in flight is not measured, except for the look that starts a bucket.
    const bool was_in_flight = pipeline_.is_in_flight();
    const bool was_gathering = gather_ && gather_->is_under_way();
    if (!was_in_flight && !was_gathering) meter_.skip();
    if (options_.on_look) options_.on_look();
    // Gatherings first, because the computation waits for them.
    const bool has_gathered = gather_ && gather_->look();
    if (!was_in_flight) meter_.busy_begins();
    const bool has_moved = pipeline_.look();
    if (has_moved) pace_.moved(seconds_now());
    if (was_in_flight || pipeline_.is_in_flight()) {
      account();
    } else if (was_gathering) {
      meter_.account_gathering();
    }
    while (const auto bucket = pipeline_.next_delivered()) hand_over(*bucket);
    if (has_moved || has_gathered || !is_busy()) deadline.moved();
    if (has_moved || has_gathered) {
      gpu_.end_wait();
      continue;
    }
    rest();
    gpu_.look(!is_busy() && thread_->is_awaited());
    if (is_busy()) {
      deadline.check(communicator_.whereabouts(), [&] { return describe_wait(); });
    }
  }
  gpu_.end_wait();
}

// The bucket's values are known; its exchange starts next.
void Reducer::bucket_starts(std::size_t bucket) {
  if (is_sampling()) sample_->take_input(bucket);
  meter_.bucket_starts(bucket);
  tell_whereabouts(bucket + 1, true);
}

// The bucket's sum is in place. The hook's time is this rank's work, not the network's, so it is
// measured separately.
void Reducer::hand_over(std::size_t bucket) {
  if (is_sampling()) sample_->take_delivered(bucket);
  if (!options_.on_delivered) return;
  double hook_s = 0.0;
  {
    const Stopwatch watch(hook_s, options_.trace,
                          {.step = static_cast<std::uint32_t>(running_step_),
                           .id = static_cast<std::uint32_t>(bucket),
                           .kind = TraceKind::hook});
    options_.on_delivered(bucket);
  }
  meter_.add_hook(bucket, hook_s);
  account();
}

void Reducer::account() { meter_.account(pipeline_.first_open(), pipeline_.started()); }

// Every rank has all sums by now, or will have them soon, so the comparison delays no rank's
// computation.
void Reducer::compare_samples() {
  if (!is_sampling() || !verdict_.finite) return;
  const std::span<const ErrorSample::Result> results = sample_->compare(communicator_);
  for (std::size_t b = 0; b < exchanges_.buckets().size(); ++b) meter_.add_error(b, results[b]);
}

bool Reducer::is_bucket_final(std::size_t bucket) const {
  if (options_.is_final) return options_.is_final(bucket);
  return is_ready_[bucket].load(std::memory_order_acquire);
}

// Sleeps for a moment after a look in which nothing has moved. If nothing of this rank is in
// flight, bucket_ready() ends the sleep.
void Reducer::rest() {
  if (Clock::now() - served_at_ > kServe) {
    communicator_.serve();
    served_at_ = Clock::now();
  }
  if (gather_ && gather_->is_under_way()) {
    const auto by_wait = std::chrono::duration<double>(gather_->waited_s() / 8);
    std::this_thread::sleep_for(
        std::clamp<std::chrono::duration<double>>(by_wait, kRestInGather, kMostRestInGather));
    return;
  }
  if (pipeline_.is_in_flight() || options_.is_final) {
    const double begin_s = seconds_now();
    const std::chrono::duration<double> by_pace(pace_.sleep_s());
    const auto sleep = options_.sleep_us > 0
                           ? std::chrono::microseconds(options_.sleep_us)
                           : std::chrono::duration_cast<std::chrono::microseconds>(by_pace);
    if (gather_) {
      thread_->nap(sleep, [this] { return gather_->has_work(); });
    } else {
      std::this_thread::sleep_for(sleep);
    }
    meter_.add_nap(seconds_now() - begin_s);
    return;
  }
  thread_->nap(kRestInStep,
               [this] { return pipeline_.can_start() || (gather_ && gather_->has_work()); });
}

// Runs between steps: answers pings, and reports the work of note_work().
void Reducer::answer() {
  const std::uint32_t work_done = work_done_.load(std::memory_order_relaxed);
  if (work_done > 0) {
    communicator_.set_whereabouts(
        {.step = running_step_, .buckets_begun = work_done, .is_in_step = 0, .is_busy = 1});
  }
  communicator_.serve();
}

void Reducer::tell_whereabouts(std::size_t buckets_begun, bool is_in_step) {
  communicator_.set_whereabouts({.step = running_step_,
                                 .buckets_begun = static_cast<std::uint32_t>(buckets_begun),
                                 .is_in_step = is_in_step ? 1u : 0u});
}

std::string Reducer::describe_wait() const {
  if (gather_ && gather_->is_under_way()) {
    return fmt::format("{} in step {}", gather_->describe(), running_step_);
  }
  return fmt::format("the exchange of bucket {} in step {}", pipeline_.first_open(), running_step_);
}

}  // namespace dp
