// The training loop of one rank. After each epoch, it checks that the replicas are equal and
// evaluates the model.
//
// Read step() in trainer.cpp first: train, judge, record. Replica::compute() calls forward and
// backward (net/network.hpp), and Replica::update() the optimiser (net/optimizer.hpp). In between,
// Replica::await_sums() waits for the sums of all ranks (comm/gradient_sync.hpp). The policy
// decides when ranks exchange (sync_policy.hpp). run_setup.cpp makes everything that is needed
// before the first step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "app/checkpoint/checkpoints.hpp"
#include "app/options/options.hpp"
#include "app/output/recorder.hpp"
#include "app/output/run_sink.hpp"
#include "app/training/replica/replica.hpp"
#include "app/training/round_plan.hpp"
#include "app/training/setup/run_setup.hpp"
#include "app/training/share_plan.hpp"
#include "comm/mpi/communicator.hpp"
#include "kernels/base/lap_clock.hpp"

namespace dp {

class Trainer {
 public:
  // Collective: sets the run up; all ranks throw the same AgreedError if that fails.
  Trainer(const Options& options, Communicator& comm, RunSink& progress);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Collective: trains all epochs and closes the log at the end. A file that cannot be written does
  // not end the run; rank 0 returns a sentence that names such files. If the run is asked to stop,
  // all ranks throw the same AgreedError(stopped) after the same step. `before_first_step` is
  // called once, after the table of settings is printed and before a checkpoint is restored.
  [[nodiscard]] std::string run(
      const std::function<void(Run&, SharePlan&, RoundPlan&)>& before_first_step = {});

  // Between steps: lists all state that a resumed run needs (kernels/base/state.hpp).
  void list_state(StateVisitor& visitor);

 private:
  // The run ends if this many steps, or rounds, in a row give values that are not finite.
  static constexpr int kMostSkippedSteps = 5;

  void train_epoch(std::size_t epoch);
  void plan_batch(std::size_t epoch);
  void note_loss(std::size_t epoch);
  void step();

  // The parts of a step.
  [[nodiscard]] double take_batch(bool is_first_part);
  void load_ahead(bool is_last_part, bool is_last_step);
  [[nodiscard]] bool judge(const StepVerdict& verdict);
  void note_exchanges(const SyncResult& result);
  void record_step(bool is_last);

  [[nodiscard]] double place_in_run(std::size_t offset) const;
  [[nodiscard]] StepPlace place_of_step() const;
  [[nodiscard]] double all_steps() const;
  [[nodiscard]] double batch_factor() const;
  [[nodiscard]] double learning_rate() const;
  double load_next();
  void tell_bad_images();
  void check_replicas();
  void export_weights(const EvaluationResult& result);
  void write_trace();

  // These are in trainer_checkpoints.cpp.
  void begin_checkpoints();
  [[nodiscard]] std::size_t resume();
  void tell_learning_rate();
  void checkpoint_if_due(bool ends_epoch);
  void begin_checkpoint_time();
  void end_checkpoint_time();
  void write_checkpoint();
  void end_checkpoints();
  [[nodiscard]] bool is_newest_complete() const;

  [[noreturn]] void stop();

  Run run_;
  const Options& options_;
  Replica& replica_;    // of the run
  Recorder& recorder_;  // of the run
  RoundPlan rounds_;
  SharePlan shares_;

  std::unique_ptr<Checkpoints> checkpoints_;  // with --checkpoint
  bool is_resumed_in_epoch_ = false;          // the next epoch was begun in an earlier session
  bool is_between_epochs_ = true;
  std::optional<double> rate_before_;  // the learning rate of the checkpoint, to be reported
  double checkpoint_s_ = 0;  // of the checkpoint after the last epoch; counted in the next epoch
  LapClock epoch_clock_;

  std::uint64_t global_step_ = 0;
  std::int64_t skipped_in_a_row_ = 0;
  bool must_stop_ = false;                 // all ranks agreed on it after the latest step
  std::size_t batch_ = 0;                  // the global batch of the running epoch
  double first_loss_ = 0, last_loss_ = 0;  // of the first and the last epoch; for a dynamic batch
  // The batch that was taken from the loader and is not yet computed.
  bool is_loaded_ = false;
  std::size_t loaded_global_samples_ = 0;
  EpochTally tally_;  // of the running epoch
};

}  // namespace dp
