// The run log: one HDF5 file that says what a run was and what each epoch, rank, bucket and step
// cost.
//
// Only rank 0 writes it. append() adds rows to a table and flushes the file, so every row is on
// disk when it returns. The file can be read (h5py, pandas, HDFView) while the run goes on and
// after the process was killed. An existing log is never overwritten. Every failure throws
// Error(data) that names the file. After a failure, such as a full disk, this file makes no more
// HDF5 calls: they would fail again, at the latest in HDF5's own exit handlers.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "io/run_log_rows.hpp"

namespace dp {

// What is known when a run starts. Rows refer to hosts, devices, codecs and topologies by their
// index in these lists.
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

// Throws the error that RunLog::create() would throw for `path` now: that it exists, or that it
// cannot be made. For use before the work that comes before create().
void check_log_path(const std::string& path);

class RunLog {
 public:
  // Makes the file with its attributes and tables, and the first row of /sessions. The path "auto"
  // stands for a name in the current folder that no file has yet: dptrain-20240131-235959.h5, then
  // dptrain-20240131-235959-2.h5, ...; /config then has the real path.
  [[nodiscard]] static RunLog create(const std::string& path, const RunInfo& info);
  // Goes on with a log: `path` becomes the file that image() has returned, so that later rows are
  // cut off, and is replaced if it exists. /sessions gets a row, and what `info` says of hosts,
  // devices and the like replaces what was there. Throws Error(data) for what is no log of the same
  // tables.
  [[nodiscard]] static RunLog resume(const std::string& path, std::span<const std::byte> image,
                                     const RunInfo& info);
  RunLog(RunLog&&) noexcept;
  RunLog& operator=(RunLog&&) noexcept;
  ~RunLog();  // closes an open log as unfinished; never throws

  [[nodiscard]] const std::string& path() const noexcept;

  // The file as it is now, for resume().
  [[nodiscard]] std::vector<std::byte> image() const;

  // When the call returns, all rows of the span are on disk; otherwise it throws.
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

  // Writes further attributes of "/", "/config" or "/model", such as choices made by measurement,
  // and flushes.
  void set_attribute(const std::string& group, const std::string& name, const std::string& value);
  void set_attribute(const std::string& group, const std::string& name,
                     std::span<const std::string> values);
  void set_attribute(const std::string& group, const std::string& name, double value);
  void set_attribute(const std::string& group, const std::string& name,
                     std::span<const double> values);

  // Writes the attribute `finished` and closes the file. The log then takes no more rows.
  void close(bool is_finished);

 private:
  struct State;
  explicit RunLog(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace dp
