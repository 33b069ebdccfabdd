// CRC-32C (Castagnoli), as in iSCSI (RFC 3720, appendix B.4) and in TensorFlow's records. It
// detects every change of up to 32 consecutive bits, and all but one in 2^32 of the other changes.
//
// Uses the processor's CRC instruction if there is one (SSE4.2; ARMv8 with CRC), and tables
// otherwise. Both give the same value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace dp {

[[nodiscard]] std::uint32_t crc32c(std::span<const std::byte> bytes);

namespace crc32c_ways {

// The implementations, for tests and benches. crc32c() uses the last implementation in all().
struct Way {
  const char* name;
  std::uint32_t (*compute)(std::span<const std::byte> bytes);
};
// The implementations that this processor supports.
[[nodiscard]] std::span<const Way> all();

}  // namespace crc32c_ways

}  // namespace dp
