// Rounds: ranks train alone for some steps, and then exchange the changes of their parameters
// (--sync-every). This file has only what differs from an exchange of gradients at every step:
//
//   when     after the last step of a round (ends_round)
//   what     the difference from the parameters that were common at the start of the round. It
//            passes through the gradient's memory, so that codecs, residuals and topologies work
//            as for gradients:
//                difference = (common - own) / P
//   update   an outer optimiser, SGD with Nesterov's momentum, applies the delivered sum:
//                velocity = momentum * velocity + sum
//                common  -= learning_rate * (sum + momentum * velocity)
//                own      = common
//
// With an outer learning rate of 1 and no momentum, the parameters become the mean of all ranks'
// parameters (local SGD, Stich 2019). With momentum, this is DiLoCo (Douillard et al. 2023). After
// a round all ranks have the same bits.
//
// A residual holds the changes of parameters that codecs have not yet delivered. These changes were
// made with earlier learning rates. As the learning rate falls, the changes of a round become
// smaller, but the residual does not. In the end the residual would move parameters more than
// training does (ResNet-20, rounds of 4 steps with 0.3 bits a value: an accuracy of 63.3 % instead
// of 67.8 %). The residual is therefore scaled down as the learning rate falls (take_rate_ratio).
// The same happens to a residual of gradients, because the optimiser multiplies it by the current
// learning rate on delivery.
//
// With a delay (--sync-every H:delay=D), a rank continues from its own parameters while the sum is
// on its way, and applies the sum a fixed number of steps later. The changes that the rank has made
// since it sent the difference are added to the common parameters (the delayed averaging of DaSGD,
// Zhou et al. 2020; CoCoD-SGD, Shen et al. 2019):
//     own      = common + (own - sent)          sent: own when the difference was written
// The next difference is taken from the new common parameters. With a delay only `common` and
// `velocity` are the same on all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/arrays.hpp"
#include "kernels/base/state.hpp"
#include "kernels/device.hpp"
#include "kernels/sgd.hpp"

namespace dp {

struct OuterOptions {
  double learning_rate = 1.0, momentum = 0.0;
};

class RoundSync {
 public:
  // Both spans have the same length and are device memory. Device and memory must outlive this
  // object. has_delay: whether leave() may be called.
  RoundSync(Device& device, std::span<float> parameters, std::span<float> gradient,
            std::size_t ranks, const OuterOptions& options, bool has_delay = false);

  // Begins the first round. The parameters must be the same on all ranks.
  void begin();
  // Call it after each training step. Returns whether this step ends its round. length: the number
  // of steps in a round; a round uses the value of its first step. must_end: the round ends with
  // this step even if it is shorter. learning_rate: this step's learning rate.
  [[nodiscard]] bool ends_round(std::size_t length, bool must_end, double learning_rate);
  // Call it once at the end of a round. Returns the mean learning rate of the round's steps,
  // divided by the mean of the round before. Returns 1 if the mean has not fallen, if it is 0, and
  // in the first round.
  [[nodiscard]] double take_rate_ratio();
  // The number of steps in the running round so far, also after ends_round().
  [[nodiscard]] std::size_t steps() const { return static_cast<std::size_t>(steps_); }
  // The number of those steps whose changes are still in the parameters. Only steps after the last
  // drop_own_steps() count, because that call takes back the changes of all earlier steps.
  [[nodiscard]] std::size_t kept_steps() const {
    return static_cast<std::size_t>(steps_ - dropped_);
  }

  // The number of rounds before the running one.
  [[nodiscard]] std::uint64_t number() const { return number_; }

  // Call it at the end of a round. Writes this rank's difference times `share` into the gradient's
  // memory. `share` is 1 if all ranks have the same weight.
  void write_difference(double share = 1.0);
  // Applies the sum over ranks. Call it when the gradient's memory contains this sum. The next
  // round begins.
  void take_sum();
  // Call it instead of take_sum() if some rank's difference was not finite. Goes back to the common
  // parameters.
  void go_back();

  // With a delay, call leave() instead of take_sum() or go_back() while the difference is on its
  // way. The next round begins with this rank's own parameters. When the sum has come, call
  //     take_late_sum()   the parameters become the new common ones
  //     add_own_steps()   adds this rank's changes since leave()
  // If some rank's difference was not finite, call drop_own_steps() instead of these two functions.
  // It goes back to the common parameters, which have not changed.
  void leave();
  void take_late_sum();
  void add_own_steps();
  void drop_own_steps();

  // Swaps a rank's own parameters and the common ones. The next call must be the one that swaps
  // them back.
  void swap_common();

  // The common parameters and the velocity are the same on all ranks at any time.
  void list_state(StateVisitor& visitor);

 private:
  void begin_at_zero() {
    steps_ = dropped_ = 0;
    rate_sum_ = 0.0;
  }
  void return_to_common();

  Device& device_;
  std::span<float> parameters_, gradient_;
  double ranks_;
  OuterOptions options_;
  DeviceArray common_, velocity_;
  DeviceArray sent_;  // with a delay: the parameters at leave(), then what has changed since
  HostArray<SgdStep> step_;
  std::uint64_t steps_ = 0, dropped_ = 0, length_ = 0, number_ = 0;
  double rate_sum_ = 0.0;     // of the running round's steps
  double rate_before_ = 0.0;  // the mean of the round before; 0: none
};

}  // namespace dp
