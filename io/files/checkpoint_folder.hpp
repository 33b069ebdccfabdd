// The folder of a host's checkpoints, and the names of the files in it.
//
//     step000000120.rank3of8.1f3a9c2e.part      being written
//     step000000120.rank3of8.1f3a9c2e.waiting   written; nobody knows yet whether all ranks' are
//     step000000120.rank3of8.1f3a9c2e.ckpt      all ranks have written theirs
//     step000000120.1f3a9c2e.log.h5             the run log at that step, on rank 0's host
// The last number is the attempt: every start of the program draws another one, so that parts of
// two attempts at the same step are never taken for one checkpoint. Files with other names are left
// alone. Several ranks of a host share a folder. Failures are Error(data).
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
  std::uint64_t step = 0;  // so many steps had been made
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

// The file's name, without its folder; nothing where a name is not of this form.
[[nodiscard]] std::string name_of(const ShardFile& file);
[[nodiscard]] std::optional<ShardFile> parse_shard_name(std::string_view name);
[[nodiscard]] std::string part_name_of(const ShardFile& file);
[[nodiscard]] std::string log_name_of(const CheckpointId& checkpoint);

// Makes the folder, with those above it, if it is not there, and checks that files can be made.
void prepare_checkpoint_folder(const std::string& folder);

// Keeps other runs of this host away from the folder for as long as it lives; the ranks of one run,
// which have the same attempt, share it. The end of the process ends it, whatever its end is.
// Nothing is written: the kernel holds the lock. Another host's run is not seen, also on a disk
// that both share.
class CheckpointLock {
 public:
  // Waits so long for ranks of an earlier run that are about to end, then throws.
  CheckpointLock(const std::string& folder, std::uint32_t attempt,
                 std::chrono::duration<double> patience);

 private:
  FileDescriptor folder_;
};

// The shards in the folder that are written; none if there is no such folder.
[[nodiscard]] std::vector<ShardFile> list_shards(const std::string& folder);

// Removes what belongs to no checkpoint of the list, and what is half-written: no rank of the host
// may be writing one. What cannot be removed stays.
void remove_checkpoints(const std::string& folder, std::span<const CheckpointId> kept);

}  // namespace dp
