// Exchanges a bucket in every k-th step only, beginning with the first. In the other steps each
// rank adds its gradient to its residual, sends nothing, and delivers a sum of 0. Before an
// exchange, the residual is moved into the gradient. Spacing therefore also works on ranks that do
// not encode (topology "hierarchical"). The bucket costs a k-th of the bytes, and its gradients
// arrive (k-1)/2 steps late on average.
//
// Used for one-dimensional tensors if the other tensors are sent with few bits. The one-dimensional
// tensors would otherwise be a large part of all bytes.
//
// Host memory only. A gradient that is not finite is not added to the residual. All ranks must
// agree on which steps to skip. Therefore the rank reports such a gradient in the next exchange,
// and all ranks skip the step of that exchange.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/exchange/exchange.hpp"

namespace dp {

// `setup` is the setup of `inner` and must have a residual. `every` is at least 1, and the same on
// all ranks.
[[nodiscard]] std::unique_ptr<Exchange> make_spaced_exchange(const ExchangeSetup& setup,
                                                             std::unique_ptr<Exchange> inner,
                                                             std::uint64_t every);

}  // namespace dp
