// The part of --check that looks at the disks.
#pragma once

#include <cstddef>
#include <string>

#include "app/options/options.hpp"

namespace dp {

// What the ranks of one host write into its folder of checkpoints.
struct CheckpointNeed {
  double part_bytes = 0;  // of one rank's part; 0: not known
  std::size_t ranks = 1;
};

struct DiskState {
  std::string text;  // for people
  bool is_bad = false;
};

// What a rank writes and where: only rank 0 writes logs, every rank its checkpoints. Folders of
// checkpoints and events need not be there yet; nothing is made. Bad is what cannot be written, or
// has too little room: for checkpoints one more than are kept, since an old one is removed when the
// new one is there; for the others 100 MB.
[[nodiscard]] DiskState describe_disk(const Options& options, bool is_rank_0,
                                      const CheckpointNeed& need);

}  // namespace dp
