// What an exchange keeps from step to step, as bytes that a program saves in checkpoints of its
// own.
//
//     "dptrain_comm state 1\n", the number of parts, then for each part its name and its bytes,
//     both with their length in front (64-bit, this machine's byte order)
#pragma once

#include <cstddef>
#include <span>

#include "kernels/base/state.hpp"

namespace dp {

// How many bytes save_state() writes.
[[nodiscard]] std::size_t saved_bytes(const StateList& state);

// Throws Error(usage) if `to` has another size.
void save_state(const StateList& state, std::span<std::byte> to);

// Throws Error(data), with nothing changed, if these are not the parts that `state` lists.
void load_state(const StateList& state, std::span<const std::byte> from);

}  // namespace dp
