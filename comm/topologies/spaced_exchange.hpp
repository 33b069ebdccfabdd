// Exchanges a bucket in every k-th step only. In the steps between, the ranks' gradients gather in
// their residuals, and the sum is 0: nothing is sent, and the optimiser sees no gradient. So what
// is sent costs a k-th, and is (k - 1) / 2 steps old in the mean. The first step exchanges. Before
// an exchange what has gathered goes back into the gradient, so that ranks take part that encode
// nothing.
//
// For small tensors beside matrices of which few bits are sent, where the former would be a large
// part of all bytes.
//
// Host memory only. Values that are not finite are told of with the next exchange, whose step is
// then skipped on all ranks; they do not go into the residual.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/exchange/exchange.hpp"

namespace dp {

// `setup` is that of the inner exchange, with a residual; every >= 1, the same on all ranks.
[[nodiscard]] std::unique_ptr<Exchange> make_spaced_exchange(const ExchangeSetup& setup,
                                                             std::unique_ptr<Exchange> inner,
                                                             std::uint64_t every);

}  // namespace dp
