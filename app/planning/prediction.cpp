// forecast_at() predicts a step with a given number of bits per value. It scales each rank's
// computation from rehearsed steps (times_of), and interpolates the costs of codecs between
// measured bits (figures_at). From these costs and the bandwidths of the hosts' ports, it simulates
// the exchange (simulate_steps).
//
// predict_step() first finds the bits per value. With "auto", they are the bits whose exchange
// hides behind backward (hidden_budget). Other codecs with bits= distribute their bits over the run
// by a plan.
#include "app/planning/prediction.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "app/options/options_values.hpp"
#include "app/options/round_schedule.hpp"
#include "app/planning/check_network.hpp"
#include "app/training/shares/share_solver.hpp"
#include "comm/mpi/link_model.hpp"
#include "comm/rate/rate_budget.hpp"
#include "comm/topologies/owner_weights.hpp"
#include "comm/topologies/topology.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

// The cost of a message, and of each of its bytes, in the reducer's thread without the codec: calls
// of MPI, and copies into and out of the operating system's buffers. A core carries about 1 GB/s
// over TCP in one direction.
constexpr double kMessage_s = 20e-6;
constexpr double kByte_s = 1e-9;

CodecFigures mean_of(const std::vector<CodecFigures>& all) {
  CodecFigures mean;
  for (double CodecFigures::*field :
       {&CodecFigures::encode_s, &CodecFigures::decode_s, &CodecFigures::payload_bytes,
        &CodecFigures::first_s, &CodecFigures::second_s, &CodecFigures::deliver_s}) {
    for (const CodecFigures& one : all) mean.*field += one.*field / static_cast<double>(all.size());
  }
  return mean;
}

// The rank's computing time in a step, divided by its time in the measured step.
double factor_of(const StepChoice& choice, std::size_t rank) {
  if (choice.image_factors.empty()) return choice.batch_factor;
  const StepModel model = StepModel::guess(1.0, 1.0);
  return choice.batch_factor * (model.fixed_s + model.image_s * choice.image_factors[rank]);
}

// A rank's computing times, and when each bucket is ready. The update's time does not depend on the
// batch.
ComputeTimes times_of(const std::vector<RehearsedStep>& measured, std::size_t rank,
                      const StepChoice& choice) {
  const RehearsedStep& step = measured[rank % measured.size()];
  const double factor = factor_of(choice, rank);
  ComputeTimes times;
  times.backward_end_s = factor * step.backward_end_s;
  for (const Bucket& bucket : choice.buckets) {
    double ready_s = 0.0;
    for (std::size_t t = bucket.first_tensor; t < bucket.end_tensor; ++t) {
      ready_s = std::max(ready_s, factor * step.ready_s[t]);
    }
    const bool overlaps = choice.overlaps && choice.round_steps == 0.0;
    times.ready_s.push_back(overlaps ? ready_s : times.backward_end_s);
  }
  times.after_s = step.update_s;
  return times;
}

// By how much the slowest rank's computation, with the update, is longer than the mean rank's; the
// mean over the steps.
double lag_of_slowest_s(std::span<const std::vector<ComputeTimes>> steps) {
  double sum_s = 0.0;
  for (const std::vector<ComputeTimes>& ranks : steps) {
    double slowest_s = 0.0, mean_s = 0.0;
    for (const ComputeTimes& rank : ranks) {
      const double compute_s = rank.backward_end_s + rank.after_s;
      slowest_s = std::max(slowest_s, compute_s);
      mean_s += compute_s / static_cast<double>(ranks.size());
    }
    sum_s += (slowest_s - mean_s) / static_cast<double>(steps.size());
  }
  return sum_s;
}

// The costs of a codec with bits= are measured at these bits.
constexpr std::array kMeasuredBits = {0.1, 0.4, 1.5, 6.0};

bool has_bits(const CodecSpec& codec) {
  const auto bits = codec.settings.find("bits");
  return bits != codec.settings.end() && bits->second > 0.0;
}

const CodecFigures& measured(const Calibration& calibration, const CodecSpec& codec) {
  const auto found = calibration.codecs.find(codec);
  DP_ASSERT(found != calibration.codecs.end(), "codec {} was not measured", codec.text());
  return found->second;
}

// A codec's costs and, for a codec with bits=, the distribution of its bytes.
struct RatedFigures {
  CodecFigures costs;
  ByteShares shares;
};

