// Adds DGC's momentum (dgc.hpp) to the exchange of a bucket. prepare() turns the gradient, with
// weight decay, into the velocity that is exchanged. When the sum is in place, the velocity becomes
// 0 where it was sent. The time for this counts as encode_s.
#pragma once

#include <memory>
#include <span>

#include "comm/dgc.hpp"
#include "comm/exchange.hpp"

namespace dp {

struct DgcExchangeSetup {
  ExchangeSetup setup;                     // that of the inner exchange
  std::unique_ptr<Exchange> inner;         // sends the bucket by top-k
  DgcMomentum* momentum = nullptr;         // of the whole gradient
  std::span<const float> parameters = {};  // the bucket's; none: without weight decay
  float weight_decay = 0.0f;               // of the sum; each rank adds 1/P of it
  // Whether the residual tells what this rank has sent; otherwise, what was delivered counts as
  // sent.
  bool masks_by_residual = true;
};

[[nodiscard]] std::unique_ptr<Exchange> make_dgc_exchange(DgcExchangeSetup setup);

}  // namespace dp
