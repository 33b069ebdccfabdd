// The thread that writes a rank's part of a checkpoint, with what it works on.
//
// It does one job at a time: it writes the part and the log beside it; later it gives them their
// final names and removes what is too old. A job throws nothing: failure() says what went wrong.
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

  // Both begin a job and return at once. Not while another one is under way.
  // Hashes image() and writes it; with the log, unless that is empty.
  void write(const ShardFile& part, std::vector<std::byte> log);
  // The checkpoint that was written last counts, or does not. Then removes all but `kept`. What
  // cannot be removed now is removed after the next checkpoint.
  void tidy_up(bool is_complete, std::vector<CheckpointId> kept);

  // Whether the job is over; the second waits for it, so long at most.
  [[nodiscard]] bool is_over() { return thread_.is_over(job_); }
  bool wait_for(std::chrono::duration<double> most) { return thread_.wait_for(job_, most); }

  // While no job is under way.
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
  JobThread thread_;  // last, so that it ends first
};

}  // namespace dp
