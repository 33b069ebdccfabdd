// Averages of the weights, kept beside the trained weights. Evaluation uses the average.
//
// Both kinds of average include the running statistics of normalisation, so that the evaluated
// weights and statistics fit together. The averaged weights are the same on every rank, since every
// rank makes the same updates; each rank has its own averaged statistics.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "kernels/arrays.hpp"
#include "kernels/base/state.hpp"
#include "kernels/device.hpp"
#include "net/parameters.hpp"

namespace dp::net {

class WeightAverage {
 public:
  virtual ~WeightAverage() = default;
  WeightAverage(const WeightAverage&) = delete;
  WeightAverage& operator=(const WeightAverage&) = delete;

  // Call it after each update of the optimiser. `progress` is the fraction of the run that is done,
  // including this update.
  virtual void update(double progress) = 0;
  // Sets the average to the trained weights.
  void reset() { approach(1.0f); }
  // Swaps the average and the trained weights. Call it before and after an evaluation.
  void swap();
  void list_state(StateVisitor& visitor);

 protected:
  // `name` is the first part of the state's names. `parameters` must outlive this object.
  WeightAverage(Device& device, Parameters& parameters, std::string name);

  // Moves the average by this fraction of its distance to the trained weights.
  void approach(float share);
  // Sets the trained weights to the average.
  void give_back();

  std::uint64_t updates_ = 0;  // so far

 private:
  Device& device_;
  Parameters& parameters_;
  std::string name_;
  DeviceArray values_, statistics_;
};

// average = decay * average + (1 - decay) * weights after each update; the first update copies, as
// torch.optim.swa_utils.AveragedModel does.
[[nodiscard]] std::unique_ptr<WeightAverage> make_exponential_average(Device& device,
                                                                      Parameters& parameters,
                                                                      double decay);

// Lookahead (Zhang et al. 2019): after every `every` updates the slow weights move by `share` of
// their distance to the trained weights, and the trained weights are set to the slow ones. If
// `share` is 0, airbench94's share is used, which falls during the run: 1 - 0.95^every *
// progress^3.
[[nodiscard]] std::unique_ptr<WeightAverage> make_lookahead(Device& device, Parameters& parameters,
                                                            std::uint64_t every, double share);

}  // namespace dp::net
