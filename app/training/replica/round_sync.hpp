// Rounds: ranks train alone for some steps, and then exchange what their parameters have changed by
// (--sync-every). It stands beside the exchange of gradients at every step, and the two differ in
// three things, which are all that is here:
//
//   when     after the last step of a round (ends_round)
//   what     the difference to the parameters that were common at the start of the round, by way of
//            the gradient's memory, so that codecs, residuals and topologies are those of
//            gradients:
//                difference = (common - own) / P
//   and then the step of an outer optimiser, SGD with Nesterov's momentum, for the delivered sum:
//                velocity = momentum * velocity + sum
//                common  -= learning_rate * (sum + momentum * velocity)
//                own      = common
//
// With a learning rate of 1 and no momentum, the parameters become the mean of all ranks' (local
// SGD, Stich 2019); with both it is DiLoCo (Douillard et al. 2023). After a round all ranks have
// the same bits.
//
// What codecs have not delivered of earlier rounds waits in their residuals, as changes of
// parameters that were made with earlier learning rates. Where the rate falls, changes in as many
// steps become smaller and what waits does not: in the end it moves parameters more than training
// does (ResNet-20, rounds of 4 steps with 0.3 bits: 63.3 % instead of 67.8 %). So it fades with the
// rate (take_rate_ratio), by which it counts as much as a gradient that waits, to which the running
// rate applies when it is delivered.
//
// With a delay (--sync-every H:delay=D), a rank goes on from its own parameters while the sum is on
// its way, and takes it a fixed number of steps later. What it has done since it sent is added to
// the common parameters (the delayed averaging of DaSGD, Zhou et al. 2020; CoCoD-SGD, Shen et al.
// 2019):
//     own      = common + (own - sent)          sent: own when the difference was written
// and the next difference is that to the new common parameters. Then only common and velocity are
// the same on all ranks.
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
  // Both spans have one length and are memory of the device. Device and memory outlive this object.
  // has_delay: leave() may be called.
  RoundSync(Device& device, std::span<float> parameters, std::span<float> gradient,
            std::size_t ranks, const OuterOptions& options, bool has_delay = false);

  // The parameters are the same on all ranks: rounds begin here.
  void begin();
  // After each step: whether its round ends with it. A round has `length` steps, as it was given
  // with the round's first step, or fewer if it must end. learning_rate: that of the step.
  [[nodiscard]] bool ends_round(std::size_t length, bool must_end, double learning_rate);
  // At the end of a round, once: the mean learning rate of its steps, divided by that of the round
  // before; 1 where it is not lower, is 0, or has none before it.
  [[nodiscard]] double take_rate_ratio();
  // The number of the running round's steps so far, also after ends_round().
  [[nodiscard]] std::size_t steps() const { return static_cast<std::size_t>(steps_); }
  // The number of those steps whose changes the parameters still have: drop_own_steps() takes the
  // changes of earlier ones back.
  [[nodiscard]] std::size_t kept_steps() const {
    return static_cast<std::size_t>(steps_ - dropped_);
  }

  // The number of rounds before the running one.
  [[nodiscard]] std::uint64_t number() const { return number_; }

  // At the end of a round: the gradient becomes this rank's difference times `share`, which is 1
  // where all ranks count alike.
  void write_difference(double share = 1.0);
  // The gradient is the sum over ranks. The next round begins.
  void take_sum();
  // Some rank's difference was not finite: all ranks go back to the common parameters.
  void go_back();

  // Instead of the two above: the difference is on its way, and the next round begins with this
  // rank's own parameters. Later one of
  //     take_late_sum()   the parameters are the new common ones ...
  //     add_own_steps()   ... and then what this rank has done since leave() is added to them
  // or, if some rank's difference was not finite, drop_own_steps(): the common parameters as they
  // were.
  void leave();
  void take_late_sum();
  void add_own_steps();
  void drop_own_steps();

  // Exchanges a rank's own parameters and the common ones. Only a second call may follow.
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
