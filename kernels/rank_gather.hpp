// Gathers values from all ranks within an operation, for example for batch normalisation over the
// images of all ranks.
//
// Every rank calls gather() at the same points, in the same order and with the same number of
// floats, even if it has no images. gather() returns when all ranks have called it.
// comm/mpi/prompt_gather.hpp transports the floats.
#pragma once

#include <cstddef>
#include <span>

namespace dp {

enum class Pass { forward, backward };

class RankGather {
 public:
  virtual ~RankGather() = default;
  [[nodiscard]] virtual std::size_t ranks() const = 0;
  // Returns false if the ranks are not connected yet; gather() would then throw.
  [[nodiscard]] virtual bool is_served() { return true; }
  // Call while planning: gather() may later be called with up to this many floats per rank.
  virtual void reserve(std::size_t floats) = 0;
  // Collective: writes `mine` of every rank into `all`, in rank order. Throws Error(communication).
  virtual void gather(Pass pass, std::span<const float> mine, std::span<float> all) = 0;
};

}  // namespace dp