// The costs of a codec with bits= at this many bits, and the distribution of its bytes. Both are
// interpolated between the two nearest measured points, on a logarithmic scale of bits.
RatedFigures figures_at(const Calibration& calibration, const CodecSpec& codec, double bits) {
  RatedFigures figures;
  if (dense_bits_of(bits) != 0) {
    figures.costs = measured(calibration, codec_at(codec, bits));
  } else {
    std::size_t i = 1;
    while (i + 1 < kMeasuredBits.size() && bits > kMeasuredBits[i]) ++i;
    const double at = std::clamp(
        std::log(bits / kMeasuredBits[i - 1]) / std::log(kMeasuredBits[i] / kMeasuredBits[i - 1]),
        0.0, 1.0);
    const CodecSpec few = codec_at(codec, kMeasuredBits[i - 1]),
                    many = codec_at(codec, kMeasuredBits[i]);
    const CodecFigures &fewer = measured(calibration, few), &more = measured(calibration, many);
    figures.costs.encode_s = fewer.encode_s + at * (more.encode_s - fewer.encode_s);
    figures.costs.decode_s = fewer.decode_s + at * (more.decode_s - fewer.decode_s);
    if (calibration.byte_shares.contains(few) && calibration.byte_shares.contains(many)) {
      figures.shares = ByteShares::between(calibration.byte_shares.at(few),
                                           calibration.byte_shares.at(many), at);
    }
  }
  figures.costs.payload_bytes = bits / 8;
  return figures;
}

// The bandwidth with which a host's port carries one rank's messages. Messages to ranks of the same
// host do not use the port.
double goodput_of(const StepChoice& choice, std::size_t rank) {
  const auto ranks = static_cast<double>(choice.hosts.size());
  const auto here = static_cast<double>(std::ranges::count(choice.hosts, choice.hosts[rank]));
  if (here == ranks) return choice.ports.inside_bytes_per_s;
  const auto host = static_cast<std::size_t>(choice.hosts[rank]);
  const double port_bytes_per_s =
      std::min(choice.ports.send_bytes_per_s[host], choice.ports.receive_bytes_per_s[host]);
  return port_bytes_per_s / here * (ranks - 1) / (ranks - here);
}

// The bytes that pass through the rank's port, divided by the bytes of an encoded bucket.
double wire_factor_of(const StepChoice& choice, std::size_t rank) {
  const Topology& topology = find_topology(choice.topology);
  if (topology.has_owner_weights && !choice.owner_weights.empty()) {
    return owner_wire_factor(choice.owner_weights, choice.hosts.size(), rank);
  }
  return topology.wire_factor(choice.hosts.size(), choice.hosts, rank);
}

// The bits that "auto" chooses when the links have carried this budget for a few training steps.
double steady_bits(const RateBudget& budget, const RateLimits& limits) {
  DenseChoice choice;
  double bits = 0.0;
  for (std::int64_t step = 0; step <= DenseChoice::kPatience; ++step) {
    bits = choice.next(budget.bits_per_value, limits);
  }
  return bits;
}

// The mean of the planned bits from `begin` to `end`, which are fractions of the run.
double mean_planned_bits(double mean, double begin, double end) {
  constexpr int kPlaces = 8;
  double sum = 0.0;
  for (int i = 0; i < kPlaces; ++i) {
    sum += planned_bits(mean, begin + (end - begin) * (i + 0.5) / kPlaces);
  }
  return sum / kPlaces;
}

// The factor that corrects byte shares. Byte shares are relative to the mean of all matrices, but
// the bits are the mean of only those matrices that the codec sends (--compress-exclude).
double correction_of(const Calibration& calibration, std::span<const Bucket> buckets, double bits) {
  double values = 0.0, shares = 0.0;
  for (const Bucket& bucket : buckets) {
    if (bucket.elements == 0 || !has_bits(bucket.codec)) continue;
    const auto elements = static_cast<double>(bucket.elements);
    values += elements;
    shares +=
        elements *
        figures_at(calibration, bucket.codec, bits).shares.mean(bucket.offset, bucket.elements);
  }
  return shares > 0.0 ? values / shares : 1.0;
}

