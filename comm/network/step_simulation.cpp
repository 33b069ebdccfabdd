// Outline: the loop in step() handles the earlier of two events, the first in the queue and the
// network's next one. Every rank is an Engine. At its turn an engine starts one action (act()) for
// the next bucket that has something to do. When the action is over, it sends the action's messages
// and takes its next turn. An engine without anything to do waits until a bucket becomes ready, a
// message arrives or one of its messages has left (wake). end() adds the step's times to the
// forecast, and result() divides the sums by the numbers of steps and ranks.
#include "comm/network/step_simulation.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <queue>
#include <tuple>
#include <utility>

#include "comm/exchange/segment_exchange.hpp"
#include "comm/mpi/look_pace.hpp"
#include "kernels/base/error.hpp"
#include "kernels/base/random.hpp"

namespace dp {
namespace {

constexpr double kNoEvent_s = std::numeric_limits<double>::infinity();

enum class EventKind : std::uint8_t { ready, turn, action_over, arrival };

struct Event {
  double at_s = 0.0;
  std::uint64_t order = 0;  // tie-breaker for events at the same time
  EventKind kind = EventKind::turn;
  std::size_t rank = 0, bucket = 0, sum = 0, from = 0;

  [[nodiscard]] bool operator>(const Event& other) const {
    return std::pair(at_s, order) > std::pair(other.at_s, other.order);
  }
};

// A bucket on one rank.
struct Progress {
  std::size_t sum = 0;  // the sum that is running
  bool has_begun_sum = false;
  std::size_t next_handled = 0, next_sent = 0;
  // Two counts of messages by sum and sender: messages that have arrived, and messages that have
  // been handled.
  std::vector<std::vector<std::size_t>> arrived, handled;
  // By place in the window: how many copies of the place's message have not left yet. A place is
  // free when this count is 0.
  std::vector<std::size_t> under_way;
  bool is_delivered = false;
};

struct Outgoing {
  std::size_t to = 0, bucket = 0, sum = 0, place = 0;
  double bytes = 0.0;
};

struct Engine {
  const ComputeTimes* times = nullptr;
  double begin_s = 0.0;
  double stolen_s = 0.0;  // the delay of the computation by the thread
  std::vector<Progress> buckets = {};
  std::vector<bool> is_ready = {};
  std::size_t started = 0, delivered = 0, done = 0;
  std::size_t next_looked = 0;          // the bucket whose turn it is
  bool is_awake = false;                // an event of this engine is in the queue
  std::vector<Outgoing> outgoing = {};  // of the running action
  LookPace pace = {};
  double last_delivered_s = 0.0;

  [[nodiscard]] double backward_end_s() const { return begin_s + times->backward_end_s + stolen_s; }
};

class Simulation {
 public:
  explicit Simulation(const StepSetup& setup)
      : setup_(setup),
        ranks_(setup.hosts.size()),
        network_(setup.ports, setup.hosts),
        engines_(ranks_) {
    DP_ASSERT(ranks_ > 0 && setup.topology != nullptr, "{} ranks", ranks_);
    for (std::size_t b = 0; b < setup.buckets.size(); ++b) {
      for (const Sum& sum : setup.buckets[b].sums) {
        auto& plans = plans_[key_of(sum, b)];
        for (std::size_t rank = plans.size(); rank < ranks_; ++rank) {
          ExchangeShape shape = {.elements = sum.elements,
                                 .ranks = ranks_,
                                 .segment = sum.segment,
                                 .turn = b,
                                 .has_brief_messages = sum.has_brief_messages};
          if (setup.topology->has_owner_weights) shape.owner_weights = setup.owner_weights;
          plans.push_back(setup.topology->plan(shape, setup.hosts, rank, setup.window));
        }
      }
    }
    for (std::size_t b = 0; b < setup.buckets.size(); ++b) {
      for (std::size_t rank = 0; rank < ranks_; ++rank) notice_bytes_.push_back(notices(b, rank));
    }
    forecast_.delivered_s.resize(setup.buckets.size());
    sent_bytes_.resize(ranks_);
  }

  // No message of the previous step is under way any more, so each step begins with a new network.
  // Its ports have tokens for a whole burst, since gathering them takes less time than the
  // computation of a step.
  void step(std::span<const ComputeTimes> times) {
    network_ = FluidNetwork(setup_.ports, setup_.hosts);
    DP_ASSERT(times.size() == ranks_, "there are times of {} ranks, but the simulation has {}",
              times.size(), ranks_);
    for (std::size_t rank = 0; rank < ranks_; ++rank) begin(rank, times[rank]);
    while (!queue_.empty() || network_.next_s() < kNoEvent_s) {
      const double event_s = queue_.empty() ? kNoEvent_s : queue_.top().at_s;
      if (const double s = network_.next_s(); s <= event_s) {
        transfer_ended(*network_.take(s));
        continue;
      }
      const Event event = queue_.top();
      queue_.pop();
      handle(event);
    }
    for (Engine& engine : engines_) end(engine);
    ++steps_;
  }

