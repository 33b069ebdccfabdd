// The part of --check that looks at the disks.
#pragma once

#include <cstddef>
#include <string>

#include "app/options/options.hpp"

namespace dp {

// The files that the ranks of one host write into its folder of checkpoints.
struct CheckpointNeed {
  double part_bytes = 0;  // of one rank's part; 0: not known
  std::size_t ranks = 1;
};

struct DiskState {
  std::string text;  // for people
  bool is_bad = false;
};

// Checks the places that a rank writes to: rank 0 alone writes logs, every rank its checkpoints.
// Folders of checkpoints and events need not exist; none is created. A place is bad if it cannot be
// written or has too little room. Checkpoints need room for one more than are kept, because an old
// one is removed only after the new one exists; other files need 100 MB.
[[nodiscard]] DiskState describe_disk(const Options& options, bool is_rank_0,
                                      const CheckpointNeed& need);

}  // namespace dp
