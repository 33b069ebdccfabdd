// Proves that all ranks hold the same bits of an array, or of all replicated state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "comm/mpi/communicator.hpp"
#include "kernels/base/state.hpp"
#include "kernels/device.hpp"

namespace dp {

// Collective: hashes `values` (XXH3, 64 bits) and compares the hashes of all ranks. Returns the
// hash. If ranks differ, all throw the same AgreedError(internal), which names the ranks in the
// minority.
std::uint64_t agree_on_hash(Communicator& communicator, std::span<const float> values);

// Collective: does the same as agree_on_hash() for every block whose share is `replicated`. All
// ranks must list the same blocks. Returns the hash of the parameters as if they were one array. If
// ranks differ, the error also names the first block that differs. `device` holds the blocks that
// are not in host memory; null if there are none.
std::uint64_t agree_on_state(Communicator& communicator, std::span<const StateBlock> blocks,
                             Device* device);

// A part of the replicated state, and the hash of its bytes.
struct HashedPart {
  std::string_view name;
  std::size_t bytes = 0;
  std::uint64_t hash = 0;
};

// Collective: compares hashes that the caller has computed, and throws as agree_on_hash() does. All
// ranks must list the same parts. `where` and `consequence` complete the error message: " in the
// checkpoint of step 6", "Results from here on are worthless".
void agree_on_parts(Communicator& communicator, std::span<const HashedPart> parts,
                    std::string_view where, std::string_view consequence);

}  // namespace dp
