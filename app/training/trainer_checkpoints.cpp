// How the training loop writes checkpoints and resumes from one.
#include <fmt/ranges.h>

#include <utility>

#include "app/process/option_names.hpp"
#include "app/process/run_status.hpp"
#include "app/process/stop_notice.hpp"
#include "app/training/restore.hpp"
#include "app/training/trainer.hpp"
#include "kernels/base/error.hpp"

namespace dp {

void Trainer::list_state(StateVisitor& visitor) {
  replica_.list_state(visitor);
  recorder_.list_state(visitor);
  const StateShare judged = replica_.policy().judged();
  tally_.list_state(visitor, judged);
  visitor.value("run/step", global_step_);
  visitor.value("run/first_loss", first_loss_);
  visitor.value("run/last_loss", last_loss_);
  visitor.value("run/skipped_in_a_row", skipped_in_a_row_, judged, StateMerge::first);
  replica_.policies().list_judgement(visitor);
}

void Trainer::begin_checkpoints() {
  CheckpointOptions checkpoints = {.folder = options_.checkpoint,
                                   .every = options_.checkpoint_every,
                                   .keep = checked_cast<std::size_t>(options_.checkpoint_keep),
                                   .attempt = run_.checkpoint.attempt,
                                   .compares_replicas = options_.exchange,
                                   .timeout_s = options_.comm_timeout_s};
  if (run_.checkpoint.resume) checkpoints.resumed_from = run_.checkpoint.resume->checkpoint;
  StopNotice::set_checkpoints(options_.checkpoint);
  checkpoints.on_complete = [this](const CheckpointId& id) {
    recorder_.say_checkpoint(id.step, options_.checkpoint);
  };
  checkpoints.warn = [this](const std::string& line) { recorder_.warn_once(line); };
  checkpoints_ = std::make_unique<Checkpoints>(*run_.machine.device, replica_.sync().reducer(),
                                               std::move(checkpoints));
}

// Returns the epoch to begin with, or to continue.
std::size_t Trainer::resume() {
  if (!run_.checkpoint.resume) {
    if (options_.resume) {
      recorder_.say(
          fmt::format("no checkpoint in {}: the run starts from the "
                      "beginning",
                      options_.checkpoint));
    }
    return 0;
  }
  const ResumePoint& point = *run_.checkpoint.resume;
  const std::size_t epoch = point.epoch();
  rounds_.restore(point.head);
  // The epoch decides which codec is used, and therefore which state can be restored.
  constexpr double kAnyRate = 1.0;  // what depends on the learning rate is restored below
  replica_.begin_epoch(epoch, kAnyRate, rounds_.steps_in(epoch));
  StateList state;
  list_state(state);
  const std::vector<std::string> losses =
      restore_run(replica_, state, point, run_.facts, options_.topology == "hierarchical");
  recorder_.say(fmt::format("resumed from step {} (epoch {}) of {}", global_step_, epoch + 1,
                            options_.checkpoint));
  if (!run_.checkpoint.notes.empty()) {
    recorder_.say(
        fmt::format("the run continues with {}, so its bits differ from an uninterrupted run's",
                    fmt::join(run_.checkpoint.notes, "; ")));
  }
  for (const std::string& line : losses) recorder_.say(line);
  if (!point.all_have_owners) {
    recorder_.say(
        "parts of this checkpoint (format 1) do not store rank and step; they were taken from the "
        "file names");
  }
  if (run_.checkpoint.has_other_schedule && global_step_ > 0) rate_before_ = tally_.learning_rate;
  if (options_.log != "none" && point.log.empty()) {
    recorder_.put_back_epochs();
    recorder_.say(
        "the log of the run so far is missing: the new log has a row for each earlier epoch, but "
        "no rows for its steps, ranks and buckets");
  }
  shares_.restore(point.head, global_step_);
  is_resumed_in_epoch_ = !point.epoch_is_over();
  run_.checkpoint.resume.reset();  // frees the memory of its files
  return is_resumed_in_epoch_ ? epoch : epoch + 1;
}

// Reports that the learning rate jumps at the checkpoint. This happens, for example, if the run now
// has more epochs, because a falling schedule then continues at a higher learning rate.
void Trainer::tell_learning_rate() {
  if (!rate_before_) return;
  recorder_.say(fmt::format(
      "learning rate: {:.3g} in step {}, the last one before the checkpoint, and {:.3g} in the "
      "next one, by the schedule of {} epochs",
      *rate_before_, global_step_, learning_rate(), run_.plan.schedule.epochs));
  rate_before_.reset();
}

// Does nothing while an exchange is under way, because asking the other ranks would mean waiting
// for that exchange. The other ranks are asked after the step that applies the exchange's sum.
void Trainer::checkpoint_if_due(bool ends_epoch) {
  if (!checkpoints_ || replica_.policy().is_under_way()) return;
  const bool asks = checkpoints_->asks_at(global_step_);
  if (asks) begin_checkpoint_time();
  const bool is_due = checkpoints_->is_due(global_step_, ends_epoch);
  if (asks) end_checkpoint_time();
  if (is_due) write_checkpoint();
}

// Time between these two calls counts as checkpoint_s, not as step time.
void Trainer::begin_checkpoint_time() {
  const double before_s = epoch_clock_.lap();
  if (!is_between_epochs_) tally_.earlier_s += before_s;
}

void Trainer::end_checkpoint_time() {
  (is_between_epochs_ ? checkpoint_s_ : tally_.checkpoint_s) += epoch_clock_.lap();
  replica_.clock().begin();
}

// Training stands still while the state is copied.
void Trainer::write_checkpoint() {
  begin_checkpoint_time();
  RunStatus::say_step(global_step_, true);
  recorder_.gather_steps();  // so that the checkpoint's copy of the log has all rows
  StateList state;
  list_state(state);
  CheckpointExtras extras;
  CheckpointHead head = head_of(run_.plan, run_.facts, replica_.sync());
  head.set_owner(checkpoints_->part_of(global_step_));
  head.set("epoch", tally_.epoch);
  head.set("epoch_is_over", is_between_epochs_ ? 1 : 0);
  rounds_.save(head);
  shares_.save(head);
  extras.log = recorder_.log_image(head);
  extras.texts.emplace_back(kHeadEntry, head.text());
  checkpoints_->write(global_step_, state, extras);
  end_checkpoint_time();
}

// Makes sure that there is a checkpoint of the run's end, so that more epochs can be added later.
void Trainer::end_checkpoints() {
  checkpoints_->finish();
  if (!is_newest_complete() && checkpoints_->hanging().empty()) {
    write_checkpoint();
    checkpoints_->finish();
  }
  if (is_newest_complete()) return;
  const auto left = checkpoints_->newest();
  const std::string& hanging = checkpoints_->hanging();
  recorder_.note_at_end(
      (left ? fmt::format("the newest checkpoint in {} is from step {}, but the run has reached "
                          "step {}",
                          options_.checkpoint, left->step, global_step_)
            : fmt::format("there is no complete checkpoint in {}", options_.checkpoint)) +
      (hanging.empty() ? "" : fmt::format(" ({})", hanging)));
}

bool Trainer::is_newest_complete() const {
  const auto newest = checkpoints_->newest();
  return newest && newest->step == global_step_;
}

}  // namespace dp
