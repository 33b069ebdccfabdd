// The run log: one HDF5 file that records what a run was and what each epoch, rank, bucket and step
// cost.
//
// Only rank 0 writes it. Rows and attributes are collected in memory; save() puts them into the
// file. Even if the process is killed in the middle of a save(), the file is readable and has every
// row of the last save() that returned. The same is true if a reader (h5py, pandas, HDFView) opens
// the file while the run goes on. An existing file is never overwritten. run_log_file.hpp describes
// how this works.
//
// Failures throw Error(data) that names the file. After a save() that failed, the file is unchanged
// or has some of the new rows; the next save() tries everything again.
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

// The facts that are known when a run starts. Rows refer to hosts, devices, codecs and topologies
// by their index in these lists.
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
  // In a resumed run: the epoch to continue with, and the number of steps that are done.
  std::int64_t first_epoch = 0, first_step = 0;
};

// Throws the error that RunLog::create() would throw now, if the file exists or cannot be created.
// Call it early, before the long work that precedes create().
void check_log_path(const std::string& path);

class RunLog {
 public:
  // Creates the file with its attributes and tables, and the first row of /sessions. The path
  // "auto" stands for the first free name of dptrain-20240131-235959.h5,
  // dptrain-20240131-235959-2.h5, ... in the current folder; /config then has the real path.
  [[nodiscard]] static RunLog create(const std::string& path, const RunInfo& info);

  // Continues a log from the bytes that image() returned earlier. An empty `image` means that the
  // log is lost, so a new log is begun.
  //
  // Rows of epochs from info.first_epoch on and of steps after info.first_step are dropped. The
  // attributes are set from `info`, except started_at and the attributes that set_attribute()
  // added. /sessions gets a new row.
  //
  // The path "auto" stands for the log's earlier path. If `path` holds the same run's log, that log
  // is replaced. Any other file at `path` is renamed if `path` is the log's earlier path or if the
  // log is lost. In all other cases, such a file makes resume() throw. The new file is written by
  // the first save(). A disk failure during resume() therefore does not end the run.
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

  // Sets an attribute of "/", "/config" or "/model", such as a choice made by measurement.
  void set_attribute(const std::string& group, const std::string& name, const std::string& value);
  void set_attribute(const std::string& group, const std::string& name,
                     std::span<const std::string> values);
  void set_attribute(const std::string& group, const std::string& name, double value);
  void set_attribute(const std::string& group, const std::string& name,
                     std::span<const double> values);
  // Replaces one of the lists to which rows refer by index. The new list applies to rows that are
  // appended afterwards.
  void set_list(const std::string& name, std::span<const std::string> values);

  // Saves all rows and attributes. They are on the disk when the call returns.
  void save();
  // Whether it is time to save rows that can wait, such as rows of steps. True at most once a
  // second, and so seldom that these saves take less than 1 % of the time.
  [[nodiscard]] bool is_save_due() const;

  // The bytes of a file with all rows and attributes, including unsaved ones.
  [[nodiscard]] std::vector<std::byte> image() const;

  // Sets the attribute `finished` if `is_finished`, and saves. The log then takes no more rows.
  void close(bool is_finished);

 private:
  struct State;
  explicit RunLog(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace dp
