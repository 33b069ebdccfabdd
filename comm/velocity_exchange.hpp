// Adds momentum (velocity.hpp) to the exchange of a bucket. prepare() turns the gradient, with
// weight decay, into the velocity that is exchanged. When the sum is in place, the velocity may
// become 0 where it was sent. The time for this counts as encode_s.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/exchange.hpp"
#include "comm/velocity.hpp"

namespace dp {

// Weight decay of the sum of a tensor, whose parameters these are; each rank adds 1/P of it.
struct TensorDecay {
  std::size_t begin = 0;  // in the bucket
  std::span<const float> parameters = {};
  float weight_decay = 0.0f;
};

// Where the velocity becomes 0: nowhere, where this rank's residual is 0, or where something was
// delivered.
enum class VelocityMask : std::uint8_t { none, by_residual, by_delivered };

struct VelocityExchangeSetup {
  ExchangeSetup setup;                // that of the inner exchange
  std::unique_ptr<Exchange> inner;    // sends the bucket
  LocalVelocity* momentum = nullptr;  // of the whole gradient
  std::vector<TensorDecay> decays = {};
  VelocityMask mask = VelocityMask::by_residual;
};

[[nodiscard]] std::unique_ptr<Exchange> make_velocity_exchange(VelocityExchangeSetup setup);

}  // namespace dp