  [[nodiscard]] StepForecast result() const {
    StepForecast forecast = forecast_;
    const double steps = static_cast<double>(steps_);
    const double all = steps * static_cast<double>(ranks_);
    for (const Engine& engine : engines_) forecast.step_s += engine.begin_s;
    forecast.step_s /= all;
    forecast.backward_end_s /= all;
    forecast.exposed_s /= all;
    forecast.in_flight_s /= all;
    for (double& delivered_s : forecast.delivered_s) delivered_s /= all;
    forecast.sent_bytes = std::accumulate(sent_bytes_.begin(), sent_bytes_.end(), 0.0) / all;
    forecast.most_sent_bytes = *std::ranges::max_element(sent_bytes_) / steps;
    return forecast;
  }

 private:
  using Sum = SimulatedBucket::Sum;
  using PlanKey = std::tuple<std::size_t, std::size_t, std::size_t, bool>;

  // Sums with the same key have the same lists of messages.
  [[nodiscard]] PlanKey key_of(const Sum& sum, std::size_t bucket) const {
    return {sum.elements, sum.segment, bucket % ranks_, sum.has_brief_messages};
  }

  void begin(std::size_t rank, const ComputeTimes& times) {
    Engine& engine = engines_[rank];
    DP_ASSERT(times.ready_s.size() == setup_.buckets.size(), "{} times for {} buckets",
              times.ready_s.size(), setup_.buckets.size());
    engine = {.times = &times,
              .begin_s = engine.begin_s,
              .is_ready = std::vector<bool>(setup_.buckets.size()),
              .pace = engine.pace,
              .last_delivered_s = engine.begin_s};
    for (std::size_t b = 0; b < setup_.buckets.size(); ++b) {
      const std::size_t sums = setup_.buckets[b].sums.size();
      const std::vector<std::size_t> none(ranks_);
      engine.buckets.push_back({.arrived = std::vector(sums, none),
                                .handled = std::vector(sums, none),
                                .under_way = std::vector<std::size_t>(setup_.window)});
      push(engine.begin_s + times.ready_s[b],
           {.kind = EventKind::ready, .rank = rank, .bucket = b});
    }
  }

  void end(Engine& engine) {
    const double backward_s = engine.backward_end_s();
    DP_ASSERT(engine.delivered == setup_.buckets.size(), "only {} of {} buckets were delivered",
              engine.delivered, setup_.buckets.size());
    forecast_.backward_end_s += backward_s - engine.begin_s;
    forecast_.exposed_s += std::max(0.0, engine.last_delivered_s - backward_s);
    if (!setup_.buckets.empty()) {
      const double first_s = engine.begin_s + std::ranges::min(engine.times->ready_s);
      forecast_.in_flight_s += std::max(0.0, engine.last_delivered_s - first_s);
    }
    engine.begin_s = std::max(backward_s, engine.last_delivered_s) + engine.times->after_s;
  }

  void push(double at_s, Event event) {
    event.at_s = at_s;
    event.order = next_order_++;
    queue_.push(event);
  }

  void handle(const Event& event) {
    Engine& engine = engines_[event.rank];
    now_s_ = event.at_s;
    switch (event.kind) {
      case EventKind::ready: {
        // Since this event was queued, the exchange's thread may have delayed the computation. The
        // bucket then becomes ready later, and the event is queued again.
        const double ready_s =
            engine.begin_s + engine.times->ready_s[event.bucket] + engine.stolen_s;
        if (ready_s > now_s_ + 1e-12) {
          push(ready_s, event);
          return;
        }
        engine.is_ready[event.bucket] = true;
        wake(event.rank);
        return;
      }
      case EventKind::arrival: {
        Progress& bucket = engine.buckets[event.bucket];
        ++bucket.arrived[event.sum][event.from];
        wake(event.rank);
        return;
      }
      case EventKind::action_over:
        --acting_;
        for (const Outgoing& out : engine.outgoing) {
          network_.send(now_s_,
                        {.from = event.rank,
                         .to = out.to,
                         .bytes = out.bytes + setup_.message_bytes,
                         .id = (out.bucket * kMostSums + out.sum) * setup_.window + out.place});
          sent_bytes_[event.rank] += out.bytes;
        }
        engine.outgoing.clear();
        if (setup_.sleeps) engine.pace.moved(now_s_);
        [[fallthrough]];
      case EventKind::turn:
        take_turn(event.rank);
        return;
    }
  }

