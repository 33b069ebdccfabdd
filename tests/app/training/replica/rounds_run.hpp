// Runs of a replica that trains in rounds, for tests of what rounds compute, of what waits in
// residuals and of their state.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "app/training/replica/replica.hpp"
#include "tests/support/state_list.hpp"

namespace dp::test {

struct RoundSetting {
  std::string codec = "none", topology = "ring";
  std::size_t steps = 2;           // of a round
  std::size_t first_epoch = 0;     // with rounds
  std::uint64_t ends_with = 0;     // after so many steps, a round ends and nothing stays under way
  bool has_late_rank = false;      // the last one sleeps before each step
  std::uint64_t nan_step = ~0ull;  // the last rank's images of that step are not numbers
  // What two ranks have changed by is not finite in the round that ends with that step.
  std::uint64_t lost_step = ~0ull;
  RoundOptions rounds = {};
  net::OptimizerOptions optimizer = {.momentum = 0.9f, .weight_decay = 5e-4f};
  bool has_averages = false, has_lookahead = false;  // averages: Lookahead and the exponential one
  bool exchange = true;
  double rate_factor = 1.0;  // from step to step
};

struct CodecCase {
  std::string codec, topology;
};

// A replica that trains on images drawn from rank and step.
class TrainingRun {
 public:
  TrainingRun(Communicator& comm, RoundSetting setting);

  void begin_epoch(std::size_t epoch);
  // Steps [from, from + count). on_round() after each round, with the ranks' inputs to it.
  using OnRound = std::function<void(const std::vector<float>&)>;
  void train(std::uint64_t from, std::uint64_t count, const OnRound& on_round = {});

  [[nodiscard]] Replica& replica() { return *replica_; }
  [[nodiscard]] std::vector<float> values();
  [[nodiscard]] std::vector<float> statistics();
  void set_values(const std::vector<float>& values);
  [[nodiscard]] StateList list();
  [[nodiscard]] StateCopy copy() { return copy_state(*device_, list()); }
  void restore(const StateCopy& copy) { restore_state(*device_, list(), copy); }
  template <class F>
  auto run(F f) {
    return replica_->sync().reducer().run(f);
  }
  // The parameters that all ranks have in common.
  [[nodiscard]] std::vector<float> common();
  // The steps of the running round so far.
  [[nodiscard]] std::uint64_t steps_of_round();
  // What waits on this rank.
  [[nodiscard]] std::vector<float> residual();
  // That all ranks have the same bits.
  std::uint64_t agree();
  std::uint64_t agree_on_what_is_common();
  [[nodiscard]] bool on_all(bool mine);

  static constexpr double kRate = 0.05;
  // The optimiser takes steps with `rate`; rounds are told that it was `told`.
  void set_rate(double rate) { set_rate(rate, rate); }
  void set_rate(double rate, double told) {
    rate_ = rate;
    told_rate_ = told;
  }

 private:
  [[nodiscard]] bool is_last_rank() const { return comm_.rank() + 1 == comm_.size(); }
  void compute(std::uint64_t step);
  // The first of many values, on the first rank and the last.
  void spoil();
  void end_step(std::uint64_t step, const StepVerdict& verdict, const OnRound& on_round);

  Communicator& comm_;
  RoundSetting setting_;
  double rate_ = kRate, told_rate_ = kRate;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Replica> replica_;
  std::vector<float> images_;
  std::vector<std::int32_t> labels_;
  std::vector<float> sent_;  // the parameters from which the last exchange began
  bool is_lost_ = false;     // the exchange that began from them
  bool is_spoiled_ = false;  // by this rank
};

// What this rank has learnt, added up over all, is in the common parameters or in some rank's
// residual.
void expect_nothing_lost(TrainingRun& run, const std::vector<float>& start,
                         const std::vector<float>& common, std::vector<double> learnt);

}  // namespace dp::test
