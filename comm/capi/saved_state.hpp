// The state of an exchange, as bytes that a program saves in checkpoints of its own.
//
//     "dptrain_comm state 4\n", StateOrigin,
//     the number of tensors, then each one's name, rows, columns, and 1 if its steps are exchanged,
//     the number of parts, then each one's name and bytes,
//     a seal of all that (comm/mpi/seal.hpp)
//
// Numbers have 64 bits in this machine's byte order; names and bytes have their length in front.
//
// Earlier formats are read, too: "dptrain_comm state 3\n" does not list tensors, "dptrain_comm
// state 2\n" has no seal, and "dptrain_comm state 1\n" no StateOrigin either: nobody can say whose
// it is, and its loss scale was constant.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/state.hpp"

namespace dp {

// The owner of a state.
struct StateOrigin {
  std::uint64_t rank = 0, ranks = 1;
  double loss_scale = 1.0;  // GradientSync::loss_scale
};

// A tensor of a flat gradient, in which they follow each other.
struct StatefulTensor {
  std::string name;
  std::uint64_t rows = 0, columns = 0;
  // Whether the optimiser's steps are exchanged, so that there are numbers of its rows
  // (StateGrain::row) and of itself (StateGrain::tensor).
  std::uint64_t makes_step = 0;
};

struct StatefulExchange {
  const StateList& state;
  std::vector<StatefulTensor> tensors;
  StateOrigin here;
};

// How many bytes save_state() writes.
[[nodiscard]] std::size_t saved_bytes(const StatefulExchange& exchange);

// Throws Error(usage) if `to` has another size.
void save_state(const StatefulExchange& exchange, std::span<std::byte> to);

// Returns the origin that was saved; nothing if the state is of the first format. Throws
// Error(data), with nothing changed, if these are damaged, are not the parts of the exchange's
// state, or are those of another rank or another number of ranks.
std::optional<StateOrigin> load_state(const StatefulExchange& exchange,
                                      std::span<const std::byte> from);

// Goes on from this rank's state of an exchange with other tensors, or from those of all ranks of
// another number of ranks, in their order (StateMerge: rank r's part goes to rank r mod P). Parts
// that are divided by tensors (StateGrain) go to tensors of the same name and shape; others begin
// at zero, and what is of no tensor here is dropped. Undivided parts and texts that all ranks share
// are taken where they fit. Returns the first state's origin. Throws Error(data), with nothing
// changed, if these are damaged, of a format before the fourth, or of other ranks than that.
StateOrigin merge_states(const StatefulExchange& exchange,
                         std::span<const std::span<const std::byte>> from);

}  // namespace dp
