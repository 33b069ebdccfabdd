// Reports problems of a step's values on stderr: gradients that are not finite, and values that a
// codec has clamped. Each kind is reported once in an exchange, and counted in all steps.
#pragma once

#include <cstdint>

#include "comm/capi/arguments.hpp"
#include "comm/reducer/reducer.hpp"

namespace dp::capi {

class StepReport {
 public:
  struct Counts {
    std::uint64_t skipped_steps = 0;   // the same on all ranks
    std::uint64_t clamped_values = 0;  // of this rank
  };

  // Call it after each step. Collective. `step` counts from 0.
  void add(const StepVerdict& verdict, std::uint64_t step, const Layout& layout, Reducer& reducer);
  // The counts since the last call.
  [[nodiscard]] Counts take();

 private:
  bool has_told_not_finite_ = false, has_told_clamped_ = false;
  Counts counts_;
};

}  // namespace dp::capi
