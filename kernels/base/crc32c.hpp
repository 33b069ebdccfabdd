// CRC-32C (Castagnoli), as in iSCSI (RFC 3720, appendix B.4) and in TensorFlow's records. It finds
// every change of up to 32 bits in a row, and all others but one in 2^32.
//
// The processor's instruction for it computes it where there is one (SSE4.2; ARMv8 with CRC), and
// tables where there is none. The value is the same everywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace dp {

[[nodiscard]] std::uint32_t crc32c(std::span<const std::byte> bytes);

namespace crc32c_ways {

// The ways to compute it, for tests and benches. crc32c() takes the last one that this processor
// has.
struct Way {
  const char* name;
  std::uint32_t (*compute)(std::span<const std::byte> bytes);
};
// Those that this processor has.
[[nodiscard]] std::span<const Way> all();

}  // namespace crc32c_ways

}  // namespace dp
