// Converts a run's state to the entries of a checkpoint's file, and back (kernels/base/state.hpp,
// io/files/checkpoint_file.hpp).
//
// Entries have the names that the owners of the state give them. Call these functions only between
// steps.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "io/files/checkpoint_file.hpp"
#include "kernels/base/state.hpp"
#include "kernels/device.hpp"

namespace dp {

// Copies all listed state, and further texts, into the image. On a GPU this waits for the work
// under way.
void copy_state(Device& device, const StateList& list,
                const std::vector<std::pair<std::string, std::string>>& texts, ShardImage& image);

// Whether copy_state() marked this entry as a rank's own, not replicated.
[[nodiscard]] bool is_own_entry(const ShardEntry& entry);

// Hash of the replicated entries of a sealed image, or of the file written from it.
[[nodiscard]] std::uint64_t replicated_hash(const ShardImage& image);
[[nodiscard]] std::uint64_t replicated_hash(const Shard& shard);

// The parts that a rank's state is read from.
struct StateSources {
  const Shard* replicated = nullptr;  // never null
  // The parts of the ranks whose state this rank takes over, in the order of their ranks. The first
  // is the part of the rank with this rank's number, if it exists. Empty: no part.
  std::vector<const Shard*> own;
  // Whether the run has the same ranks as before. With other ranks, the exchange may have other
  // state than the checkpoint holds.
  bool is_same_run = true;
};

// Sets all listed state. The own state of several ranks is merged as its StateMerge says. If no
// rank's own state is given, this rank keeps its own state. In the same run, an entry that is
// missing, has another size or is not listed is Error(data). In another run, such an entry is
// ignored, and its state stays as it is. Returns the names of entries that exist but were not used.
std::vector<std::string> restore_state(Device& device, const StateList& list,
                                       const StateSources& sources);

}  // namespace dp
