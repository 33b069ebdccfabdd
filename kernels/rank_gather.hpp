// For an operation that needs values of all ranks before it can go on, such as batch normalisation
// over the images of all ranks.
//
// Every rank calls gather() at the same places of its operations, in the same order and with the
// same number of floats, also a rank that has no images. The call waits until all ranks have made
// it. comm/mpi/prompt_gather.hpp brings the floats from rank to rank.
#pragma once

#include <cstddef>
#include <span>

namespace dp {

enum class Pass { forward, backward };

class RankGather {
 public:
  virtual ~RankGather() = default;
  [[nodiscard]] virtual std::size_t ranks() const = 0;
  // False: the ranks are not connected yet, and gather() would throw.
  [[nodiscard]] virtual bool is_served() { return true; }
  // In planning: gather() may be called with that many floats of each rank.
  virtual void reserve(std::size_t floats) = 0;
  // Collective: writes every rank's `mine`, by rank, into `all`. Throws Error(communication).
  virtual void gather(Pass pass, std::span<const float> mine, std::span<float> all) = 0;
};

}  // namespace dp
