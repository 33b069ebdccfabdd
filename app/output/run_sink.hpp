// The events of a run, and the interface of everything that reports them.
//
// There are four sinks: TextProgress (progress_text.hpp) writes for people, JsonProgress
// (progress_json.hpp) a line of JSON for each event, LogSink (log_sink.hpp) the HDF5 log, and
// EventSink (event_sink.hpp) files for TensorBoard. A sink ignores each event that it does not
// override. Only rank 0 reports, from one thread. A text has no newline at its end. Times are in
// seconds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/network/step_simulation.hpp"
#include "io/files/console.hpp"
#include "io/log/run_log_rows.hpp"

namespace dp {

struct RunDescription;  // run_description.hpp

struct RunStart {
  const RunDescription& run;
  const std::vector<std::string>& devices;  // each once
  // By bucket, the bytes that rank 0 sends in a step; nothing if they depend on the values.
  const std::vector<std::optional<std::uint64_t>>& bucket_bytes;
  std::string log;  // the path of the log; empty: none
};

// The rows that an epoch adds to the log, without the columns that are indices into lists of the
// log (such as the list of tensor names).
struct EpochRows {
  EpochRow epoch;
  std::vector<RankRow> ranks;
  std::vector<BucketRow> buckets;
  std::vector<std::string> codecs;  // of the buckets, in this epoch
  std::vector<TensorRow> tensors;
  std::vector<std::int64_t> own_skipped_steps;  // by rank: steps that this rank alone skipped
  bool is_wire_measured = false;                // wire_bytes were measured on all ranks
};

struct EpochEnd {
  const EpochRow& row;
  std::uint64_t global_step;  // steps of the run so far
  std::size_t epochs;         // of the run
  double steps;               // of this epoch
  double fp32_bytes;          // bytes that a ring without compression would send
  double images_per_s;
  double bits_per_value;  // NaN if the codec has no rate
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
  std::string log;                     // path of a complete log; otherwise empty
};

class RunSink {
 public:
  virtual ~RunSink() = default;

  // Training begins or, with 0 epochs, the evaluation.
  virtual void start(const RunStart&) {}
  // `bits` is the number of bits per value for codecs with the key bits=, and NaN for others.
  virtual void prediction(const StepForecast&, double /*bits*/) {}
  virtual void note(std::string_view) {}
  virtual void warn(std::string_view) {}
  // The steps between two exchanges, as chosen for each epoch so far.
  virtual void round_steps(const std::string&) {}
  // Each rank's images in the steps from now on, one row per rank; `why` is empty when the run
  // begins.
  virtual void shares(std::span<const ShareRow>, std::string_view /*why*/) {}
  // Whether live_step() does anything.
  [[nodiscard]] virtual bool is_live() const { return false; }
  virtual void live_step(const StepProgress&) {}
  // Steps that have rows in the log.
  virtual void logged_steps(std::span<const StepRow>) {}
  // An epoch is over: first its rows, then its results.
  virtual void epoch_rows(const EpochRows&) {}
  virtual void epoch(const EpochEnd&) {}
  virtual void checkpoint(std::uint64_t /*step*/, const std::string& /*folder*/) {}
  // An evaluation that belongs to no epoch.
  virtual void evaluation(const EvaluationEnd&) {}
  // No training step follows. close() completes the files; `is_complete` is false for a stopped
  // run. training_end() then reports the results. After a run that has trained nothing, TrainingEnd
  // has no epochs.
  virtual void close(bool /*is_complete*/) {}
  virtual void training_end(const TrainingEnd&) {}
  // The last event: how the program ends, and its message if it ends with an error.
  virtual void end(int /*exit_code*/, const std::string& /*message*/) {}
};

}  // namespace dp
