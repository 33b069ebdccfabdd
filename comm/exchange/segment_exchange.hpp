// The engine of all topologies: it carries out a rank's list of messages (exchange_plan.hpp) over a
// transport (transport.hpp). The codec writes and reads what messages carry (segment_coder.hpp).
//
// Order: a rank handles messages in the order of its list, so it always knows which segment it has
// received, and additions have the same order for every timing. It also sends in the order of its
// list. A message that needs nothing from others is sent as soon as all earlier sends have begun,
// even if messages before it in the list have not come yet.
//
// Wire format of a message: a header of 16 bytes, the payload, a seal of 4 bytes (seal.hpp).
//     u32 kind     0x44500001 a segment, 0x44500002 a start notice; + 0x100: some rank's input was
//                  not finite; + 0x200: some rank wishes to stop
//     u32 step     lower 32 bits
//     u32 stream  (tags.hpp)
//     u32 number   2 x the segment's number (chunk after chunk), + 1 in a total; 0 in a notice
// A rank that starts a bucket tells all others by a *start notice*, which has no payload. So a
// rank knows whether it waits for a rank that has not begun or for the network.
//
// A flag in the header marks a segment that is not finite on some rank, or whose sum is more than
// the codec can carry. segment_coder.hpp says what is sent then.
//
// With ExchangeSetup::rate a rate note of 8 bytes (rate_control.hpp) stands between header and
// payload of a segment. The note of a partial sum counts it and those that are in it; that of a
// total is complete.
//
// Another flag says that some rank wishes to stop (ExchangeSetup::stop_wish). A rank that wishes
// it, or has got it, puts it into every header that it writes. Both flags are set in the header of
// a segment's total if they were in one of its partial sums, and all ranks get the same totals. So
// at the end of the exchange all of them know the same, without a message more.
//
// Buffers: `window` for sends and 2 x window for receives, each for one message. A message that is
// forwarded leaves from the buffer into which it came; this buffer is not free until the sends have
// ended. As at most `window` sends are under way, at least `window` receives are always posted or
// waiting to be handled.
//
// A message is checked first, and before it is forwarded; a forwarded message keeps its seal.
//
// Failures: a damaged message, one other than the expected one, and a payload that no encoder
// writes are Error(communication), which names the sender, the bucket and the step.
#pragma once

#include <memory>

#include "comm/exchange/exchange.hpp"
#include "comm/exchange/exchange_plan.hpp"
#include "comm/exchange/message_bytes.hpp"

namespace dp {

// The shape of the bucket in `setup`, divided for all ranks.
[[nodiscard]] inline ExchangeShape shape_of(const ExchangeSetup& setup) {
  return {.elements = setup.gradient.size(),
          .ranks = static_cast<std::size_t>(setup.transport->size()),
          .segment = setup.segment,
          .turn = setup.bucket};
}

// Carries out this rank's plan. Groups of one rank and buckets of no floats exchange nothing.
[[nodiscard]] std::unique_ptr<Exchange> make_segment_exchange(const ExchangeSetup& setup,
                                                              ExchangePlan plan);

}  // namespace dp
