// Adds momentum (velocity.hpp) to the exchange of a bucket. prepare() replaces the gradient, which
// already includes weight decay, by the velocity to exchange. When the sum is in place, the
// velocity is masked. The times of prepare() and of masking count as encode_s.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/exchange/exchange.hpp"
#include "comm/topologies/velocity.hpp"

namespace dp {

// The values of the velocity that become 0 after an exchange: none, the values whose residual on
// this rank is 0, or the values for which something was delivered.
enum class VelocityMask : std::uint8_t { none, by_residual, by_delivered };

struct VelocityExchangeSetup {
  ExchangeSetup setup;                // the inner exchange's
  std::unique_ptr<Exchange> inner;    // sends the bucket
  LocalMomentum* velocity = nullptr;  // of the whole gradient
  VelocityMask mask = VelocityMask::by_residual;
};

[[nodiscard]] std::unique_ptr<Exchange> make_velocity_exchange(VelocityExchangeSetup setup);

}  // namespace dp
