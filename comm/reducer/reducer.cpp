#include "comm/reducer/reducer.hpp"

#include <algorithm>
#include <thread>
#include <utility>

#include "comm/exchange/stopwatch.hpp"
#include "comm/mpi/link_model.hpp"
#include "comm/topologies/hierarchical.hpp"

namespace dp {
namespace {

using namespace std::chrono_literals;
// How long the thread sleeps when it has no bucket under way: in a step, when a neighbour's
// messages may come, and between steps, when only other ranks' questions may come.
constexpr auto kRestInStep = 1ms;
constexpr auto kRestBetweenSteps = 100ms;
// Sleeps while an operation waits for other ranks' floats: an eighth of what it has waited already,
// but at least the first and at most the second.
constexpr auto kRestInGather = 20us, kMostRestInGather = 500us;
// How often other ranks' questions are answered in a step, and how often a GPU is asked whether it
// has failed.
constexpr auto kServe = 20ms, kLookAtGpu = 1000ms;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Reducer::Reducer(Communicator& communicator, std::span<float> gradient, std::vector<Bucket> buckets,
                 const ReducerOptions& options)
    : communicator_(communicator),
      lent_(communicator),
      gradient_(gradient),
      buckets_(std::move(buckets)),
      options_(options),
      mpi_(communicator),
      hosts_(options.hosts.empty() ? host_numbers(communicator.hosts()) : options.hosts),
      pipeline_(buckets_.size(), options.buckets_in_flight, options.device,
                {.is_final = [this](std::size_t b) { return is_bucket_final(b); },
                 .starts = [this](std::size_t b) { bucket_starts(b); },
                 .delivered = [this](std::size_t b) { meter_.bucket_delivered(b); }}),
      is_ready_(std::make_unique<std::atomic<bool>[]>(buckets_.size())),
      meter_(pipeline_.exchanges(), options.trace) {
  DP_ASSERT(hosts_.size() == static_cast<std::size_t>(communicator_.size()),
            "{} hosts for {} ranks", hosts_.size(), communicator_.size());
  static_cast<void>(find_topology(options_.topology));
  check_streams(buckets_.size());
  if (options_.throttle_bits_per_s > 0.0) throttled_.emplace(mpi_, options_.throttle_bits_per_s);
  const CodecSpec exact = parse_codec_spec("none");
  exact_ = options_.device == nullptr ? make_codec(exact) : make_codec(exact, *options_.device);
  state_.emplace(gradient_.size(), exact_->memory(), options_.device);
  std::vector<std::string> specs;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    DP_ASSERT(buckets_[b].offset + buckets_[b].elements <= gradient.size(),
              "bucket {} ends behind the gradient", b);
    specs.push_back(buckets_[b].codec);
  }
  specs_.resize(buckets_.size());
  codecs_.resize(buckets_.size());
  started_s_.resize(buckets_.size());
  make_exchanges(specs);
  if (options_.desk != nullptr) {
    Transport& transport = throttled_ ? static_cast<Transport&>(*throttled_) : mpi_;
    gather_.emplace(transport, *options_.desk, options_.trace);
  }
  communicator_.set_timeout_s(options_.comm_timeout_s);
  // When every rank has come here, all last messages of an earlier reducer have been received.
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
    // What this rank still forwards to others ends before the thread does.
    try {
      thread_->run([] {});
    } catch (...) {
      // The caller has already got the thread's failure, or nobody waits for it any more.
    }
  }
  thread_->stop();
  // An operation that still waits goes on, with an error.
  if (options_.desk != nullptr) options_.desk->close(nullptr);
  try {
    thread_->throw_failure();
    // The others need what has been sent for a step that this rank may have finished. MPI brings it
    // to them until MPI_Finalize.
    if (gather_) gather_->let_go();
    for (const auto& exchange : pipeline_.exchanges()) exchange->let_go();
  } catch (...) {
    // Messages cannot be handed over after a failure, and others will have seen it.
  }
}

void Reducer::begin_step(std::uint64_t step) {
  thread_->throw_failure();
  DP_ASSERT(thread_->is_over(deliver_job_), "step {} is not over", step_);
  for (std::size_t b = 0; b < buckets_.size(); ++b) is_ready_[b] = false;
  work_done_.store(0, std::memory_order_relaxed);
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

void Reducer::all_sum(std::span<std::int64_t> values) {
  run([&](Communicator& comm) {
    meter_.skip();
    comm.all_sum(values);
    meter_.account_waiting();
  });
}

// A part at a time, so that each takes the time of the throttled link.
void Reducer::all_mean(std::span<float> values) {
  run([&](Communicator& comm) {
    meter_.skip();
    const double begin_s = seconds_now();
    const double sent_bytes = sizeof(float) * static_cast<double>(comm.size() - 1);  // of a value
    const std::size_t part = throttled_ ? Communicator::kPart : values.size();
    for (std::size_t begin = 0; begin < values.size(); begin += part) {
      const std::size_t end = std::min(begin + part, values.size());
      comm.all_mean(values.subspan(begin, end - begin));
      if (!throttled_) continue;
      const double end_s = begin_s + sent_bytes * static_cast<double>(end) /
                                         LinkModel::goodput(options_.throttle_bits_per_s);
      for (double left_s = end_s - seconds_now(); left_s > 0; left_s = end_s - seconds_now()) {
        std::this_thread::sleep_for(std::chrono::duration<double>(std::min(left_s, 0.05)));
        comm.serve();
      }
    }
    meter_.account_gathering();
  });
}

// The first job of a step: every sum is in place when it ends.
void Reducer::deliver_sums() {
  running_step_ = step_;
  if (options_.trace != nullptr) options_.trace->begin_step(running_step_);
  is_sampling_ = std::exchange(must_sample_, false);
  if (is_sampling_) {
    for (const auto& exchange : pipeline_.exchanges()) exchange->measure_saturation();
  }
  pipeline_.begin_step(running_step_);
  tell_whereabouts(0, true);
  exchange_until([this] { return pipeline_.has_delivered_all(); });
  if (thread_->must_stop()) return;
  verdict_.finite = std::ranges::all_of(pipeline_.exchanges(),
                                        [](const auto& exchange) { return exchange->finite(); });
  verdict_.stop = communicator_.size() == 1 || buckets_.empty()
                      ? options_.stop_wish != nullptr && *options_.stop_wish
                      : std::ranges::any_of(pipeline_.exchanges(), [](const auto& exchange) {
                          return exchange->stop_is_wished();
                        });
  verdict_.busy = busy_until_now();
  take_rate();
  verdict_.clamped = {};
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    verdict_.clamped.add(pipeline_.exchange(b).clamped(), buckets_[b].offset);
  }
  verdict_.first_not_finite = Exchange::kAllFinite;
  if (!verdict_.finite) {
    for (std::size_t b = buckets_.size(); b-- > 0;) {
      const std::size_t place = pipeline_.exchanges()[b]->first_not_finite();
      if (place != Exchange::kAllFinite) verdict_.first_not_finite = buckets_[b].offset + place;
    }
    for (const auto& exchange : pipeline_.exchanges()) exchange->put_back_delivered();
  }
  tell_whereabouts(buckets_.size(), false);
}

