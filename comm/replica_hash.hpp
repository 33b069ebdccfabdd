// Proof that all ranks hold the same bits.
#pragma once

#include <cstdint>
#include <span>

#include "comm/communicator.hpp"

namespace dp {

// Collective: hashes `values` (XXH3, 64 bits) and compares over ranks. Returns the hash; where
// ranks differ, all throw the same AgreedError(internal) that names the ranks in the minority.
std::uint64_t agree_on_hash(Communicator& communicator, std::span<const float> values);

}  // namespace dp