// A step in which codecs with bits= send this many bits.
StepForecast forecast_at(const Calibration& calibration, const StepChoice& choice, double bits) {
  // Codecs were measured while all ranks used the shared cores. The simulation slows an action down
  // while other actions run, so it needs the time on a core that nothing else uses.
  const double crowd = calibration.shared_cores > 0.0
                           ? std::max(1.0, static_cast<double>(calibration.steps.front().size()) /
                                               calibration.shared_cores)
                           : 1.0;
  const CodecFigures exact = measured(calibration, CodecSpec::exact()).over(crowd);
  StepSetup setup;
  const double correction = correction_of(calibration, choice.buckets, bits);
  for (const Bucket& bucket : choice.buckets) {
    RatedFigures figures = {.costs = {}, .shares = {}};
    if (has_bits(bucket.codec)) {
      figures = figures_at(calibration, bucket.codec, bits);
      figures.costs.payload_bytes *= correction;
    } else {
      figures.costs = measured(calibration, bucket.codec);
    }
    setup.buckets.push_back(simulated_bucket(bucket, figures.costs.over(crowd), exact,
                                             choice.segment_bytes, figures.shares));
  }
  setup.topology = &find_topology(choice.topology);
  setup.ports = choice.ports;
  setup.hosts = choice.hosts;
  setup.owner_weights = choice.owner_weights;
  setup.window = choice.window;
  setup.buckets_in_flight = choice.buckets_in_flight;
  setup.exact = exact_costs(exact);
  // If ranks share a core, messages take longer. The codecs' times already include this, because
  // they were measured on shared cores.
  const double share = std::max(1.0, 1.0 / calibration.cores_per_rank);
  setup.message_bytes = LinkModel::kMessageBytes;
  setup.message_s = share * kMessage_s;
  setup.byte_s = share * kByte_s;
  setup.stolen = calibration.shares_processor ? 1.0 : 0.0;
  setup.sleeps = true;
  setup.shared_cores = calibration.shared_cores;
  // Simulating one rank's step takes about ten milliseconds. Only the last steps are therefore
  // simulated, and fewer if there are many ranks.
  constexpr std::size_t kMostRankSteps = 40;
  const std::size_t count =
      std::clamp<std::size_t>(kMostRankSteps / choice.hosts.size(), 1, calibration.steps.size());
  std::vector<std::vector<ComputeTimes>> steps;
  for (const std::vector<RehearsedStep>& step : std::span(calibration.steps).last(count)) {
    std::vector<ComputeTimes>& ranks = steps.emplace_back();
    for (std::size_t rank = 0; rank < choice.hosts.size(); ++rank) {
      ranks.push_back(times_of(step, rank, choice));
    }
  }
  StepForecast forecast = simulate_steps(setup, steps);
  if (choice.round_steps > 0.0) {
    // The slowest rank's computation counts. Rehearsed steps begin together, so a rank that ends
    // early has left the processor to the others. In rounds it does not wait for them.
    forecast.step_s += lag_of_slowest_s(steps) - forecast.exposed_s;
    forecast.exposed_s = std::max(0.0, forecast.exposed_s - choice.round_delay * forecast.step_s);
    for (double* shared : {&forecast.exposed_s, &forecast.sent_bytes, &forecast.most_sent_bytes}) {
      *shared /= choice.round_steps;
    }
    forecast.step_s += forecast.exposed_s;
  }
  return forecast;
}

// The bandwidth that --throttle leaves of the run's link. The limit includes the headers of frames.
double throttled_rate(const RunPlan& plan) {
  return std::min(plan.link.bytes_per_s, LinkModel::goodput(plan.options.throttle.bit_per_s));
}

}  // namespace

std::vector<double> Calibration::computes_s() const {
  std::vector<double> medians_s;
  for (std::size_t rank = 0; rank < steps.front().size(); ++rank) {
    std::vector<double> all_s;
    for (const std::vector<RehearsedStep>& step : steps) {
      all_s.push_back(step[rank].backward_end_s + step[rank].update_s);
    }
    const auto middle = all_s.begin() + static_cast<std::ptrdiff_t>(all_s.size() / 2);
    std::ranges::nth_element(all_s, middle);
    medians_s.push_back(*middle);
  }
  return medians_s;
}

double Calibration::compute_s() const { return std::ranges::max(computes_s()); }

void measure_codecs(Replica& replica, int rank, const std::vector<CodecSpec>& codecs,
                    bool has_dense, Calibration& calibration) {
  measure_codecs(replica.sync().reducer(),
                 to_host(replica.device(), replica.network().parameters().gradients()), rank,
                 codecs, has_dense, calibration);
}

