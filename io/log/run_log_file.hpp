// The file of a run log: puts what is in memory (run_log_image.hpp) on the disk.
//
// save() has two ways. It writes a new file beside the log and renames it. Or, if the rows have
// places in the file already, it writes them there, waits until they are on the disk, and then
// raises the tables' lengths. Only the second way is cheap for a long log.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "io/files/saved_file.hpp"
#include "io/log/run_log_image.hpp"

namespace dp {

class LogFile {
 public:
  // Nothing is saved yet. With `is_there`, a file exists and is this log's alone; the first save
  // replaces it. Without, the first save makes it, unless another file has the name by then. Throws
  // Error(data).
  LogFile(std::string path, bool is_there);

  [[nodiscard]] const std::string& path() const { return path_; }

  // When the call returns, `contents` are on the disk. `is_whole` says that more has changed since
  // the last save than that tables have new rows. Throws Error(data) with the system's reason; then
  // the file is as it was, or has some of the new rows.
  void save(const LogContents& contents, bool is_whole);
  // Whether the file is known to have all rows.
  [[nodiscard]] bool has_rows(const LogContents& contents) const;

  // Whether it is time for a save that can wait: such saves take less than 1 % of the time.
  [[nodiscard]] bool is_due() const;

 private:
  [[nodiscard]] bool has_places(const LogContents& contents) const;
  bool add_in_place(const LogContents& contents);
  void replace(const LogContents& contents);
  void note_saved(const LogContents& contents);

  std::string path_;
  FileDescriptor file_;
  std::vector<LogImage::Place> places_;  // by table
  std::vector<std::size_t> saved_;       // rows by table
  bool must_replace_ = true;
  double save_s_ = 0;  // how long the last save took
  std::chrono::steady_clock::time_point saved_at_ = std::chrono::steady_clock::now();
};

}  // namespace dp
