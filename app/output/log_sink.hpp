// Writes the HDF5 log of --log, and continues it when a run is resumed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "app/output/missing_files.hpp"
#include "app/output/run_description.hpp"
#include "app/output/run_sink.hpp"
#include "comm/reducer/reducer.hpp"
#include "io/log/run_log.hpp"

namespace dp {

// The lists that rows of the log refer to by index. A log that is continued keeps its lists and
// appends to them.
struct LogLists {
  // devices: of each rank.
  LogLists(const RunDescription& run, const std::vector<std::string>& devices);

  std::vector<std::string> hosts;  // from first_host on: of this session, by rank
  std::size_t first_host = 0;
  std::vector<std::string> devices;  // each once
  std::vector<std::size_t> device_of_rank;
  std::vector<std::string> codec_names, topology_names;
};

class LogSink final : public RunSink {
 public:
  static constexpr const char* kName = "the log";  // in the list of missing files

  // Creates the log, or continues the checkpoint's log. Call it under a StopNotice::Hold. If a new
  // run cannot create the file, this throws what RunLog::create throws. In a resumed run, and later
  // in a new run, a log that cannot be written counts as missing.
  LogSink(const RunDescription& run, LogLists lists, RunSink& console, MissingFiles& missing);

  // Call it before the exchange begins.
  void attach(const Reducer& reducer);
  void prediction(const StepForecast& forecast, double bits) override;
  void round_steps(const std::string& steps) override {
    log_.set_attribute("/", "round_steps", steps);
  }
  void shares(std::span<const ShareRow> rows, std::string_view why) override;
  void logged_steps(std::span<const StepRow> rows) override;
  void epoch_rows(const EpochRows& rows) override;
  void evaluation(const EvaluationEnd& result) override;
  void close(bool is_complete) override { save(is_complete); }

  // Writes these rows into a new log. Call it if the log of the earlier start is lost.
  void put_back(std::span<const EpochRow> rows) { log_.append(rows); }
  // The log with all rows so far, for a checkpoint. Describes this log in the head.
  [[nodiscard]] std::vector<std::byte> image(CheckpointHead& head) const;
  [[nodiscard]] const std::string& path() const { return log_.path(); }

 private:
  [[nodiscard]] RunLog open();
  [[nodiscard]] RunLog make(RunInfo& info) const;
  void keep_earlier(const std::string& path) const;
  void write_nominal_link();
  // Writes new rows to the disk. If that fails, training goes on, and the next call tries again.
  // is_finished: closes the log of a finished run (true) or of a stopped run (false).
  void save(std::optional<bool> is_finished = std::nullopt);
  [[nodiscard]] std::string missing_part() const;

  const RunDescription& run_;
  LogLists lists_;
  RunSink& console_;
  MissingFiles& missing_;
  std::int64_t done_epochs_ = 0;              // epochs of the run that are done
  std::optional<std::int64_t> saved_epochs_;  // on the disk; nothing if this start has saved none
  RunLog log_;
};

}  // namespace dp
