// The part of --check that looks at the disks.
#pragma once

#include <cstddef>
#include <string>

#include "app/options/options.hpp"

namespace dp {

// The files that the ranks of one host write for each checkpoint.
struct CheckpointNeed {
  double part_bytes = 0;  // the size of one rank's part; 0: not known
  std::size_t ranks = 1;
};

struct DiskState {
  std::string text;  // for people
  bool is_bad = false;
};

// Checks the places that a rank writes to. Only rank 0 writes logs, but every rank writes
// checkpoints. Folders of checkpoints and events need not exist, and are not created. A place is
// bad if it cannot be written or has too little room. There must be room for one more checkpoint
// than --checkpoint-keep says, because an old checkpoint is removed only after the new one exists.
// Other files need 100 MB.
[[nodiscard]] DiskState describe_disk(const Options& options, bool is_rank_0,
                                      const CheckpointNeed& need);

}  // namespace dp
