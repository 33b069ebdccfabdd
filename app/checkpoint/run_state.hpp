// A run's state as the entries of a checkpoint's file, and back (kernels/base/state.hpp,
// io/files/checkpoint_file.hpp).
//
// Entries have the names that the owners of state give them. They are read and written between
// steps alone.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "io/files/checkpoint_file.hpp"
#include "kernels/base/state.hpp"
#include "kernels/device.hpp"

namespace dp {

// Copies all that is listed, and further texts, into the image. On a GPU this waits for the work
// under way.
void copy_state(Device& device, const StateList& list,
                const std::vector<std::pair<std::string, std::string>>& texts, ShardImage& image);

// Whether an entry that copy_state() made is a rank's own.
[[nodiscard]] bool is_own_entry(const ShardEntry& entry);

// A hash of what is the same on all ranks, of a sealed image, or of the file that it became.
[[nodiscard]] std::uint64_t replicated_hash(const ShardImage& image);
[[nodiscard]] std::uint64_t replicated_hash(const Shard& shard);

// Where each part of a rank's state comes from.
struct StateSources {
  const Shard* replicated = nullptr;  // never null
  // The ranks whose own parts this rank takes over, in their order; the first of them is the one
  // that had this rank's number, if there is one. Empty: nothing of its own is known.
  std::vector<const Shard*> own;
  // Whether the run has the same ranks as before. If not, an exchange may keep other things.
  bool is_same_run = true;
};

// Sets all that is listed. Of several ranks' own parts it makes what StateMerge says; without any,
// it leaves these as they are. If an entry is missing or has another size, or is not listed, it
// throws Error(data) in the same run; otherwise it leaves what it was for as it is. Returns the
// names of the entries that are there and were not used.
std::vector<std::string> restore_state(Device& device, const StateList& list,
                                       const StateSources& sources);

}  // namespace dp
