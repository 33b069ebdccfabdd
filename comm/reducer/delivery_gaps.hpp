// Counts, for each tensor, the consecutive exchanges that have delivered nothing of it.
//
// At few bits a codec may leave out a tensor of small values repeatedly while it sends other
// tensors; the sums are then zero in the whole tensor. Sums are the same on all ranks, so all ranks
// count the same gaps. This is telemetry, not state: a resumed run counts anew. Nothing here
// communicates or fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/topologies/buckets.hpp"

namespace dp {

class DeliveryGaps {
 public:
  // Gaps are counted in exchanges. `now` is the number of exchanges since something of the tensor
  // was last delivered. `longest` is the longest gap since the last take(). A gap that began before
  // that call counts with its whole length.
  struct Gap {
    std::size_t tensor = 0;  // in the order of the buckets
    std::uint64_t now = 0, longest = 0;
    friend bool operator==(const Gap&, const Gap&) = default;
  };

  DeliveryGaps() = default;  // watches no tensors
  // Tensors that are sent in fp32 are not watched.
  explicit DeliveryGaps(const std::vector<Bucket>& buckets);

  // Call it after each finite exchange; sums: the flat gradient.
  void add(std::span<const float> sums);
  // The gaps of the tensors that have missed at least one exchange since the last call.
  [[nodiscard]] std::vector<Gap> take();

 private:
  struct Watched {
    std::size_t offset = 0, elements = 0;
    Gap gap;
  };
  std::vector<Watched> tensors_;
};

}  // namespace dp
