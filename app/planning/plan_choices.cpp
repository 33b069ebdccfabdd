#include "app/planning/plan_choices.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>

#include "app/training/replica/replica.hpp"
#include "app/training/setup/run_options.hpp"
#include "comm/rate/compress_choice.hpp"
#include "comm/reducer/reducer.hpp"
#include "comm/topologies/exchange_kinds.hpp"
#include "comm/topologies/owner_weights.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

// With more ranks than this, the topology "grid" may be faster than "direct".
constexpr std::size_t kSomeRanks = 8;

}  // namespace

std::vector<CompressChoice> codecs_of(const Options& options) {
  std::vector<CompressChoice> choices = options.plan.codecs;
  if (choices.empty()) {
    const net::OptimizerKind kind = optimizer_options(options).kind;
    for (const std::string& sample : codec_samples()) {
      const CompressChoice choice = parse_compress(sample);
      const bool can_leave = can_leave_momentum_to(choice.codec, kind);
      if (can_leave || !takes_momentum(choice.codec)) choices.push_back(choice);
    }
    choices.push_back(parse_compress("auto"));
    choices.push_back(options.compress);
  }
  std::set<std::string> seen;
  std::erase_if(choices, [&](const CompressChoice& choice) {
    return !seen.insert(choice.is_auto() ? choice.text : choice.codec.text()).second;
  });
  return choices;
}

std::vector<std::string> topologies_of(const Options& options, std::size_t ranks) {
  if (!options.plan.topologies.empty()) return options.plan.topologies;
  if (ranks <= kSomeRanks) return {"ring", "direct"};
  return {"ring", "direct", "grid"};
}

std::vector<std::size_t> sync_lengths(const Options& options) {
  std::vector<std::size_t> lengths;
  for (const std::int64_t length : options.plan.sync) {
    lengths.push_back(checked_cast<std::size_t>(length));
  }
  if (!lengths.empty()) return lengths;
  return {std::max<std::size_t>(options.sync_every.steps, 1)};
}

std::size_t most_steps_of_auto(const Options& options) {
  return options.plan.sync.empty() ? options.sync_every.most_steps : 0;
}

bool can_be_in_rounds(const CodecSpec& codec) { return !takes_momentum(codec); }
bool can_run(const CodecSpec& codec, const std::string& topology, std::size_t sync_every) {
  return (sync_every == 1 || can_be_in_rounds(codec)) &&
         (topology != "hierarchical" || !has_rate(codec));
}

std::vector<std::uint32_t> planned_owners(const Options& options,
                                          std::vector<double> own_bytes_per_s) {
  if (options.autotune == "off") return {};
  if (options.throttle.bit_per_s > 0) {
    for (double& own : own_bytes_per_s) own = std::min(own, options.throttle.bit_per_s / 8);
  }
  return owner_weights(own_bytes_per_s);
}

std::vector<std::size_t> planned_images(const Options& options, const Calibration& calibration,
                                        const ShareFacts& facts, std::size_t ranks,
                                        std::size_t global_batch, double factor) {
  if (options.shares.kind == ShareChoice::Kind::weights) {
    if (options.shares.weights.size() != ranks) return {};
    const Shares shares(options.shares.weights);
    if (shares.is_even()) return {};
    return shares.counts(global_batch, ranks);
  }
  if (!options.measures_shares() || options.sync_bn || facts.is_one_machine()) return {};
  const std::vector<std::size_t> images = Shares().counts(global_batch, ranks);
  const std::vector<double> computes_s = calibration.computes_s();
  const std::size_t measured = facts.machines.size();
  const std::size_t hosts = std::ranges::max(facts.machines) + 1;
  const auto parts = checked_cast<std::size_t>(options.accumulate);
  std::vector<std::size_t> machines;
  std::vector<ShareMeasurement> measurements;
  for (std::size_t r = 0; r < ranks; ++r) {
    machines.push_back(facts.machines[r % measured] + r / measured * hosts);
    measurements.push_back({.compute_s = factor * computes_s[r % measured],
                            .most_images = parts * facts.most_images[r % measured]});
  }
  // Numbers machines anew, without gaps: if not all measured ranks are repeated equally often, some
  // machines may have no rank.
  std::map<std::size_t, std::size_t> numbers;
  for (std::size_t& machine : machines) {
    machine = numbers.try_emplace(machine, numbers.size()).first->second;
  }
  return ShareControl(machines, options.shares.least)
      .begin(measurements, images)
      .value_or(std::vector<std::size_t>());
}

std::string left_out(const Options& options) {
  std::size_t all = 0, left = 0, in_rounds = 0;
  for (const std::size_t length : sync_lengths(options)) {
    for (const CompressChoice& compress : codecs_of(options)) {
      for (const std::string& topology : topologies_of(options, kSomeRanks + 1)) {
        ++all;
        left += can_run(compress.codec, topology, length) ? 0 : 1;
        in_rounds += length == 1 || can_be_in_rounds(compress.codec) ? 0 : 1;
      }
    }
  }
  if (left == all) {
    throw_error(ErrorKind::usage, "{}",
                in_rounds > 0 ? "--plan codecs=: dgc and velocity= need an exchange at every "
                                "step; not with --sync-every or sync= above 1"
                              : "--plan topologies=hierarchical: adds in fp32 on a host, which "
                                "codecs with bits= or error= and auto do not allow; allowed: "
                                "direct, grid, ring, tree, ps");
  }
  constexpr const char* kRefused = "left out: {}, which a run refuses\n";
  std::vector<std::string> lines;
  if (left > in_rounds) {
    lines.push_back(fmt::format(kRefused, "hierarchical with bits=, error= and auto"));
  }
  if (in_rounds > 0) lines.push_back(fmt::format(kRefused, "rounds with dgc and velocity="));
  return fmt::format("{}", fmt::join(lines, ""));
}

}  // namespace dp
