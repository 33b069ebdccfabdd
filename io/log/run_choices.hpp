// What a run chose by measurement, and what kind of run it was. Both are read from its log
// (run_log.hpp), finished or not, so that another run can check that they fit it and choose the
// same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dp {

struct RunChoices {
  std::string model, precision;
  std::string device;  // of rank 0, as Device::description() puts it
  std::size_t batch_per_rank = 0;
  std::string algorithms;     // Tuning::export_text()
  std::string exchange_path;  // "device" or "host"; empty without a GPU
  std::size_t bucket_bytes = 0;
  // The planned bits a value of each step, from the first one on, where the log has them all
  // (--log-steps 1), 0 where a step has none: what a rate that followed the link has decided by
  // measurement.
  std::vector<double> planned_bits;
  // The steps between two exchanges of each epoch, joined by commas, where they were chosen.
  std::string round_steps;
  // How much of each bucket a rank owns (comm/topologies/owner_weights.hpp), as text; empty: all
  // own as much. Nothing if the log does not say.
  std::optional<std::string> owner_weights;
  // The changes of shares, where they were chosen: the first step, from 0, and the images of each
  // rank. Empty if the log tells of none, not even the first shares.
  struct ShareChange {
    std::uint64_t step = 0;
    std::vector<std::uint64_t> weights = {};
  };
  std::vector<ShareChange> shares;
  // What --compress auto does where it is not told, if that is known.
  std::optional<bool> auto_sends_velocities;
};

// Throws SettingError(data) "log of an earlier run PATH: ..." if the file cannot be read or is not
// a run's log.
[[nodiscard]] RunChoices read_run_choices(const std::string& path);

}  // namespace dp
