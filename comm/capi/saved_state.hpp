// The state of an exchange, as bytes that a program saves in checkpoints of its own.
//
//     "dptrain_comm state 3\n", StateOrigin, the number of parts, then for each part its name and
//     its bytes, both with their length in front (64-bit, this machine's byte order), and a seal of
//     all that (comm/mpi/seal.hpp)
//
// Earlier formats are read, too: "dptrain_comm state 2\n" has no seal, and "dptrain_comm state 1\n"
// no StateOrigin either: nobody can say whose it is, and its loss scale was constant.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "kernels/base/state.hpp"

namespace dp {

// The owner of a state.
struct StateOrigin {
  std::uint64_t rank = 0, ranks = 1;
  double loss_scale = 1.0;  // GradientSync::loss_scale
};

// How many bytes save_state() writes.
[[nodiscard]] std::size_t saved_bytes(const StateList& state);

// Throws Error(usage) if `to` has another size.
void save_state(const StateList& state, const StateOrigin& origin, std::span<std::byte> to);

// Returns the origin that was saved; nothing if the state is of the first format. Throws
// Error(data), with nothing changed, if these are damaged, are not the parts that `state` lists, or
// are those of another rank or another number of ranks than `here`.
std::optional<StateOrigin> load_state(const StateList& state, const StateOrigin& here,
                                      std::span<const std::byte> from);

}  // namespace dp
