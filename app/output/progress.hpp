// What a run tells its user while it goes on: the interface, and the events that it tells.
//
// There are two writers, which --progress chooses between: TextProgress (progress_text.hpp) writes
// for people, and JsonProgress (progress_json.hpp) a line of JSON for each event, for programs.
// Only rank 0 tells events, from one thread. A text has no newline at its end. Times are in
// seconds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "app/options/options.hpp"
#include "comm/network/step_simulation.hpp"
#include "io/files/console.hpp"
#include "io/log/run_log_rows.hpp"

namespace dp {

struct RunDescription;  // recorder.hpp

struct RunStart {
  const RunDescription& run;
  const std::vector<std::string>& devices;  // each once
  // By bucket, what rank 0 sends in a step; nothing if that depends on the values.
  const std::vector<std::optional<std::uint64_t>>& bucket_bytes;
  std::string log;  // its path; empty: none
};

struct EpochEnd {
  const EpochRow& row;
  std::size_t epochs;  // of the run
  double steps;        // of this epoch
  double fp32_bytes;   // what a ring without compression would send
  double images_per_s;
  double bits_per_value;  // NaN where the codec has no rate
};

struct EvaluationEnd {
  double loss, accuracy;
  std::int64_t images;
  std::string augmentation;  // "mirror", "shift", or empty
};

struct TrainingEnd {
  const RunDescription& run;
  std::span<const EpochRow> epochs;
  std::span<const double> fp32_bytes;  // of each epoch
  std::string log;                     // of a log that is whole; otherwise empty
};

class Progress {
 public:
  virtual ~Progress() = default;

  // Training begins or, with 0 epochs, the evaluation.
  virtual void start(const RunStart& start) = 0;
  // bits: a value, of codecs with bits=; else NaN.
  virtual void prediction(const StepForecast& forecast, double bits) = 0;
  virtual void note(std::string_view text) = 0;
  virtual void warn(std::string_view text) = 0;
  // Whether live_step() does anything.
  [[nodiscard]] virtual bool is_live() const = 0;
  virtual void live_step(const StepProgress& step) = 0;
  // A step that has a row in the log.
  virtual void logged_step(const StepRow& row) = 0;
  virtual void epoch(const EpochEnd& epoch) = 0;
  virtual void checkpoint(std::uint64_t step, const std::string& folder) = 0;
  // An evaluation that belongs to no epoch.
  virtual void evaluation(const EvaluationEnd& result) = 0;
  // No step follows. What was not trained has no epochs.
  virtual void training_end(const TrainingEnd& end) = 0;
  // The last event: how the program ends, and its message if it ends with an error.
  virtual void end(int exit_code, const std::string& message) = 0;
};

// The writer that the options ask for, on standard output.
[[nodiscard]] std::unique_ptr<Progress> make_progress(const Options& options);

}  // namespace dp
