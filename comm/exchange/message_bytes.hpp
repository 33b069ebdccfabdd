// The bytes of an exchange's messages beside their payloads (segment_exchange.hpp has the format).
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/exchange/exchange_plan.hpp"
#include "comm/mpi/seal.hpp"
#include "kernels/codecs/codec.hpp"

namespace dp {

inline constexpr std::size_t kMessageHeaderBytes = 16;
// Of every message: its header and its seal.
inline constexpr std::size_t kMessageFrameBytes = kMessageHeaderBytes + kSealBytes;

// The bytes of one rank's start notices.
[[nodiscard]] inline std::uint64_t notice_bytes(std::size_t ranks) {
  return kMessageFrameBytes * (ranks - 1);
}

// The bytes of frames and payloads of a chunk's segments, each counted once. For codecs of fixed
// payload size.
[[nodiscard]] std::uint64_t chunk_wire_bytes(const ExchangeShape& shape, std::size_t chunk,
                                             const Codec& codec);

}  // namespace dp
