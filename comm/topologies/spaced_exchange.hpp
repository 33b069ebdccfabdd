// Exchanges a bucket in every k-th step only, beginning with the first. In the other steps each
// rank adds its gradient to its residual, sends nothing, and delivers a sum of 0. In an exchange
// the residual is added to the gradient first, so this also works for ranks that do not encode
// (hierarchical). The bucket costs a k-th of the bytes; its gradients arrive (k - 1) / 2 steps late
// on average.
//
// Used for one-dimensional tensors at few bits; they would otherwise be a large part of all bytes.
//
// Host memory only. A gradient that is not finite is not added to the residual. Since all ranks
// must agree on the verdict, the rank reports it in the next exchange, and all ranks skip that
// step.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/exchange/exchange.hpp"

namespace dp {

// setup: the setup of `inner`; it has a residual. every: at least 1, the same on all ranks.
[[nodiscard]] std::unique_ptr<Exchange> make_spaced_exchange(const ExchangeSetup& setup,
                                                             std::unique_ptr<Exchange> inner,
                                                             std::uint64_t every);

}  // namespace dp
