#include "app/checkpoint/checkpoint_writer.hpp"

#include <filesystem>
#include <utility>

#include "app/checkpoint/run_state.hpp"
#include "io/files/whole_file.hpp"
#include "kernels/base/error.hpp"

namespace dp {

CheckpointWriter::CheckpointWriter(std::string folder)
    : folder_(std::move(folder)), thread_({.name = "dp-checkpoint"}) {}

void CheckpointWriter::begin(void (*job)(void*)) {
  failure_.clear();
  job_ = thread_.post(job, this);
}

void CheckpointWriter::write(const ShardFile& part, std::vector<std::byte> log) {
  part_ = part;
  log_ = std::move(log);
  begin([](void* self) { static_cast<CheckpointWriter*>(self)->write_files(); });
}

void CheckpointWriter::tidy_up(bool is_complete, std::vector<CheckpointId> kept) {
  is_complete_ = is_complete;
  kept_ = std::move(kept);
  begin([](void* self) { static_cast<CheckpointWriter*>(self)->rename_and_remove(); });
}

void CheckpointWriter::write_files() {
  try {
    if (!log_.empty()) {
      const std::string log = path(log_name_of(part_.checkpoint));
      write_whole_file(log, log + ".part", log_);
    }
    const std::span<const std::byte> file = image_.seal();
    replicated_hash_ = dp::replicated_hash(image_);
    write_whole_file(path(name_of(part_)), path(part_name_of(part_)), file);
  } catch (...) {
    static_cast<void>(exit_code_of_current_exception(failure_));
  }
}

void CheckpointWriter::rename_and_remove() {
  try {
    if (is_complete_) {
      ShardFile complete = part_;
      complete.is_complete = true;
      rename_durably(path(name_of(part_)), path(name_of(complete)));
    }
  } catch (...) {
    static_cast<void>(exit_code_of_current_exception(failure_));
    return;
  }
  try {
    remove_checkpoints(folder_, kept_);
  } catch (...) {
    // A missing folder is reported when the next checkpoint cannot be written.
  }
}

std::string CheckpointWriter::path(const std::string& name) const {
  return (std::filesystem::path(folder_) / name).string();
}

}  // namespace dp
