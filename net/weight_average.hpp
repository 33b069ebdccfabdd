// Averages of the weights beside the ones that are trained. They are what is evaluated.
//
// Both averages include the running statistics of normalisation, so that what is evaluated fits
// together. The averaged weights are the same on every rank, since every rank makes the same
// updates; the averaged statistics are each rank's own.
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

  // Call it after each update of the optimiser. progress: the share of the run that is done, with
  // this update.
  virtual void update(double progress) = 0;
  // The average becomes the trained weights.
  void reset() { approach(1.0f); }
  // Exchanges average and trained weights: before and after an evaluation.
  void swap();
  void list_state(StateVisitor& visitor);

 protected:
  // `name` is the first part of the state's names. parameters outlive this object.
  WeightAverage(Device& device, Parameters& parameters, std::string name);

  // The average moves by this share of its distance to the trained weights.
  void approach(float share);
  // The trained weights become the average.
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
// their distance to the trained weights, which then become the slow ones. With a share of 0 the
// share is airbench94's, which falls during the run: 1 - 0.95^every * progress^3.
[[nodiscard]] std::unique_ptr<WeightAverage> make_lookahead(Device& device, Parameters& parameters,
                                                            std::uint64_t every, double share);

}  // namespace dp::net
