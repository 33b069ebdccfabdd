// The state of an exchange as bytes, which a program saves in its own checkpoints.
//
//     "dptrain_comm state 4\n", StateOrigin,
//     the number of tensors; for each its name, rows, columns, and 1 if its steps are exchanged,
//     the number of parts; for each its name and bytes,
//     a seal of everything before it (comm/mpi/seal.hpp)
//
// Numbers have 64 bits in this machine's byte order; names and bytes are preceded by their length.
//
// Earlier formats can be read, too: "dptrain_comm state 3\n" has no list of tensors. "dptrain_comm
// state 2\n" has no seal either. "dptrain_comm state 1\n" also lacks the StateOrigin. With format 1
// the rank of a state is not known. The run's loss scale was constant then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/state.hpp"

namespace dp {

// The rank that a state belongs to.
struct StateOrigin {
  std::uint64_t rank = 0, ranks = 1;
  double loss_scale = 1.0;  // GradientSync::loss_scale
};

// A tensor of a flat gradient. Tensors follow each other without gaps.
struct StatefulTensor {
  std::string name;
  std::uint64_t rows = 0, columns = 0;
  // 1 if the optimiser's steps are exchanged. The state then has numbers for each of its rows
  // (StateGrain::row) and for the tensor (StateGrain::tensor). Otherwise 0.
  std::uint64_t makes_step = 0;
};

struct StatefulExchange {
  const StateList& state;
  std::vector<StatefulTensor> tensors;
  StateOrigin here;
};

// The number of bytes that save_state() writes.
[[nodiscard]] std::size_t saved_bytes(const StatefulExchange& exchange);

// Throws Error(usage) if `to` has another size.
void save_state(const StatefulExchange& exchange, std::span<std::byte> to);

// Returns the saved origin; empty if the state has the first format. Throws Error(data), with
// nothing changed, if the bytes are damaged, do not have the parts of this exchange's state, or
// belong to another rank or another number of ranks.
std::optional<StateOrigin> load_state(const StatefulExchange& exchange,
                                      std::span<const std::byte> from);

// Continues from states that load_state() refuses. After a change of tensors, pass this rank's own
// state. After a change of the number of ranks, pass the states of all ranks of the earlier run, in
// the order of ranks. Rank r's part goes to rank r mod P, where P is the present number of ranks.
// Parts for the same rank are combined as StateMerge says. Parts that are divided by tensors
// (StateGrain) go to tensors of the same name and shape. Tensors without a match begin at zero, and
// parts of missing tensors are dropped. Undivided parts and texts that are the same on all ranks
// are taken if they fit. Returns the first state's origin. Throws Error(data), with nothing
// changed, if the states are damaged, have a format before the fourth, or belong to other ranks
// than described.
StateOrigin merge_states(const StatefulExchange& exchange,
                         std::span<const std::span<const std::byte>> from);

}  // namespace dp