  void transfer_ended(const FluidNetwork::Sent& sent) {
    now_s_ = sent.left_s;
    const std::size_t place = sent.message.id % setup_.window;
    const std::size_t number = sent.message.id / setup_.window;
    const std::size_t b = number / kMostSums, sum = number % kMostSums;
    --engines_[sent.message.from].buckets[b].under_way[place];
    wake(sent.message.from);
    push(sent.arrives_s, {.kind = EventKind::arrival,
                          .rank = sent.message.to,
                          .bucket = b,
                          .sum = sum,
                          .from = sent.message.from});
  }

  // Call it when something has happened for which an idle engine may be waiting.
  void wake(std::size_t rank) {
    Engine& engine = engines_[rank];
    if (engine.is_awake) return;
    engine.is_awake = true;
    const bool is_in_flight = engine.started > engine.delivered;
    double late_s = 0.0;
    if (setup_.sleeps && is_in_flight) {
      late_s = naps_.uniform(next_nap_++) * engine.pace.sleep_s() + LookPace::kWakeUp_s;
    }
    push(now_s_ + late_s, {.kind = EventKind::turn, .rank = rank});
  }

  // The bytes of the start notices of a bucket's sums.
  [[nodiscard]] double notices(std::size_t b, std::size_t rank) const {
    if (ranks_ < 2) return 0.0;
    double bytes = 0.0;
    for (const Sum& sum : setup_.buckets[b].sums) {
      const ExchangePlan& plan = plans_.at(key_of(sum, b))[rank];
      using Notices = ExchangePlan::Notices;
      const std::size_t others = plan.notices == Notices::to_all        ? ranks_ - 1
                                 : plan.notices == Notices::to_partners ? plan.partners().size()
                                                                        : 0;
      bytes = static_cast<double>(notice_bytes(others + 1));
    }
    return bytes;
  }

  // Starts one action of the next bucket that has something to do.
  void take_turn(std::size_t rank) {
    Engine& engine = engines_[rank];
    note_done(engine);
    while (engine.started < engine.buckets.size() && engine.is_ready[engine.started] &&
           engine.started < engine.done + setup_.buckets_in_flight) {
      // Start notices are small, and no rank waits for one; only their bytes count.
      sent_bytes_[rank] += notice_bytes_[engine.started * ranks_ + rank];
      ++engine.started;
    }
    for (std::size_t tried = 0; tried < engine.started; ++tried) {
      const std::size_t b = engine.next_looked++ % engine.started;
      std::optional<double> cost_s = act(rank, b);
      if (!cost_s) continue;
      *cost_s *= slowdown();
      ++acting_;
      // While backward runs, the action takes processor time from backward.
      if (now_s_ < engine.backward_end_s()) engine.stolen_s += setup_.stolen * *cost_s;
      push(now_s_ + *cost_s, {.kind = EventKind::action_over, .rank = rank});
      return;
    }
    engine.is_awake = false;
  }

  // An action that begins now takes this many times as long, because other actions run on the same
  // cores.
  [[nodiscard]] double slowdown() const {
    if (setup_.shared_cores == 0.0) return 1.0;
    return std::max(1.0, static_cast<double>(acting_ + 1) / setup_.shared_cores);
  }

  // Does the next action of the bucket's exchange and returns its duration; empty if there is
  // nothing to do. The order of actions is that of SegmentExchange::progress().
  std::optional<double> act(std::size_t rank, std::size_t b) {
    Engine& engine = engines_[rank];
    Progress& bucket = engine.buckets[b];
    if (bucket.is_delivered) return std::nullopt;
    const SimulatedBucket& what = setup_.buckets[b];
    if (bucket.sum == what.sums.size()) {
      deliver(engine, bucket, b, now_s_ + slowdown() * what.after_s);
      return what.after_s;
    }
    const Sum& sum = what.sums[bucket.sum];
    if (!std::exchange(bucket.has_begun_sum, true) && sum.before_s > 0.0) return sum.before_s;
    const ExchangePlan& plan = plans_.at(key_of(sum, b))[rank];
    bucket.next_handled = skip(plan, bucket.next_handled, &PlanTask::takes);
    bucket.next_sent = skip(plan, bucket.next_sent, &PlanTask::gives);
    if (bucket.next_sent < plan.tasks.size() && !plan.tasks[bucket.next_sent].takes()) {
      if (const auto place = free_place(bucket)) {
        const PlanTask& task = plan.tasks[bucket.next_sent++];
        return carry_out(engine, bucket, b, plan, task, *place, sum);
      }
    }
    if (bucket.next_handled < plan.tasks.size()) {
      const PlanTask& task = plan.tasks[bucket.next_handled];
      const auto from = static_cast<std::size_t>(task.from);
      if (bucket.handled[bucket.sum][from] == bucket.arrived[bucket.sum][from]) return std::nullopt;
      std::size_t place = 0;
      if (task.gives()) {
        const auto free = free_place(bucket);
        if (!free || bucket.next_sent != bucket.next_handled) return std::nullopt;
        place = *free;
        ++bucket.next_sent;
      }
      ++bucket.next_handled;
      ++bucket.handled[bucket.sum][from];
      return carry_out(engine, bucket, b, plan, task, place, sum);
    }
    if (bucket.next_sent < plan.tasks.size()) return std::nullopt;
    ++bucket.sum;
    bucket.has_begun_sum = false;
    bucket.next_handled = bucket.next_sent = 0;
    return 0.0;
  }

