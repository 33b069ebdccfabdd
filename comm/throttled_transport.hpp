// A slow link between one rank and another transport: what --throttle delays messages by.
//
// What a rank sends is handed over when its link (link_model.hpp) has carried it; what it receives
// is told when the link has carried that. Messages leave in the order of send(), over all channels
// of the rank, as they share the link. Notices pass at once. The bytes are the other transport's,
// unchanged.
//
// Messages that the link still carries move only when the channel is polled: a channel is polled
// until its last transfer has ended, also where nobody waits for its messages any more on this
// rank. Errors are the other transport's.
#pragma once

#include <functional>

#include "comm/link_model.hpp"
#include "comm/transport.hpp"

namespace dp {

class ThrottledTransport final : public Transport {
 public:
  // `other` outlives this transport. `now_s` is a clock that does not go backwards; none: the
  // host's.
  ThrottledTransport(Transport& other, double bits_per_s, std::function<double()> now_s = {});

  [[nodiscard]] std::unique_ptr<Channel> open(std::size_t slots) override;

 private:
  Transport& other_;
  LinkModel link_;
  std::function<double()> now_s_;
};

}  // namespace dp
