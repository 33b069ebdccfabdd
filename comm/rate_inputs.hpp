// Reads the rate governor's inputs (rate/rate_governor.hpp) from the reducer.
#pragma once

#include <optional>
#include <span>

#include "comm/rate/rate_control.hpp"
#include "comm/rate/step_watch.hpp"
#include "comm/reducer/reducer.hpp"
#include "kernels/device.hpp"

namespace dp {

// Makes a histogram of this rank's own values (gradient + residual). It covers the segments whose
// partial sums this rank will encode in the next exchange, in buckets whose codec has a rate
// (has_rate). `gpu` is the device that holds the gradient; null if the gradient is in host memory.
// Call it between steps.
[[nodiscard]] MagnitudeHistogram count_own_values(Reducer& reducer, Device* gpu,
                                                  std::span<const float> gradient,
                                                  bool is_residual_on_gpu);

// Makes the watch by which `auto` learns the times of steps. bytes_per_s and latency_s are the
// measured bandwidth and latency of the link, or 0 if not known. Returns nullopt if this rank sends
// nothing.
[[nodiscard]] std::optional<StepWatch> watch_steps(const Reducer& reducer, double bytes_per_s,
                                                   double latency_s);

}  // namespace dp