void Reducer::take_rate() {
  verdict_.rate = {};
  verdict_.grown_bucket = std::nullopt;
  double most = 0.0;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const RateTally tally = pipeline_.exchange(b).rate_tally();
    verdict_.rate += tally;
    const double growth = growth_of(tally.own_squares);
    if (growth > most) verdict_.grown_bucket = b;
    most = std::max(most, growth);
  }
}

// The second job of a step: the caller has its sums, and what this rank still forwards to others
// goes on.
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
    // The look that starts a bucket counts; time without one does not.
    const bool was_in_flight = pipeline_.is_in_flight();
    const bool was_gathering = gather_ && gather_->is_under_way();
    if (!was_in_flight && !was_gathering) meter_.skip();
    if (options_.on_look) options_.on_look();
    // First, because the computation waits for it.
    const bool has_gathered = gather_ && gather_->look();
    if (!was_in_flight) busy_begins();
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
      gpu_wait_.reset();
      continue;
    }
    rest();
    if (options_.computing != nullptr) look_at_gpu();
    if (is_busy()) {
      deadline.check(communicator_.whereabouts(), [&] { return describe_wait(); });
    }
  }
  gpu_wait_.reset();
}

// Nothing has moved. If nothing is under way either, and the caller has enqueued what it has and
// waits, only the GPU can bring the step on.
void Reducer::look_at_gpu() {
  const Clock::time_point now = Clock::now();
  if (now - looked_at_gpu_ > kLookAtGpu) {
    options_.computing->check();
    looked_at_gpu_ = now;
  }
  if (is_busy() || !thread_->is_awaited()) {
    gpu_wait_.reset();
  } else if (!gpu_wait_) {
    gpu_wait_.emplace(options_.computing->waits(), "the gradients of a step");
  }
}

// The bucket's values are known; its exchange starts next.
void Reducer::bucket_starts(std::size_t bucket) {
  if (is_sampling_) sample_->take_input(bucket);
  meter_.bucket_starts(bucket);
  started_s_[bucket] = seconds_now();
  tell_whereabouts(bucket + 1, true);
}

// The bucket's sum is in place. What the hook does with it is this rank's work and not the
// network's.
void Reducer::hand_over(std::size_t bucket) {
  if (is_sampling_) sample_->take_delivered(bucket);
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

// Nothing is in flight before.
void Reducer::busy_begins() {
  busy_ = {};
  busy_ = busy_until_now();
  busy_.begin_s = busy_.end_s;
}

BusyPeriod Reducer::busy_until_now() const {
  BusyPeriod period{.begin_s = busy_.begin_s,
                    .end_s = seconds_now(),
                    .peer_wait_s = meter_.peer_wait_s() - busy_.peer_wait_s,
                    .nap_squares = nap_squares_ - busy_.nap_squares};
  for (const auto& exchange : pipeline_.exchanges()) {
    const ExchangeStats& stats = exchange->stats();
    period.sent_bytes += stats.sent_bytes;
    period.codec_s += stats.encode_s + stats.decode_s;
  }
  period.sent_bytes -= busy_.sent_bytes;
  period.codec_s -= busy_.codec_s;
  return period;
}

// Every rank has all sums by now, or soon, so the comparison delays nobody's next computation.
void Reducer::compare_samples() {
  if (!is_sampling_ || !verdict_.finite) return;
  const std::span<const ErrorSample::Result> results = sample_->compare(communicator_);
  for (std::size_t b = 0; b < buckets_.size(); ++b) meter_.add_error(b, results[b]);
}

bool Reducer::is_bucket_final(std::size_t bucket) const {
  if (options_.is_final) return options_.is_final(bucket);
  return is_ready_[bucket].load(std::memory_order_acquire);
}

// Nothing has moved: sleeps a moment. Where nothing of this rank is under way, a bucket that the
// caller says to be ready ends the sleep.
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
    const double nap_s = seconds_now() - begin_s;
    nap_squares_ += nap_s * nap_s;
    return;
  }
  thread_->nap(kRestInStep,
               [this] { return pipeline_.can_start() || (gather_ && gather_->has_work()); });
}

// Between steps.
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
