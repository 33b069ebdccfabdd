// For how long tensors wait: of each, how many exchanges in a row have delivered nothing of it.
//
// At low rates a codec may leave out a tensor of small values again and again while others are
// served; the sums are then zeros wherever the tensor lies. Sums are the same on all ranks, so all
// count alike. It is telemetry: each start of a run counts anew. Nothing here communicates or
// fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/topologies/buckets.hpp"

namespace dp {

class DeliveryGaps {
 public:
  // In exchanges. `now`: since something of the tensor was last delivered; `longest`: the most in a
  // row since the last take(), with those that led up to it.
  struct Gap {
    std::size_t tensor = 0;  // in the order of the buckets
    std::uint64_t now = 0, longest = 0;
    friend bool operator==(const Gap&, const Gap&) = default;
  };

  DeliveryGaps() = default;  // of no tensors
  // Tensors that are sent in fp32 are not watched.
  explicit DeliveryGaps(const std::vector<Bucket>& buckets);

  // After an exchange that was finite; sums: the flat gradient.
  void add(std::span<const float> sums);
  // Those of tensors that have missed an exchange or more since the last call.
  [[nodiscard]] std::vector<Gap> take();

 private:
  struct Watched {
    std::size_t offset = 0, elements = 0;
    Gap gap;
  };
  std::vector<Watched> tensors_;
};

}  // namespace dp
