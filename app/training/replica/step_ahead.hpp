// Gradients are computed at the parameters to which a rank expects the others to come.
//
// At few bits, a value waits for hundreds of steps in a rank's residual until it is delivered. The
// common parameters lag behind by what waits on all ranks, and a gradient that is taken there tells
// again what is already on its way. So each rank computes its gradient at
//
//     w - s * rate * (times * residual)            (UndeliveredPart)
//
// with s = 1/2, reduced so that the move is at most kMostOfNorm of the parameters' norm: a rank's
// residual is a noisy estimate of what waits on all ranks. This is the step ahead of SA-PEF (arXiv
// 2601.20738). CSER (arXiv 2007.13221) keeps the same difference in the local models of its rounds.
// experiments/README.md, "Also tried at few bits", has what it gains, and other values of s.
//
// Loss, gradient and weight decay of a step, and what batch normalisation adds to its running
// statistics, are those at the moved parameters. Before the update all ranks have the same bits of
// the common ones again. In the log, move() is part of other_s, and restore() of exposed_comm_s.
#pragma once

#include <span>
#include <vector>

#include "comm/gradient_sync.hpp"
#include "kernels/arrays.hpp"
#include "kernels/device.hpp"

namespace dp {

class StepAhead {
 public:
  static constexpr double kShare = 0.5, kMostOfNorm = 0.05;

  // Device and parameters outlive this object. Memory for a copy of the parameters is allocated by
  // the first move, and on a GPU whose residuals are in host memory as much again.
  StepAhead(Device& device, std::span<float> parameters)
      : device_(device), parameters_(parameters) {}

  // learning_rate: of the step; rate_factors: by tensor. Waits for the device.
  void move(const GradientSync& sync, double learning_rate, std::span<const float> rate_factors);
  // Does nothing if the parameters are the common ones.
  void restore();

 private:
  Device& device_;
  std::span<float> parameters_;
  DeviceArray common_, uploaded_;
  HostArray<double> squares_;
  std::size_t count_ = 0;  // of squares_
  bool is_ahead_ = false;
};

}  // namespace dp
