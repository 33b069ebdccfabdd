// Reads from a run's log (run_log.hpp) which choices the run made by measurement, and with which
// model, device and settings. A later run can thus check whether the choices fit, and repeat them.
// The logged run need not have finished.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dp {

struct RunChoices {
  std::string model, precision;
  std::string device;  // rank 0's Device::description()
  std::size_t batch_per_rank = 0;
  std::string algorithms;     // Tuning::export_text()
  std::string exchange_path;  // "device" or "host"; empty without a GPU
  std::size_t bucket_bytes = 0;
  // The planned bits per value for each step, beginning with the first step; 0 for a step without a
  // plan. They are the choices of a codec that adapts to the link's bandwidth. Empty unless the log
  // has every step (--log-steps 1).
  std::vector<double> planned_bits;
  // The number of steps between two exchanges, for each epoch, joined by commas. Empty if the
  // number was not chosen by measurement.
  std::string round_steps;
  // The fraction of each bucket that each rank owns (comm/topologies/owner_weights.hpp), as text.
  // Empty: all ranks own the same; nullopt: the log does not say.
  std::optional<std::string> owner_weights;
  // If the ranks' shares were chosen by measurement: each change of the shares. `step` is the first
  // step with the new shares, counted from 0; `weights` are the images of each rank. Empty if the
  // log has no rows of shares, not even of the initial shares.
  struct ShareChange {
    std::uint64_t step = 0;
    std::vector<std::uint64_t> weights = {};
  };
  std::vector<ShareChange> shares;
  // Whether --compress auto sends velocities by default, if known.
  std::optional<bool> auto_sends_velocities;
  std::optional<bool> is_on_gpus;
};

// Throws SettingError(data) "log of an earlier run PATH: ..." if the file cannot be read or is not
// a run's log.
[[nodiscard]] RunChoices read_run_choices(const std::string& path);

}  // namespace dp
