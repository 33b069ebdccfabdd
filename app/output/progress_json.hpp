// Writes a run's events as lines of JSON, one object each, for programs. app/README.md lists the
// keys. Keys do not change; new ones may be added. Warnings also go to standard error as text.
#pragma once

#include <iosfwd>

#include "app/output/run_sink.hpp"
#include "io/files/json_object.hpp"

namespace dp {

class JsonProgress final : public RunSink {
 public:
  static constexpr int kFormat = 1;  // increases when a key changes its meaning

  JsonProgress();  // standard output and standard error
  JsonProgress(std::ostream& out, std::ostream& err) : out_(out), err_(err) {}

  void start(const RunStart& start) override;
  void prediction(const StepForecast& forecast, double bits) override;
  void note(std::string_view text) override;
  void warn(std::string_view text) override;
  void shares(std::span<const ShareRow> rows, std::string_view why) override;
  void logged_steps(std::span<const StepRow> rows) override;
  void epoch(const EpochEnd& epoch) override;
  void checkpoint(std::uint64_t step, const std::string& folder) override;
  void evaluation(const EvaluationEnd& result) override;
  void end(int exit_code, const std::string& message) override;

 private:
  void write(const JsonObject& event);

  std::ostream& out_;
  std::ostream& err_;
  std::string log_;  // for the end
};

}  // namespace dp
