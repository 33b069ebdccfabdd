// Random numbers for encoding one segment. They depend only on the segment's place in the run
// (EncodeContext) and on a value's index in the segment. Host and device give the same bits.
#pragma once

#include <cstdint>

#include "kernels/base/hd.hpp"
#include "kernels/base/random.hpp"
#include "kernels/codecs/codec.hpp"

namespace dp {

class Draws {
 public:
  explicit Draws(const EncodeContext& context) : Draws(key_of(context)) {}

  // 32 random bits at an index. A 32-bit hash (lowbias32 of C. Wellons' Hash Prospector) is applied
  // twice. Before each application, half of the segment's key is mixed in. Unlike 64-bit products,
  // this hash vectorises.
  DP_HD std::uint32_t bits(std::uint32_t index) const { return mix(mix(index ^ low_) + high_); }
  // Uniform in (0, 1): an odd multiple of 2^-24, so its mean is exactly a half.
  DP_HD float uniform(std::uint32_t index) const {
    // The upper 23 bits fit a signed integer, which every vector unit can convert to float.
    return static_cast<float>(static_cast<std::int32_t>(bits(index) >> 9)) * 0x1p-23f + 0x1p-24f;
  }

  // The 64 bits that the segment's numbers are derived from.
  [[nodiscard]] static std::uint64_t key_of(const EncodeContext& context) {
    return CounterRng(context.seed, RandomStream::codec, context.step,
                      std::uint64_t{context.bucket} << 32 | context.rank)
        .bits(context.offset);
  }

 private:
  explicit Draws(std::uint64_t key)
      : low_(static_cast<std::uint32_t>(key)), high_(static_cast<std::uint32_t>(key >> 32)) {}
  DP_HD static std::uint32_t mix(std::uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7FEB352Du;
    x = (x ^ (x >> 15)) * 0x846CA68Bu;
    return x ^ (x >> 16);
  }

  std::uint32_t low_, high_;
};

}  // namespace dp
