// The bytes that an exchange sends, for the formulas of topologies. message_header.hpp has the
// format of a message.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/exchange/exchange_plan.hpp"
#include "comm/exchange/message_header.hpp"
#include "kernels/codecs/codec.hpp"

namespace dp {

// The bytes of one rank's start notices.
[[nodiscard]] inline std::uint64_t notice_bytes(std::size_t ranks) {
  return kMessageFrameBytes * (ranks - 1);
}

// The bytes of frames and payloads of a chunk's segments, each counted once. For codecs of fixed
// payload size.
[[nodiscard]] std::uint64_t chunk_wire_bytes(const ExchangeShape& shape, std::size_t chunk,
                                             const Codec& codec);

}  // namespace dp
