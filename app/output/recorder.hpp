// Reports a run: gathers the measurements of all ranks, and passes events to the console, the log
// and TensorBoard's files, in this order (run_sink.hpp).
//
// All ranks have a Recorder and call the same methods; only rank 0 reports. Methods marked
// "collective" gather numbers through the reducer's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "app/output/epoch_account.hpp"
#include "app/output/epoch_tally.hpp"
#include "app/output/event_sink.hpp"
#include "app/output/log_sink.hpp"
#include "app/output/missing_files.hpp"
#include "app/output/run_description.hpp"
#include "app/output/run_sink.hpp"
#include "app/output/run_warnings.hpp"
#include "app/output/step_rows.hpp"

namespace dp {

class Recorder {
 public:
  // Collective. Rank 0 creates the log, unless it is "none". If files cannot be created, a new run
  // throws what RunLog::create throws, and a resumed run goes on.
  explicit Recorder(RunDescription run);
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // From now on numbers are gathered through this reducer.
  void attach(Reducer& reducer);

  // Prints the table of all settings in effect.
  void print_start();
  // Reports the predicted cost of the run's steps (app/planning/prediction.hpp). `bits` is the
  // number of bits per value for codecs with the key bits=, and NaN for other codecs.
  void record_prediction(const StepForecast& forecast, double bits);
  // Whether the log gets a row after this many steps of the run.
  [[nodiscard]] bool wants_step(std::uint64_t global_step) const {
    return step_rows_.wants(global_step);
  }
  // Collective if --log-steps asks for a row; `times` are then the times of this step. The next
  // call adds the cost of the step's exchange. While an exchange is under way, rows are not
  // gathered, because gathering would wait for the exchange.
  void record_step(const EpochTally& tally, const LoopTimes& times, std::uint64_t global_step);
  // Collective: gathers all ended rows.
  void gather_steps();
  // Collective. Returns the epoch's time with a bucket of this rank in flight.
  double record_epoch(const EpochTally& tally, double epoch_s, const EvaluationResult& result,
                      double eval_s);
  void record_round_steps(const std::string& steps);
  // On rank 0, `rows` has a row for each rank.
  void record_shares(std::span<const ShareRow> rows, const std::string& why);
  // Both report the result of an evaluation that belongs to no epoch. The second one is for an
  // evaluation with test-time augmentation.
  void say_evaluation(const EvaluationResult& result) { record_evaluation(result, {}); }
  void record_test_augmentation(const EvaluationResult& result);
  void say(const std::string& line);
  // Reports that the checkpoint of this step is complete.
  void say_checkpoint(std::uint64_t step, const std::string& folder);

  void note_skipped_step(std::uint64_t global_step, const std::string& where, bool is_of_all) {
    warnings_.note_skipped_step(global_step, where, is_of_all);
  }
  void note_lost_round(std::uint64_t global_step, const std::string& where) {
    warnings_.note_lost_round(global_step, where);
  }
  void note_images(const std::vector<std::string>& notes) { warnings_.note_images(notes); }
  void warn_once(const std::string& line) { warnings_.warn_once(line); }

  void note_missing(const std::string& what, const std::string& why) {
    missing_.note_missing(what, why);
  }
  void note_at_end(const std::string& line) { missing_.note_at_end(line); }
  void note_written(const std::string& what) { missing_.note_written(what); }
  // Rank 0: a sentence about the missing files, for the end of the run; empty if there are none.
  [[nodiscard]] std::string missing_files() const;

  // Between steps: lists the cost of the running epoch so far, and the rows of earlier epochs.
  void list_state(StateVisitor& visitor);
  // Writes the rows of earlier epochs into a new log. Call it if the log of the earlier start is
  // lost.
  void put_back_epochs();
  // The log with all rows so far, for a checkpoint. The head then describes this log. Empty if
  // there is no log.
  [[nodiscard]] std::vector<std::byte> log_image(CheckpointHead& head) const;
  // Prints the closing table and closes the log. For a stopped run, pass false: the log then stays
  // marked as unfinished.
  void finish(bool is_complete = true);

 private:
  [[nodiscard]] bool is_speaker() const { return run_.comm->rank() == 0; }
  template <class Event>
  void report(Event event) {
    for (RunSink* sink : sinks_) event(*sink);
  }
  void record_evaluation(const EvaluationResult& result, const std::string& augmentation);
  // Takes the costs that the reducer was asked for after the last step. Waits if that step's
  // exchange still forwards sums.
  void end_step_row() { step_rows_.end(account_.take_asked()); }

  RunDescription run_;
  RunSink nobody_;
  RunSink& console_;  // nobody_ on ranks other than 0
  MissingFiles missing_;
  RunWarnings warnings_;
  EpochAccount account_;
  StepRows step_rows_;
  Reducer* reducer_ = nullptr;
  std::uint64_t steps_done_ = 0;      // of the run
  std::vector<std::string> devices_;  // each once, with the devices of earlier starts
  std::optional<LogSink> log_;
  std::optional<EventSink> events_;
  std::vector<RunSink*> sinks_;
};

}  // namespace dp
