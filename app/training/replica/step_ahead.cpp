#include "app/training/replica/step_ahead.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/base/error.hpp"
#include "kernels/mix.hpp"
#include "kernels/sgd.hpp"

namespace dp {

void StepAhead::move(const GradientSync& sync, double learning_rate,
                     std::span<const float> rate_factors) {
  DP_ASSERT(!is_ahead_, "moved twice");
  std::vector<UndeliveredPart> parts = sync.undelivered_parts();
  if (parts.empty() || learning_rate == 0.0) return;
  if (common_.values().empty()) common_ = DeviceArray(device_, parameters_.size());
  if (sync.path() == "host") {
    if (uploaded_.values().empty()) uploaded_ = DeviceArray(device_, parameters_.size());
    for (UndeliveredPart& part : parts) {
      const std::span<float> copy = uploaded_.values().subspan(part.offset, part.residual.size());
      device_.upload(copy.data(), part.residual.data(), part.residual.size_bytes());
      part.residual = copy;
    }
  }
  if (count_ < parts.size() + 1) {
    count_ = parts.size() + 1;
    squares_ = HostArray<double>(device_, count_);
  }
  const auto factor = [&](const UndeliveredPart& part) {
    return learning_rate * static_cast<double>(rate_factors[part.tensor] * part.times);
  };
  for (std::size_t i = 0; i < parts.size(); ++i) {
    sum_of_squares(device_, parts[i].residual, squares_.at(i));
  }
  sum_of_squares(device_, parameters_, squares_.at(parts.size()));
  device_.synchronize();
  double squares = 0.0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    squares += factor(parts[i]) * factor(parts[i]) * squares_[i];
  }
  const double most = kMostOfNorm * std::sqrt(squares_[parts.size()]);
  const double share = squares > 0.0 ? std::min(kShare, most / std::sqrt(squares)) : 0.0;
  if (!(share > 0.0)) return;  // nothing waits, or the residual is not finite
  blend_values(device_, parameters_, common_.values(), 1.0f);
  for (const UndeliveredPart& part : parts) {
    add_values(device_, part.residual, parameters_.subspan(part.offset, part.residual.size()),
               static_cast<float>(-share * factor(part)));
  }
  is_ahead_ = true;
}

void StepAhead::restore() {
  if (!is_ahead_) return;
  blend_values(device_, common_.values(), parameters_, 1.0f);
  is_ahead_ = false;
}

}  // namespace dp
