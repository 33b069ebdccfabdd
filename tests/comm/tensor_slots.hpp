// The tensors of a small model that tests of an exchange share.
#pragma once

#include <cstddef>
#include <vector>

#include "comm/topologies/buckets.hpp"

namespace dp::test {

// Two matrices "a" and "b" and a vector "c", one behind the other.
inline std::vector<TensorSlot> two_matrices_and_a_vector(std::size_t rows, std::size_t columns,
                                                         std::size_t elements) {
  std::vector<TensorSlot> slots = {{.rows = rows, .columns = columns, .name = "a"},
                                   {.rows = rows, .columns = columns, .name = "b"},
                                   {.rows = 1, .columns = elements, .is_1d = true, .name = "c"}};
  std::size_t offset = 0;
  for (TensorSlot& slot : slots) {
    slot.offset = offset;
    offset += slot.elements();
  }
  return slots;
}

}  // namespace dp::test
