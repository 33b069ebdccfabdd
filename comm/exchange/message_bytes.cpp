#include "comm/exchange/message_bytes.hpp"

#include "kernels/base/error.hpp"

namespace dp {

std::uint64_t chunk_wire_bytes(const ExchangeShape& shape, std::size_t chunk, const Codec& codec) {
  std::uint64_t bytes = 0;
  for (std::size_t at = 0; at < shape.segments(); ++at) {
    const std::size_t n = shape.segment_size(chunk, at);
    if (n == 0) continue;
    const auto payload = codec.fixed_payload_bytes(n);
    DP_ASSERT(payload.has_value(), "{} has payloads of varying size", codec.spec().name);
    bytes += kMessageFrameBytes + *payload;
  }
  return bytes;
}

}  // namespace dp
