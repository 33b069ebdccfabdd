// The engine of all topologies: carries out a rank's list of messages (exchange_plan.hpp) over a
// transport (transport.hpp). What messages carry is the codec's (segment_coder.hpp).
//
// Order: a rank takes messages in the order of its list, so a receive never needs to ask which
// segment it has got, and additions are made in one order whatever the timing. It sends in the
// order of its list, too. What needs nothing from others is sent as soon as all earlier sends have
// begun, even while messages before it are still to come.
//
// Wire format of a message: a header of 16 bytes, then the payload.
//     u32 kind     0x44500001 a segment, 0x44500002 a start notice; + 0x100: some rank's input was
//                  not finite (travels with the segment to all ranks)
//     u32 step     lower 32 bits
//     u32 stream  (tags.hpp)
//     u32 number   2 x the segment's number (chunk after chunk), + 1 in a total; 0 in a notice
// A rank that starts a bucket tells all others with a *start notice*, a header alone: so waiting
// for a rank that has not begun can be told from waiting for the network.
//
// A segment that is not finite on some rank, or whose sum is more than the codec can carry, is told
// by a flag in the header; what is sent then is in segment_coder.hpp.
//
// Buffers: `window` for sends and 2 x window for receives, each of one message. A message that is
// sent on leaves from the buffer that it came into, which stays taken until the sends have ended;
// as at most `window` sends are under way, at least `window` receives are always posted or waiting
// to be handled.
//
// Failures: a message other than the one that is due, and a payload that no encoder writes, are
// Error(communication) that names the sender, the bucket and the step.
#pragma once

#include <memory>

#include "comm/exchange.hpp"
#include "comm/exchange_plan.hpp"

namespace dp {

inline constexpr std::size_t kMessageHeaderBytes = 16;

// Of one rank's start notices.
[[nodiscard]] inline std::uint64_t notice_bytes(std::size_t ranks) {
  return kMessageHeaderBytes * (ranks - 1);
}

// Headers and payloads of a chunk's segments, each once; with a codec of fixed payload size.
[[nodiscard]] std::uint64_t chunk_wire_bytes(const ExchangeShape& shape, std::size_t chunk,
                                             const Codec& codec);

// The shape of the bucket in `setup`, cut for all ranks.
[[nodiscard]] ExchangeShape shape_of(const ExchangeSetup& setup);

// Carries out this rank's plan. Groups of one rank and buckets of no floats exchange nothing.
[[nodiscard]] std::unique_ptr<Exchange> make_segment_exchange(const ExchangeSetup& setup,
                                                              ExchangePlan plan);

}  // namespace dp
