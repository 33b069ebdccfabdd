// Writes the HDF5 log of --log, and keeps it when a run goes on.
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

// The lists that rows of the log refer to by index. A log that goes on keeps its lists and adds to
// them.
struct LogLists {
  // devices: of each rank.
  LogLists(const RunDescription& run, const std::vector<std::string>& devices);

  std::vector<std::string> hosts;  // of this session from first_host on, by rank
  std::size_t first_host = 0;
  std::vector<std::string> devices;  // each once
  std::vector<std::size_t> device_of_rank;
  std::vector<std::string> codec_names, topology_names;
};

class LogSink final : public RunSink {
 public:
  static constexpr const char* kName = "the log";  // among the missing files

  // Creates the log, or goes on with that of the checkpoint. Call it under a StopNotice::Hold. Only
  // a run that does not go on is refused if the file cannot be made: it throws what RunLog::create
  // throws. Later on the log counts as missing while it cannot be written.
  LogSink(const RunDescription& run, LogLists lists, RunSink& console, MissingFiles& missing);

  // The exchange is about to begin.
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

  // Writes these rows into a log that is not the earlier start's, which is lost.
  void put_back(std::span<const EpochRow> rows) { log_.append(rows); }
  // The log with all rows so far, for a checkpoint, whose head then names it.
  [[nodiscard]] std::vector<std::byte> image(CheckpointHead& head) const;
  [[nodiscard]] const std::string& path() const { return log_.path(); }

 private:
  [[nodiscard]] RunLog open();
  [[nodiscard]] RunLog make(RunInfo& info) const;
  void keep_earlier(const std::string& path) const;
  void write_nominal_link();
  // Puts what is new on the disk. If that fails, training goes on, and the next call tries again. A
  // value closes the log, as that of a finished run or of one that was stopped.
  void save(std::optional<bool> is_finished = std::nullopt);
  [[nodiscard]] std::string missing_part() const;

  const RunDescription& run_;
  LogLists lists_;
  RunSink& console_;
  MissingFiles& missing_;
  std::int64_t done_epochs_ = 0;              // of the run
  std::optional<std::int64_t> saved_epochs_;  // on the disk; nothing if this start has saved none
  RunLog log_;
};

}  // namespace dp
