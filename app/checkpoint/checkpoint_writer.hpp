// The thread that writes a rank's part of a checkpoint, and the memory that it works on.
//
// The thread runs one job at a time. write() begins a job that writes the part, and the log beside
// it. tidy_up() begins a job that gives the part its final name and removes old checkpoints. A job
// throws nothing; failure() returns its error.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/mpi/job_thread.hpp"
#include "io/files/checkpoint_file.hpp"
#include "io/files/checkpoint_folder.hpp"

namespace dp {

class CheckpointWriter {
 public:
  explicit CheckpointWriter(std::string folder);

  // write() and tidy_up() begin a job and return at once. No other job may be under way. write()
  // hashes and writes image(). It also writes the log, unless the log is empty.
  void write(const ShardFile& part, std::vector<std::byte> log);
  // If is_complete, gives the part that was written last its final name. Then, unless renaming has
  // failed, removes all checkpoints except `kept`. Files that cannot be removed now are removed
  // after the next checkpoint.
  void tidy_up(bool is_complete, std::vector<CheckpointId> kept);

  // Whether the job is over. wait_for() first waits for the end of the job, but not longer than
  // `most`.
  [[nodiscard]] bool is_over() { return thread_.is_over(job_); }
  bool wait_for(std::chrono::duration<double> most) { return thread_.wait_for(job_, most); }

  // Call these only while no job is under way.
  [[nodiscard]] ShardImage& image() { return image_; }
  [[nodiscard]] std::uint64_t replicated_hash() const { return replicated_hash_; }
  [[nodiscard]] const std::string& failure() const { return failure_; }  // empty: none

 private:
  void begin(void (*job)(void*));
  void write_files();
  void rename_and_remove();
  [[nodiscard]] std::string path(const std::string& name) const;

  std::string folder_;
  ShardImage image_;
  std::vector<std::byte> log_;
  ShardFile part_;
  std::uint64_t replicated_hash_ = 0;
  std::string failure_;
  bool is_complete_ = false;
  std::vector<CheckpointId> kept_;
  JobThread::Number job_ = 0;
  JobThread thread_;  // declared last, so that it is destroyed first
};

}  // namespace dp
