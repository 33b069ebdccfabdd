// The engine of all topologies: it carries out a rank's list of messages (exchange_plan.hpp) over a
// transport (transport.hpp). The codec writes and reads the messages' payloads (segment_coder.hpp).
//
// Order: a rank handles messages in the order of its list. Hence it always knows which segment it
// has received, and the order of additions does not depend on timing. It also sends in the order of
// its list. A message that needs nothing from others is sent as soon as all earlier sends have
// begun, even if messages before it in the list have not arrived yet.
//
// message_header.hpp has the wire format of a message. A flag in its header marks a segment that is
// not finite on some rank, or whose sum exceeds the codec's range (segment_coder.hpp says what is
// sent then). Another flag means that some rank wishes to stop: a rank that wishes to stop
// (ExchangeSetup::stop_wish) or has received this flag sets it in every header that it writes. If
// ExchangeSetup::rate is set, segments carry rate notes (rate_notes.hpp).
//
// message_slots.hpp has the buffers. Every message is checked before it is used or forwarded; a
// forwarded message keeps its seal.
//
// Failures: a damaged message, an unexpected message, and a payload that no encoder writes throw
// Error(communication), which names the sender, the bucket and the step. A message of another step
// throws Error(data): ranks have loaded states of different steps.
#pragma once

#include <memory>

#include "comm/exchange/exchange.hpp"
#include "comm/exchange/exchange_plan.hpp"
#include "comm/exchange/message_header.hpp"

namespace dp {

// The shape of the bucket in `setup`, with a chunk for each rank.
[[nodiscard]] inline ExchangeShape shape_of(const ExchangeSetup& setup) {
  return {.elements = setup.gradient.size(),
          .ranks = static_cast<std::size_t>(setup.transport->size()),
          .segment = setup.segment,
          .turn = setup.bucket,
          .has_brief_messages = setup.has_brief_messages,
          .owner_weights = setup.owner_weights};
}

// Carries out this rank's plan. Groups of one rank and buckets of no floats exchange nothing.
[[nodiscard]] std::unique_ptr<Exchange> make_segment_exchange(const ExchangeSetup& setup,
                                                              ExchangePlan plan);

}  // namespace dp
