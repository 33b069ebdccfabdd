// Reads the inputs of the rate's governor (rate/rate_governor.hpp) from the reducer.
#pragma once

#include <optional>
#include <span>

#include "comm/rate/rate_control.hpp"
#include "comm/rate/step_watch.hpp"
#include "comm/reducer/reducer.hpp"
#include "kernels/device.hpp"

namespace dp {

// Counts the values that this rank's next exchange encodes before it adds others' to them, with
// their residual, in buckets whose codec has a rate. gpu: where the gradient lies; null: in host
// memory. Call it between steps.
[[nodiscard]] MagnitudeHistogram count_own_values(const Reducer& reducer, Device* gpu,
                                                  std::span<const float> gradient,
                                                  bool is_residual_on_gpu);

// For auto. bytes_per_s, latency_s: the measured link; 0: not known. Nothing if this rank has
// nobody to send to.
[[nodiscard]] std::optional<StepWatch> watch_steps(const Reducer& reducer, double bytes_per_s,
                                                   double latency_s);

}  // namespace dp
