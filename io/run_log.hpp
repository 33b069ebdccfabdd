// The run log: what a run was, and what each epoch, rank, bucket and step cost, in one HDF5 file.
//
// Written by rank 0 alone. append() extends a table by its rows and flushes the file, so every row
// is on disk when it returns: the file can be read (h5py, pandas, HDFView) while the run goes on
// and after the process was killed. A log that is there is never overwritten. Whatever fails throws
// Error(data) that names the file. After a failure (a full disk) HDF5 is asked for nothing more of
// this file: it would fail again, at last in its own exit handlers.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "io/run_log_rows.hpp"

namespace dp {

// What is known when a run starts. Rows name hosts, devices, codecs and topologies by their index
// in these lists.
struct RunInfo {
  std::string dptrain_version = {};
  std::string git_revision = {};
  std::string command_line = {};
  std::string mpi_version = {};
  std::string resumed_from = {};  // empty: a new run
  std::size_t world_size = 1;
  std::vector<std::string> hosts = {}, devices = {}, codec_names = {}, topology_names = {};
  std::vector<std::pair<std::string, std::string>> config = {};  // every option as resolved
  std::string model_name = {};
  std::uint64_t parameters = 0, gradient_bytes = 0, buckets = 0;
  bool has_steps = false;   // whether there is a table /steps
  double start_unix_s = 0;  // 0: now
  std::int64_t first_epoch = 0, first_step = 0;
};

// Throws the error that RunLog::create() would throw if a log was made at `path` now: that it
// exists, or that it cannot be made. For use before the work that comes ahead of create().
void check_log_path(const std::string& path);

class RunLog {
 public:
  // Makes the file with its attributes and tables, and the first row of /sessions. The path "auto"
  // stands for a name in the current folder that no file has yet: dptrain-20240131-235959.h5, then
  // dptrain-20240131-235959-2.h5, ...; /config names the file by its own path then.
  [[nodiscard]] static RunLog create(const std::string& path, const RunInfo& info);
  RunLog(RunLog&&) noexcept;
  RunLog& operator=(RunLog&&) noexcept;
  ~RunLog();  // closes an open log as unfinished; never throws

  [[nodiscard]] const std::string& path() const noexcept;

  // All rows of a span are on disk when the call returns, or the call throws.
  void append(std::span<const EpochRow> rows);
  void append(std::span<const RankRow> rows);
  void append(std::span<const BucketRow> rows);
  void append(std::span<const SessionRow> rows);
  void append(std::span<const StepRow> rows);  // needs RunInfo::has_steps
  template <class Row>
  void append(const Row& row) requires requires {
    log_fields<Row>();
  }
  { append(std::span<const Row>(&row, 1)); }

  // Further attributes of "/", "/config" or "/model" (choices made by measurement); flushed.
  void set_attribute(const std::string& group, const std::string& name, const std::string& value);
  void set_attribute(const std::string& group, const std::string& name,
                     std::span<const std::string> values);
  void set_attribute(const std::string& group, const std::string& name, double value);
  void set_attribute(const std::string& group, const std::string& name,
                     std::span<const double> values);

  // Writes the attribute `finished`, and closes. After it the log takes no more rows.
  void close(bool is_finished);

 private:
  struct State;
  explicit RunLog(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace dp
