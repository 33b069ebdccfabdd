// Adds momentum (velocity.hpp) to the exchange of a bucket. prepare() turns the gradient, which has
// weight decay already, into the velocity that is exchanged. When the sum is in place, the velocity
// may become 0 where it was sent. The time for this counts as encode_s.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/exchange/exchange.hpp"
#include "comm/topologies/velocity.hpp"

namespace dp {

// Where the velocity becomes 0: nowhere, where this rank's residual is 0, or where something was
// delivered.
enum class VelocityMask : std::uint8_t { none, by_residual, by_delivered };

struct VelocityExchangeSetup {
  ExchangeSetup setup;                // that of the inner exchange
  std::unique_ptr<Exchange> inner;    // sends the bucket
  LocalMomentum* velocity = nullptr;  // of the whole gradient
  VelocityMask mask = VelocityMask::by_residual;
};

[[nodiscard]] std::unique_ptr<Exchange> make_velocity_exchange(VelocityExchangeSetup setup);

}  // namespace dp
