#include "comm/reducer/delivery_gaps.hpp"

#include <algorithm>
#include <bit>

namespace dp {
namespace {

// Searches in blocks, so that the inner loop is vectorised. If an exchange has delivered anything
// of a tensor, one of the tensor's first blocks usually has a nonzero value.
bool are_zeros(std::span<const float> values) {
  constexpr std::size_t kBlock = 512;
  for (std::size_t begin = 0; begin < values.size(); begin += kBlock) {
    const std::size_t end = std::min(begin + kBlock, values.size());
    std::uint32_t bits = 0;
    for (std::size_t i = begin; i < end; ++i) bits |= std::bit_cast<std::uint32_t>(values[i]) << 1;
    if (bits != 0) return false;
  }
  return true;
}

}  // namespace

DeliveryGaps::DeliveryGaps(const std::vector<Bucket>& buckets) {
  std::size_t index = 0;
  for (const Bucket& bucket : buckets) {
    for (const TensorSlot& tensor : bucket.tensors) {
      const Gap gap = {.tensor = index++};
      if (bucket.codec.is_exact()) continue;
      tensors_.push_back({.offset = tensor.offset, .elements = tensor.elements(), .gap = gap});
    }
  }
}

void DeliveryGaps::add(std::span<const float> sums) {
  for (Watched& tensor : tensors_) {
    Gap& gap = tensor.gap;
    gap.now = are_zeros(sums.subspan(tensor.offset, tensor.elements)) ? gap.now + 1 : 0;
    gap.longest = std::max(gap.longest, gap.now);
  }
}

std::vector<DeliveryGaps::Gap> DeliveryGaps::take() {
  std::vector<Gap> gaps;
  for (Watched& tensor : tensors_) {
    if (tensor.gap.longest > 0) gaps.push_back(tensor.gap);
    tensor.gap.longest = tensor.gap.now;
  }
  return gaps;
}

}  // namespace dp
