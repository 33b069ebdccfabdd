// Puts a simulated slow link in front of another transport: delays a rank's messages for
// --throttle.
//
// A sent message is handed to the other transport when the rank's link (link_model.hpp) has carried
// it. A received message is reported when the link has carried it. Messages of all channels of a
// rank leave in the order of send(), as the channels share the link. Notices are not delayed.
// Messages have the same bytes as on the other transport.
//
// Messages on the link move only when the channel is polled. Poll a channel until its last transfer
// has ended, even if this rank no longer needs its messages. Errors come from the other transport.
#pragma once

#include <functional>

#include "comm/mpi/link_model.hpp"
#include "comm/mpi/transport.hpp"

namespace dp {

class ThrottledTransport final : public Transport {
 public:
  // `other` outlives this transport. `now_s` is a monotonic clock; empty: the host's clock.
  ThrottledTransport(Transport& other, double bits_per_s, std::function<double()> now_s = {});

  [[nodiscard]] std::string_view host(int rank) const override { return other_.host(rank); }
  [[nodiscard]] std::unique_ptr<Channel> open(std::size_t slots) override;

 private:
  Transport& other_;
  LinkModel link_;
  std::function<double()> now_s_;
};

}  // namespace dp
