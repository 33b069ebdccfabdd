// A slow link before another transport, which delays a rank's messages for --throttle.
//
// A message that a rank sends is handed over when its link (link_model.hpp) has carried it. A
// message that it receives is reported when the link has carried it. Messages of all channels of a
// rank leave in the order of send(), as the channels share the link. Notices pass at once. Messages
// have the same bytes as on the other transport.
//
// Messages on the link move only when the channel is polled. So a channel must be polled until its
// last transfer has ended, even if nobody on this rank waits for its messages any more. Errors are
// those of the other transport.
#pragma once

#include <functional>

#include "comm/mpi/link_model.hpp"
#include "comm/mpi/transport.hpp"

namespace dp {

class ThrottledTransport final : public Transport {
 public:
  // `other` outlives this transport. `now_s` is a clock that does not go backwards; empty: the
  // host's clock.
  ThrottledTransport(Transport& other, double bits_per_s, std::function<double()> now_s = {});

  [[nodiscard]] std::string_view host(int rank) const override { return other_.host(rank); }
  [[nodiscard]] std::unique_ptr<Channel> open(std::size_t slots) override;

 private:
  Transport& other_;
  LinkModel link_;
  std::function<double()> now_s_;
};

}  // namespace dp