void measure_codecs(Reducer& reducer, std::span<const float> gradient, int rank,
                    const std::vector<CodecSpec>& codecs, bool has_dense,
                    Calibration& calibration) {
  const auto measure = [&](const CodecSpec& codec) {
    if (calibration.codecs.contains(codec)) return;
    reducer.run([](Communicator& comm) { comm.barrier(); });
    const CodecFigures mine =
        measure_codec(codec, gradient, calibration.tensors, ReducerOptions().segment_bytes);
    calibration.codecs[codec] =
        mean_of(reducer.run([&](Communicator& comm) { return comm.all_gather(mine); }));
  };
  for (const CodecSpec& codec : codecs) {
    if (!has_bits(codec)) {
      measure(codec);
      continue;
    }
    for (const double bits : kMeasuredBits) {
      const CodecSpec at_bits = codec_at(codec, bits);
      measure(at_bits);
      if (rank != 0 || calibration.byte_shares.contains(at_bits)) continue;
      calibration.byte_shares[at_bits] =
          measure_byte_shares(at_bits, gradient, calibration.tensors);
    }
  }
  if (!has_dense) return;
  for (const DenseForm& form : kDenseForms)
    measure(codec_at(CodecSpec::exact(), form.bits_per_value));
}

CodecSpec codec_at(const CodecSpec& codec, double bits) {
  for (const DenseForm& form : kDenseForms) {
    if (form.bits_per_value == bits) return parse_codec_spec(form.codec);
  }
  CodecSpec at_bits = codec;
  at_bits.settings["bits"] = bits;
  return at_bits;
}

RateBudget hidden_budget(const Calibration& calibration, const StepChoice& choice) {
  std::vector<BudgetBucket> buckets;
  for (const Bucket& bucket : choice.buckets) {
    const auto floats = static_cast<double>(bucket.elements);
    if (has_rate(bucket.codec)) {
      buckets.push_back({.elements = bucket.elements});
    } else {
      buckets.push_back(
          {.fixed_bytes = floats * measured(calibration, bucket.codec).payload_bytes});
    }
  }
  const std::size_t ranks = choice.hosts.size();
  const auto count = static_cast<double>(calibration.steps.size());
  const Topology& topology = find_topology(choice.topology);
  const std::size_t hops = topology.hops(ranks, choice.hosts);
  RateBudget least{.bits_per_value = std::numeric_limits<double>::infinity()};
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    double backward_end_s = 0.0, step_s = 0.0;
    for (BudgetBucket& bucket : buckets) bucket.ready_s = 0.0;
    for (const std::vector<RehearsedStep>& step : calibration.steps) {
      const ComputeTimes times = times_of(step, rank, choice);
      backward_end_s += times.backward_end_s / count;
      step_s += (times.backward_end_s + times.after_s) / count;
      for (std::size_t b = 0; b < buckets.size(); ++b) {
        buckets[b].ready_s += times.ready_s[b] / count;
      }
    }
    // In rounds, an exchange may take as long as the steps of its delay and, in addition, a
    // fraction of the round's time.
    const RateBudget own =
        hidden_rate({.buckets = buckets,
                     .backward_end_s = backward_end_s + choice.round_delay * step_s,
                     .slack_s = AutoRate::kSlack * std::max(1.0, choice.round_steps) * step_s,
                     .goodput_bytes_per_s = goodput_of(choice, rank),
                     .latency_s = choice.ports.latency_s + AutoRate::kWakeUp_s,
                     .hops = hops,
                     .wire_factor = wire_factor_of(choice, rank)});
    if (own.bits_per_value < least.bits_per_value) least = own;
  }
  return least;
}

Prediction predict_step(const Calibration& calibration, const StepChoice& choice) {
  const auto rated =
      std::ranges::find_if(choice.buckets, [](const Bucket& b) { return has_bits(b.codec); });
  if (rated == choice.buckets.end()) return {.step = forecast_at(calibration, choice, 0.0)};
  Prediction prediction;
  if (choice.limits) {
    prediction.bits = steady_bits(hidden_budget(calibration, choice), *choice.limits);
    prediction.step = forecast_at(calibration, choice, prediction.bits);
    return prediction;
  }
  prediction.bits = rated->codec.number("bits");
  for (const auto& [begin, end] : {std::pair{0.0, 0.25}, {0.25, 0.5}, {0.5, 1.0}}) {
    const StepForecast part =
        forecast_at(calibration, choice, mean_planned_bits(prediction.bits, begin, end));
    for (double StepForecast::*field :
         {&StepForecast::step_s, &StepForecast::backward_end_s, &StepForecast::exposed_s,
          &StepForecast::in_flight_s, &StepForecast::sent_bytes, &StepForecast::most_sent_bytes}) {
      prediction.step.*field += (end - begin) * part.*field;
    }
  }
  return prediction;
}

