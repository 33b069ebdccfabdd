// Writes a run's events as text for people, on a console.
#pragma once

#include "app/output/run_sink.hpp"
#include "io/files/console.hpp"

namespace dp {

class TextProgress final : public RunSink {
 public:
  // is_verbose: reports checkpoints, too.
  explicit TextProgress(ConsoleMode mode, bool is_verbose = false)
      : console_(mode), is_verbose_(is_verbose) {}

  void start(const RunStart& start) override;
  void prediction(const StepForecast& forecast, double bits) override;
  void note(std::string_view text) override { console_.print(text); }
  void warn(std::string_view text) override;
  void shares(std::span<const ShareRow> rows, std::string_view why) override;
  [[nodiscard]] bool is_live() const override { return console_.mode() == ConsoleMode::live; }
  void live_step(const StepProgress& step) override { console_.step(step); }
  void epoch(const EpochEnd& epoch) override;
  void checkpoint(std::uint64_t step, const std::string& folder) override;
  void evaluation(const EvaluationEnd& result) override;
  void training_end(const TrainingEnd& end) override;

 private:
  void evaluation_start(const RunDescription& run);
  void cost_table(const TrainingEnd& end);

  Console console_;
  bool is_verbose_;
  bool only_evaluates_ = false;
};

}  // namespace dp
