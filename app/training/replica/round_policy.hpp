// The policy of rounds (sync_policy.hpp): each rank trains alone for some steps, and then all ranks
// exchange the changes of their parameters. round_sync.hpp has the arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>

#include "app/training/replica/round_sync.hpp"
#include "app/training/replica/sync_policy.hpp"

namespace dp {

class RoundPolicy final : public OwnSteps {
 public:
  RoundPolicy(SyncParts& parts, const RoundOptions& options,
              const net::OptimizerOptions& optimizer);

  // Sets the length, in training steps, of all rounds that begin from now on.
  void set_length(std::size_t steps);
  // Begins the first round. The parameters must be the same on all ranks. has_gradients: whether
  // gradients were exchanged until now. If so, the residual of gradients becomes a residual of
  // parameter changes: it is scaled to the change that it would have caused at this learning rate.
  void begin(double learning_rate, bool has_gradients);

  void plan_step(const StepPlace&) override {}  // end_step() samples the error of an exchange
  // With this divisor, the mean of the ranks' gradients equals the sum that an exchange at every
  // step would deliver.
  [[nodiscard]] double loss_divisor(std::size_t global_samples) const override {
    return static_cast<double>(global_samples) / static_cast<double>(options_.ranks);
  }
  StepVerdict await_sums(const FollowUp::Action* update) override;
  [[nodiscard]] bool judge(const StepVerdict& verdict, const LossSums& loss) override;
  void update_averages(double progress) override;
  SyncResult end_step(const StepVerdict& verdict, const StepPlace& place) override;
  [[nodiscard]] bool is_under_way() const override { return is_under_way_; }
  [[nodiscard]] ExchangeWindow window() const override;
  void swap_evaluated() override;
  void merge_ranks(Communicator& comm, std::size_t counts_for) override;
  void list_state(StateVisitor& visitor) override;
  [[nodiscard]] StateShare model_share() const override { return StateShare::own; }
  void list_judgement(StateVisitor& visitor, StateShare share);

 private:
  [[nodiscard]] bool is_sum_due(bool ends_round) const;
  void sample_error(const StepPlace& place);
  void begin_exchange(const StepPlace& place);
  StepVerdict exchange(const StepPlace& place);
  void send(const StepPlace& place);
  StepVerdict take_late(const StepPlace& place);
  void take_common(std::size_t steps, double progress, bool is_late);
  void forget_lost();
  void note(const StepVerdict& verdict, std::size_t steps, bool is_late, SyncResult& result);

  RoundOptions options_;
  net::OptimizerOptions optimizer_;
  RoundSync rounds_;
  std::size_t length_ = 1;
  bool is_under_way_ = false;
  std::size_t sent_steps_ = 0;  // of the round whose exchange is under way
  std::int64_t lost_in_a_row_ = 0;
  // Steps that this rank has skipped in the running round, and in the round whose exchange is under
  // way.
  std::int64_t skipped_ = 0, skipped_in_sent_ = 0;
};

}  // namespace dp
