#include "app/earlier_choices.hpp"

#include <cstring>
#include <set>
#include <sstream>

#include "app/options_values.hpp"
#include "app/rank_main.hpp"
#include "app/round_schedule.hpp"
#include "comm/auto_rate.hpp"
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

void check_round_steps(const RunChoices& earlier, const Options& options) {
  if (!parse_round_schedule("--sync-every", options.sync_every).is_auto()) return;
  if (earlier.round_steps.empty()) {
    throw_error(ErrorKind::usage,
                "--autotune {}: that log does not say how often its ranks exchanged, which "
                "--sync-every auto would repeat; use --autotune on, or the log of a run with "
                "--sync-every auto",
                options.autotune);
  }
  for (const std::string& steps : split_at_commas(earlier.round_steps)) {
    static_cast<void>(parse_whole("round_steps of that log:", steps, {1, 1'000'000}));
  }
}

}  // namespace

RunChoices agree_on_earlier_choices(const Options& options, Communicator& comm, Device& device,
                                    std::size_t batch_at_once) {
  RunChoices choices;
  const auto ranks = static_cast<std::size_t>(comm.size());
  together(comm, kDptrainNames, [&] {
    if (comm.rank() != 0) return;
    choices = read_run_choices(options.autotune);
    if (parse_compress(options.compress).is_auto() && choices.planned_bits.empty()) {
      throw_error(ErrorKind::usage,
                  "--autotune {}: that log does not have the rate of every step, which --compress "
                  "auto would repeat; use --autotune on, or the log of a run with --compress auto "
                  "and --log-steps 1",
                  options.autotune);
    }
    check_round_steps(choices, options);
    check_fit(choices, options, device.description(), (batch_at_once + ranks - 1) / ranks);
  });
  choices.bucket_bytes = comm.all_gather(choices.bucket_bytes).front();
  comm.broadcast(choices.exchange_path);
  comm.broadcast(choices.algorithms);
  comm.broadcast(choices.round_steps);
  std::string bits(reinterpret_cast<const char*>(choices.planned_bits.data()),
                   choices.planned_bits.size() * sizeof(double));
  comm.broadcast(bits);
  choices.planned_bits.resize(bits.size() / sizeof(double));
  std::memcpy(choices.planned_bits.data(), bits.data(), bits.size());
  together(comm, kDptrainNames, [&] { device.tuning().import_text(choices.algorithms); });
  return choices;
}

void check_choices_are_complete(const Options& options, const RunChoices& earlier, Device& device) {
  if (!options.takes_choices_from_a_log()) return;
  const auto key_of = [](const std::string& line) { return line.substr(0, line.find(" = ")); };
  std::set<std::string> known;
  std::istringstream lines(earlier.algorithms);
  for (std::string line; std::getline(lines, line);) known.insert(key_of(line));
  std::istringstream needed(device.tuning().export_text());
  for (std::string line; std::getline(needed, line);) {
    if (known.contains(key_of(line))) continue;
    throw_error(ErrorKind::usage,
                "--autotune {}: holds no choice for '{}', which this version of dptrain makes; use "
                "--autotune on or off",
                options.autotune, key_of(line));
  }
}

}  // namespace dp
