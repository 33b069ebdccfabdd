// Converts the arguments of the C interface's callers to the library's types.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <vector>

#include "comm/capi/dptrain_comm.h"
#include "comm/gradient_sync.hpp"
#include "comm/mpi/communicator.hpp"
#include "comm/topologies/buckets.hpp"

namespace dp::capi {

// Throws Error(usage) with that sentence if `holds` is false.
void require(bool holds, std::string_view sentence);

// Reads a struct of a caller that may have been compiled with an older or newer header: missing
// fields get their defaults.
template <class Struct>
[[nodiscard]] Struct read_struct(const Struct& given, Struct defaults) {
  require(given.struct_bytes >= sizeof given.struct_bytes && given.struct_bytes % 8 == 0,
          "struct_bytes is not the size of the struct");
  std::memcpy(&defaults, &given,
              std::min<std::size_t>(sizeof(Struct), static_cast<std::size_t>(given.struct_bytes)));
  return defaults;
}

[[nodiscard]] dptrain_comm_options default_options();

// The slots' places in the flat gradient, in which one-dimensional tensors come last.
struct Layout {
  std::vector<TensorSlot> tensors;
  std::vector<std::size_t> tensor_of_slot;
  std::size_t elements = 0;
};

// Throws Error(usage) for a slot without values.
[[nodiscard]] Layout lay_out(const dptrain_comm_slot* slots, std::size_t count);

// Throws Error(usage) for a wrong option.
void check(const dptrain_comm_options& given);

// Collective: measures the link, unless link_bit_per_s is given. `given` must have passed check().
[[nodiscard]] GradientSyncOptions sync_options(const dptrain_comm_options& given,
                                               Communicator& comm);

}  // namespace dp::capi
