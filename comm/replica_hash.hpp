// Proof that all ranks hold the same bits, of an array or of all replicated state.
#pragma once

#include <cstdint>
#include <span>

#include "comm/communicator.hpp"
#include "kernels/base/state.hpp"
#include "kernels/device.hpp"

namespace dp {

// Collective: hashes `values` (XXH3, 64 bits) and compares over ranks. Returns the hash; where
// ranks differ, all throw the same AgreedError(internal) that names the ranks in the minority.
std::uint64_t agree_on_hash(Communicator& communicator, std::span<const float> values);

// Collective: the same for every block that is listed as the same on all ranks; all ranks list the
// same blocks. Returns the hash of the parameters, as if they were one array. Where ranks differ,
// the error also names the first block that does. `device`: where blocks lie that are not in host
// memory; null: there are none.
std::uint64_t agree_on_state(Communicator& communicator, std::span<const StateBlock> blocks,
                             Device* device);

}  // namespace dp
