#include "app/training/setup/earlier_choices.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <span>
#include <sstream>

#include "app/options/options_values.hpp"
#include "app/process/rank_main.hpp"
#include "comm/topologies/owner_weights.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

std::string value_of(const Options& options, const std::string& name) {
  for (const auto& [key, value] : options.resolved()) {
    if (key == name) return value;
  }
  return {};
}

void check_fit(const RunChoices& earlier, const Options& options, const std::string& device,
               std::size_t batch_per_rank) {
  const auto compare = [&](const char* what, const std::string& then, const std::string& now) {
    if (then == now) return;
    throw_error(ErrorKind::usage,
                "--autotune {}: that run had the {} {}, and this one has {}; choices hold only for "
                "the same model, precision, device and batch size",
                options.autotune, what, then, now);
  };
  compare("model", earlier.model, options.model);
  compare("precision", earlier.precision, value_of(options, "precision"));
  compare("device", earlier.device, device);
  compare("batch size per rank", std::to_string(earlier.batch_per_rank),
          std::to_string(batch_per_rank));
}

void check_rates(const RunChoices& earlier, const Options& options) {
  if (!options.compress.is_auto() || !earlier.planned_bits.empty()) return;
  throw_error(ErrorKind::usage,
              "--autotune {}: the log lacks the rate of every step, which --compress auto needs; "
              "use --autotune on, or the log of a run with --compress auto and --log-steps 1",
              options.autotune);
}

void check_round_steps(const RunChoices& earlier, const Options& options) {
  if (!options.sync_every.is_auto()) return;
  if (earlier.round_steps.empty()) {
    throw_error(ErrorKind::usage,
                "--autotune {}: the log lacks the rounds of each epoch, which --sync-every auto "
                "needs; use --autotune on, or the log of a run with --sync-every auto",
                options.autotune);
  }
  for (const std::string& steps : split_at_commas(earlier.round_steps)) {
    static_cast<void>(parse_whole("round_steps of that log:", steps, {1, 1'000'000}));
  }
}

// If the log has no shares, this run uses even shares: a run may omit shares from its log if they
// were always even. Shares for another number of ranks cannot be used.
void repeat_shares(RunChoices& earlier, std::size_t ranks) {
  if (earlier.shares.empty() || earlier.shares.front().weights.size() != ranks) {
    earlier.shares = {{0, std::vector<std::uint64_t>(ranks, 1)}};
  }
}

void check_owners(const RunChoices& earlier, const Options& options, std::size_t ranks) {
  const std::vector<std::uint32_t> weights =
      parse_owner_weights(earlier.owner_weights.value_or(""));
  if (weights.empty() || weights.size() == ranks || options.topology != "direct") return;
  throw_error(ErrorKind::usage,
              "--autotune {}: that run divided buckets among {} ranks by the speed of their links, "
              "but this run has {} ranks; use --autotune on",
              options.autotune, weights.size(), ranks);
}

// A line for each change of shares, with the step and the weights.
std::string share_text(const RunChoices& choices) {
  std::string text;
  for (const auto& [step, weights] : choices.shares) {
    text += fmt::format("{} {}\n", step, fmt::join(weights, " "));
  }
  return text;
}

std::vector<RunChoices::ShareChange> shares_in(const std::string& text) {
  std::vector<RunChoices::ShareChange> shares;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream numbers(line);
    RunChoices::ShareChange& change = shares.emplace_back();
    numbers >> change.step;
    for (std::uint64_t weight = 0; numbers >> weight;) change.weights.push_back(weight);
  }
  return shares;
}

}  // namespace

void agree_on_earlier_choices(const Options& options, Communicator& comm, Device& device,
                              std::size_t batch_at_once, bool is_resumed, RunChoices& choices) {
  const auto ranks = static_cast<std::size_t>(comm.size());
  RunChoices earlier;
  together(comm, kDptrainNames, [&] {
    if (comm.rank() != 0) return;
    earlier = read_run_choices(options.autotune);
    check_rates(earlier, options);
    check_round_steps(earlier, options);
    repeat_shares(earlier, ranks);
    if (is_resumed) return;
    check_owners(earlier, options, ranks);
    check_fit(earlier, options, device.description(), (batch_at_once + ranks - 1) / ranks);
  });
  comm.broadcast(earlier.round_steps);
  std::string shares = share_text(earlier);
  comm.broadcast(shares);
  choices.shares = shares_in(shares);
  std::string bits(reinterpret_cast<const char*>(earlier.planned_bits.data()),
                   earlier.planned_bits.size() * sizeof(double));
  comm.broadcast(bits);
  choices.round_steps = earlier.round_steps;
  choices.planned_bits.resize(bits.size() / sizeof(double));
  std::ranges::copy(std::as_bytes(std::span(bits)),
                    std::as_writable_bytes(std::span(choices.planned_bits)).begin());
  if (is_resumed) return;
  choices.bucket_bytes = comm.all_gather(earlier.bucket_bytes).front();
  comm.broadcast(earlier.exchange_path);
  comm.broadcast(earlier.algorithms);
  std::string owners = earlier.owner_weights.value_or("");
  comm.broadcast(owners);
  choices.owner_weights = owners;
  choices.exchange_path = earlier.exchange_path;
  choices.algorithms = earlier.algorithms;
  together(comm, kDptrainNames, [&] { device.tuning().import_text(choices.algorithms); });
}

void check_choices_are_complete(const Options& options, const RunChoices& earlier, Device& device) {
  const auto key_of = [](const std::string& line) { return line.substr(0, line.find(" = ")); };
  std::set<std::string> known;
  std::istringstream lines(earlier.algorithms);
  for (std::string line; std::getline(lines, line);) known.insert(key_of(line));
  std::istringstream needed(device.tuning().export_text());
  for (std::string line; std::getline(needed, line);) {
    if (known.contains(key_of(line))) continue;
    throw_error(ErrorKind::usage,
                "--autotune {}: has no choice for '{}', which this version of dptrain needs; use "
                "--autotune on or off",
                options.autotune, key_of(line));
  }
}

}  // namespace dp