std::size_t chosen_steps(const StepForecast& forecast, std::size_t most) {
  return chosen_steps({.compute_s = forecast.step_s - forecast.exposed_s,
                       .exposed_s = forecast.exposed_s,
                       .in_flight_s = forecast.in_flight_s},
                      most);
}

bool can_predict(const RunPlan& plan) {
  return plan.exchanges() && plan.link.bytes_per_s > 0.0 && !plan.options.sync_bn &&
         plan.schedule.epochs > 0 && plan.ranks <= kMostPredictedRanks;
}

Calibration rehearse_run(const RunPlan& plan, int rank, const CpuShare& share, Replica& replica,
                         Loader& images) {
  Calibration calibration;
  calibration.tensors = replica.tensor_slots();
  calibration.shares_processor = replica.device().kind() == DeviceKind::cpu;
  calibration.cores_per_rank = share.cores_per_rank;
  calibration.steps = rehearse_steps(replica, images, {.steps = 5, .seconds = 2.0});
  if (!can_predict(plan)) return calibration;
  std::vector<CodecSpec> codecs = {CodecSpec::exact()};
  for (const Bucket& bucket : replica.sync().buckets()) codecs.push_back(bucket.codec);
  const std::optional<RateLimits>& limits = replica.sync().compress().limits;
  measure_codecs(replica, rank, codecs, limits && limits->allows_dense, calibration);
  return calibration;
}

namespace {

// Predicts a step of an epoch of `steps` steps in rounds. The last round of an epoch may be
// shorter, so the mean number of steps in a round counts.
Prediction predict_rounds(const Calibration& calibration, StepChoice choice, std::size_t length,
                          std::size_t delay, std::size_t steps) {
  choice.round_delay = static_cast<double>(delay);
  choice.round_steps =
      static_cast<double>(steps) / static_cast<double>((steps + length - 1) / length);
  return predict_step(calibration, choice);
}

// The length of the first epoch's rounds, as an earlier run or the prediction says.
std::size_t first_round(const RunPlan& plan, const StepForecast& at_every_step) {
  constexpr std::size_t kLongest = 2;
  if (!plan.choices.round_steps.empty()) return std::stoul(plan.choices.round_steps);
  return plan.options.compress_warmup > 0 ? 1 : chosen_steps(at_every_step, kLongest);
}

}  // namespace

std::optional<Prediction> predict_run(const RunPlan& plan, int rank,
                                      std::vector<double> image_factors,
                                      const Calibration& calibration, Replica& replica,
                                      const Loader& images) {
  StepChoice choice;
  choice.buckets = replica.sync().buckets();
  choice.limits = replica.sync().compress().limits;
  const Reducer& reducer = replica.sync().reducer();
  choice.topology = plan.options.topology;
  choice.image_factors = std::move(image_factors);
  choice.owner_weights = plan.owner_weights;
  choice.hosts.assign(reducer.hosts().begin(), reducer.hosts().end());
  if (plan.options.throttle.bit_per_s == 0) {
    choice.ports = replica.sync().reducer().run(
        [&](Communicator& comm) { return measure_ports(comm, plan.link, choice.hosts); });
  } else {
    // With --throttle each rank has a link of its own.
    std::iota(choice.hosts.begin(), choice.hosts.end(), 0);
    choice.ports = NetworkPorts::alike(plan.ranks, throttled_rate(plan), plan.link.latency_s);
  }
  choice.window = reducer.window();
  choice.overlaps = plan.options.overlap;
  // If rounds begin in a later epoch, the prediction is for the steps before, with an exchange at
  // every step.
  const bool begins_with_rounds =
      plan.rounds.has_rounds() && !plan.rounds.is_auto() && plan.rounds.from == 1;
  if (rank != 0) return std::nullopt;
  if (begins_with_rounds) {
    return predict_rounds(calibration, choice, plan.rounds.steps,
                          static_cast<std::size_t>(plan.options.sync_delay), images.steps());
  }
  const Prediction at_every_step = predict_step(calibration, choice);
  if (!plan.rounds.is_auto()) return at_every_step;
  const std::size_t length = first_round(plan, at_every_step.step);
  if (length == 1) return at_every_step;
  Prediction prediction = predict_rounds(calibration, choice, length, length - 1, images.steps());
  prediction.first_round = length;
  return prediction;
}

}  // namespace dp
