// Saves a run log's contents (run_log_image.hpp) to its file.
//
// save() works in one of two ways. Either it writes a new file beside the log and renames it. Or,
// if the file has room for the new rows, it writes the rows in place, waits until they are on the
// disk, and then raises the tables' lengths. Only the second way is cheap for a long log.
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
  // Saves nothing yet. If `is_there` is true, the file exists and belongs to this log, and the
  // first save replaces it. If not, the first save creates the file, or fails if another file has
  // the name by then. Throws Error(data).
  LogFile(std::string path, bool is_there);

  [[nodiscard]] const std::string& path() const { return path_; }

  // When the call returns, `contents` are on the disk. Pass `is_whole` if anything besides new rows
  // has changed since the last save. Throws Error(data) with the system's reason; the file is then
  // unchanged or has some of the new rows.
  void save(const LogContents& contents, bool is_whole);
  // Whether the file is known to hold all rows.
  [[nodiscard]] bool has_rows(const LogContents& contents) const;

  // Whether it is time for a save that can wait. These saves take less than 1 % of the time.
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
