// CRC-32C (Castagnoli), as in iSCSI (RFC 3720, appendix B.4) and in TensorFlow's records.
#pragma once

#include <cstdint>
#include <string_view>

namespace dp {

[[nodiscard]] std::uint32_t crc32c(std::string_view bytes);

}  // namespace dp