  static std::size_t skip(const ExchangePlan& plan, std::size_t at,
                          bool (PlanTask::*counts)() const) {
    while (at < plan.tasks.size() && !(plan.tasks[at].*counts)()) ++at;
    return at;
  }

  [[nodiscard]] std::optional<std::size_t> free_place(const Progress& bucket) const {
    const auto free = std::ranges::find(bucket.under_way, std::size_t{0});
    if (free == bucket.under_way.end()) return std::nullopt;
    return static_cast<std::size_t>(free - bucket.under_way.begin());
  }

  double carry_out(Engine& engine, Progress& bucket, std::size_t b, const ExchangePlan& plan,
                   const PlanTask& task, std::size_t place, const Sum& sum) const {
    const ExchangePlan::Segment& segment = plan.segments[task.segment];
    const auto floats = static_cast<double>(segment.size);
    const CodecCosts& taken = task.takes_exact ? setup_.exact : sum.costs;
    const CodecCosts& given = task.gives_exact ? setup_.exact : sum.costs;
    const auto bytes_of = [&](const CodecCosts& costs) {
      return static_cast<double>(kMessageFrameBytes + sum.note_bytes) +
             costs.payload_bytes(segment.begin, segment.size);
    };
    double cost_s = 0.0;
    if (task.takes()) {
      cost_s +=
          floats * taken.decode_s_per_float + setup_.message_s + bytes_of(taken) * setup_.byte_s;
    }
    if (task.encodes()) cost_s += floats * given.encode_s_per_float;
    // The rank that completes a sum also decodes it, to hold the same values as the others.
    if (task.give == PlanTask::Give::total) cost_s += floats * given.decode_s_per_float;
    const double bytes = bytes_of(given);
    for (const int to : plan.targets_of(task)) {
      cost_s += setup_.message_s + bytes * setup_.byte_s;
      engine.outgoing.push_back({.to = static_cast<std::size_t>(to),
                                 .bucket = b,
                                 .sum = bucket.sum,
                                 .place = place,
                                 .bytes = bytes});
      ++bucket.under_way[place];
    }
    return cost_s;
  }

  void deliver(Engine& engine, Progress& bucket, std::size_t b, double at_s) {
    bucket.is_delivered = true;
    ++engine.delivered;
    forecast_.delivered_s[b] += at_s - engine.begin_s;
    engine.last_delivered_s = std::max(engine.last_delivered_s, at_s);
  }

  // A bucket's buffers are free when its last message has left.
  static void note_done(Engine& engine) {
    engine.done = 0;
    for (const Progress& bucket : engine.buckets) {
      const bool has_left = std::ranges::all_of(bucket.under_way, [](auto n) { return n == 0; });
      if (bucket.is_delivered && has_left) ++engine.done;
    }
  }

  static constexpr std::size_t kMostSums = 4;  // of a bucket

  const StepSetup& setup_;
  std::size_t ranks_;
  FluidNetwork network_;
  std::vector<Engine> engines_;
  std::map<PlanKey, std::vector<ExchangePlan>> plans_;  // every rank's list
  std::vector<double> notice_bytes_;                    // by bucket and rank
  std::priority_queue<Event, std::vector<Event>, std::greater<>> queue_;
  std::uint64_t next_order_ = 0;
  CounterRng naps_{0, RandomStream::nap};
  std::uint64_t next_nap_ = 0;
  double now_s_ = 0.0;
  std::size_t acting_ = 0;  // threads
  std::size_t steps_ = 0;
  StepForecast forecast_;
  std::vector<double> sent_bytes_;  // by rank
};

}  // namespace

CodecCosts CodecCosts::exact() {
  return {.payload_bytes = [](std::size_t, std::size_t floats) {
    return static_cast<double>(floats * sizeof(float));
  }};
}

StepForecast simulate_steps(const StepSetup& setup,
                            std::span<const std::vector<ComputeTimes>> steps) {
  DP_ASSERT(!steps.empty(), "{} steps", steps.size());
  Simulation simulation(setup);
  for (const std::vector<ComputeTimes>& times : steps) simulation.step(times);
  return simulation.result();
}

}  // namespace dp
