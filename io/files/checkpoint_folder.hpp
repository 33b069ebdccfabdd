// The folder of a host's checkpoints, and the names of the files in it.
//
//     step000000120.rank3of8.1f3a9c2e.part      being written
//     step000000120.rank3of8.1f3a9c2e.waiting   written; other ranks may still be writing
//     step000000120.rank3of8.1f3a9c2e.ckpt      all ranks have written their parts
//     step000000120.1f3a9c2e.log.h5             the run log at that step, on rank 0's host
// The number 1f3a9c2e is the attempt: every start of the program draws a new number, so parts of
// two attempts at the same step are never combined into one checkpoint. Files with other names are
// left alone. Several ranks of a host share a folder. Failures throw Error(data).
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/files/saved_file.hpp"

namespace dp {

// One checkpoint of all ranks.
struct CheckpointId {
  std::uint64_t step = 0;  // the number of steps that were done
  std::uint32_t attempt = 0;
  std::uint32_t ranks = 1;
  auto operator<=>(const CheckpointId&) const = default;
};

struct ShardFile {
  CheckpointId checkpoint;
  std::uint32_t rank = 0;
  bool is_complete = false;  // .ckpt: all ranks' parts were written
  auto operator<=>(const ShardFile&) const = default;
};

// The file's name, without its folder. parse_shard_name() returns nullopt for any other name.
[[nodiscard]] std::string name_of(const ShardFile& file);
[[nodiscard]] std::optional<ShardFile> parse_shard_name(std::string_view name);
[[nodiscard]] std::string part_name_of(const ShardFile& file);
[[nodiscard]] std::string log_name_of(const CheckpointId& checkpoint);

// Makes the folder and its parents if they are missing, and checks that files can be created in it.
void prepare_checkpoint_folder(const std::string& folder);

// Keeps other runs on this host out of the folder while this object lives. The ranks of one run,
// which have the same attempt, share the lock. The kernel holds the lock and nothing is written, so
// the lock ends with the process, however the process ends. Runs on other hosts do not see the
// lock, even on a shared disk.
class CheckpointLock {
 public:
  // Waits up to `patience` for ranks of an earlier run that are about to end, then throws.
  CheckpointLock(const std::string& folder, std::uint32_t attempt,
                 std::chrono::duration<double> patience);

 private:
  FileDescriptor folder_;
};

// The completely written shards in the folder; none if the folder does not exist.
[[nodiscard]] std::vector<ShardFile> list_shards(const std::string& folder);

// Removes the files of checkpoints that are not in the list, and all half-written files. Call it
// only while no rank of this host is writing a file. Files that cannot be removed stay.
void remove_checkpoints(const std::string& folder, std::span<const CheckpointId> kept);

}  // namespace dp
