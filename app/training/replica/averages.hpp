// The averages of a replica's weights: Lookahead's slow weights and the exponential average
// (net/weight_average.hpp); either may be missing.
#pragma once

#include <cstdint>
#include <memory>

#include "net/weight_average.hpp"

namespace dp {

struct AverageOptions {
  double ema_decay = 0;               // 0: no exponential average
  std::uint64_t lookahead_every = 0;  // 0: no Lookahead
  double lookahead_share = 0.5;       // 0: a share that falls during the run
};

class Averages {
 public:
  // Device and parameters outlive this object.
  Averages(Device& device, net::Parameters& parameters, const AverageOptions& options) {
    if (options.lookahead_every > 0) {
      lookahead_ =
          net::make_lookahead(device, parameters, options.lookahead_every, options.lookahead_share);
    }
    if (options.ema_decay > 0) {
      ema_ = net::make_exponential_average(device, parameters, options.ema_decay);
    }
  }

  // Call these after an update. progress: the fraction of the run that is done, including the
  // update.
  void update_lookahead(double progress) {
    if (lookahead_) lookahead_->update(progress);
  }
  void update_ema(double progress) {
    if (ema_) ema_->update(progress);
  }
  void reset_lookahead() {
    if (lookahead_) lookahead_->reset();
  }
  void reset() {
    reset_lookahead();
    if (ema_) ema_->reset();
  }
  [[nodiscard]] bool has_ema() const { return ema_ != nullptr; }
  // Swaps the weights that are trained with the weights that are evaluated: the exponential average
  // or, without it, Lookahead's slow weights.
  void swap() {
    if (ema_) {
      ema_->swap();
    } else if (lookahead_) {
      lookahead_->swap();
    }
  }
  // Lookahead is updated after each of a rank's own steps, so `of_steps` lists its state. The
  // exponential average follows the parameters that all ranks have in common, so `of_all` lists its
  // state.
  void list_state(StateVisitor& of_steps, StateVisitor& of_all) {
    if (lookahead_) lookahead_->list_state(of_steps);
    if (ema_) ema_->list_state(of_all);
  }

 private:
  std::unique_ptr<net::WeightAverage> lookahead_, ema_;
};

}  // namespace dp
