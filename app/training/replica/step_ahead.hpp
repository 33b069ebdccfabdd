// Computes gradients at the parameters that a rank expects once the residuals have been delivered.
//
// At few bits, a value waits in a rank's residual for hundreds of steps until it is delivered. The
// common parameters therefore lack the residuals of all ranks. A gradient at the common parameters
// asks again for changes that are already in the residuals. To avoid this, each rank computes its
// gradient at
//
//     w - s * learning_rate * (times * residual)            (UndeliveredPart)
//
// with s = 1/2, reduced so that the move is at most kMostOfNorm of the parameters' norm, because
// one rank's residual is only a noisy estimate of the residuals of all ranks. This is the step
// ahead of SA-PEF (arXiv 2601.20738). CSER (arXiv 2007.13221) keeps the same difference in the
// local models of its rounds. experiments/studies/few_bits.md has measurements, also for other
// values of s.
//
// A step's loss, gradient and weight decay are computed at the moved parameters. Batch
// normalisation updates its running statistics with values from there, too. restore() brings back
// the common parameters before the update, with the same bits on all ranks. In the log, the time of
// move() is part of other_s, and the time of restore() is part of exposed_comm_s.
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

  // Device and parameters outlive this object. The first move() allocates memory for a copy of the
  // parameters. On a GPU it allocates as much again if the residuals are in host memory.
  StepAhead(Device& device, std::span<float> parameters)
      : device_(device), parameters_(parameters) {}

  // learning_rate: the training step's learning rate. rate_factors: for each tensor, a factor of
  // the learning rate. Waits for the device.
  void move(const GradientSync& sync, double learning_rate, std::span<const float> rate_factors);
  // Goes back to the common parameters. Does nothing if move() has not changed them.
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
