// Reads the inputs of the rate's governor (rate/rate_governor.hpp) from the reducer.
#pragma once

#include <optional>
#include <span>

#include "comm/rate/rate_control.hpp"
#include "comm/rate/step_watch.hpp"
#include "comm/reducer/reducer.hpp"
#include "kernels/device.hpp"

namespace dp {

// A histogram of the values (gradient + residual) that this rank will encode itself in its next
// exchange, before others' values are added, in buckets whose codec has a rate. gpu: the device
// that holds the gradient; null: host memory. Call it between steps.
[[nodiscard]] MagnitudeHistogram count_own_values(const Reducer& reducer, Device* gpu,
                                                  std::span<const float> gradient,
                                                  bool is_residual_on_gpu);

// For auto. bytes_per_s, latency_s: the measured link; 0: not known. Empty if this rank sends
// nothing.
[[nodiscard]] std::optional<StepWatch> watch_steps(const Reducer& reducer, double bytes_per_s,
                                                   double latency_s);

}  // namespace dp
