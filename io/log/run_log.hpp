// The run log: one HDF5 file that says what a run was and what each epoch, rank, bucket and step
// cost.
//
// Only rank 0 writes it. Rows and attributes are collected in memory; save() puts them into the
// file. Whatever ends the process, and wherever in save() that happens, the file is one that any
// reader understands, with every row of the last save() that returned. A reader that opens it while
// the run goes on (h5py, pandas, HDFView) sees the same. An existing file is never overwritten.
// How that is done is in run_log_file.hpp.
//
// Every failure throws Error(data) that names the file. After a save() that failed, the file is as
// it was, or has a part of the new rows; the next save() tries everything again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "io/log/run_log_rows.hpp"

namespace dp {

struct LogContents;  // run_log_image.hpp

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
  // The first epoch and the number of steps that are done; of a run that goes on.
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

  // Goes on with a log whose bytes image() has given earlier, without the rows of epochs from
  // info.first_epoch on and of steps after info.first_step. The attributes become those of `info`;
  // started_at and what set_attribute() added stay. /sessions gets a row. The path "auto" stands
  // for the one that the log had. The same run's file there is replaced. A file of another run
  // keeps its place, which is an error, unless that is where the log was: then it is renamed. An
  // empty image stands for a log that is lost: it begins anew.
  // The first save() writes the file: a disk that fails by now ends no run that goes on.
  [[nodiscard]] static RunLog resume(const std::string& path, std::span<const std::byte> image,
                                     const RunInfo& info);

  RunLog(RunLog&&) noexcept;
  RunLog& operator=(RunLog&&) noexcept;
  ~RunLog();  // saves an open log as unfinished; never throws

  [[nodiscard]] const std::string& path() const noexcept;

  void append(std::span<const EpochRow> rows);
  void append(std::span<const RankRow> rows);
  void append(std::span<const BucketRow> rows);
  void append(std::span<const SessionRow> rows);
  void append(std::span<const TensorRow> rows);
  void append(std::span<const ShareRow> rows);
  void append(std::span<const StepRow> rows);  // needs RunInfo::has_steps
  template <class Row>
  void append(const Row& row) requires requires {
    log_fields<Row>();
  }
  { append(std::span<const Row>(&row, 1)); }

  // Sets further attributes of "/", "/config" or "/model", such as choices made by measurement.
  void set_attribute(const std::string& group, const std::string& name, const std::string& value);
  void set_attribute(const std::string& group, const std::string& name,
                     std::span<const std::string> values);
  void set_attribute(const std::string& group, const std::string& name, double value);
  void set_attribute(const std::string& group, const std::string& name,
                     std::span<const double> values);
  // Replaces one of the lists that rows refer to; rows that are appended later refer to it.
  void set_list(const std::string& name, std::span<const std::string> values);

  // When the call returns, all rows and attributes are on the disk.
  void save();
  // Whether rows that can wait, such as those of steps, should be saved now. It says so seldom
  // enough that such saves take less than 1 % of the time, and at most once a second.
  [[nodiscard]] bool is_save_due() const;

  // The bytes of a file with all rows and attributes, also those that are not saved.
  [[nodiscard]] std::vector<std::byte> image() const;

  // Sets the attribute `finished`, and saves. The log then takes no more rows.
  void close(bool is_finished);

 private:
  struct State;
  explicit RunLog(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace dp
