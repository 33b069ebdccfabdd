// What an exchange keeps from step to step, as bytes that a program saves in checkpoints of its
// own.
//
//     "dptrain_comm state 2\n", StateOrigin, the number of parts, then for each part its name and
//     its bytes, both with their length in front (64-bit, this machine's byte order)
//
// "dptrain_comm state 1\n" has no StateOrigin. Such states are read, too: nobody can say whose they
// are, and their loss scale was constant.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "kernels/base/state.hpp"

namespace dp {

// What a state belongs to.
struct StateOrigin {
  std::uint64_t rank = 0, ranks = 1;
  double loss_scale = 1.0;  // GradientSync::loss_scale
};

// How many bytes save_state() writes.
[[nodiscard]] std::size_t saved_bytes(const StateList& state);

// Throws Error(usage) if `to` has another size.
void save_state(const StateList& state, const StateOrigin& origin, std::span<std::byte> to);

// Returns the origin that was saved; nothing if the state is of the first format. Throws
// Error(data), with nothing changed, if these are not the parts that `state` lists, or are those of
// another rank or another number of ranks than `here`.
std::optional<StateOrigin> load_state(const StateList& state, const StateOrigin& here,
                                      std::span<const std::byte> from);

}  // namespace dp
