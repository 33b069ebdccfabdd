// Computes the largest number of bits a value with which the exchange hides behind the backward
// pass. Pure arithmetic, without clock or network.
//
// Model: a host's port carries `goodput_bytes_per_s` in each direction, and buckets go over it one
// after the other, in their order. Bucket j begins when its own and all earlier buckets' gradients
// are ready, and when the port is free. At b bits a value the bucket puts
//
//     w_j(b) = wire_factor x (elements_j x b / 8 + fixed_bytes_j)
//
// bytes on the port, both legs together (partial sums and totals). The port is busy without a gap
// from the readiness r_i of some bucket i until the end, so the last byte has left at
//
//     max over i of (r_i + (sum of w_j(b) for j >= i) / goodput),
//     r_i = max of ready_s over the buckets up to i.
//
// The last byte must have left `hops` latencies before the deadline, because it arrives that much
// later. The deadline is the end of backward plus the slack. Each i gives one limit of b; the least
// of them is the result.
//
// If the fixed bytes and the latencies miss the deadline even at 0 bits, fewer bits do not help.
// The deadline is then the end of the exchange at 0 bits, plus the slack.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

namespace dp {

struct BudgetBucket {
  std::size_t elements = 0;
  double ready_s = 0.0;  // when its gradients are final, on the clock of backward_end_s
  // Payload bytes that do not depend on the bits a value. `wire_factor` accounts for the two legs,
  // so these bytes are counted once here.
  double fixed_bytes = 0.0;
};

struct RateBudgetSetup {
  std::span<const BudgetBucket> buckets;  // in the order in which they are exchanged
  double backward_end_s = 0.0;
  double slack_s = 0.0;              // tolerated exposed time, for example 3 % of the step
  double goodput_bytes_per_s = 0.0;  // of a host's port in one direction
  double latency_s = 0.0;            // of one message, one way
  std::size_t hops = 2;              // latencies one after the other (Topology::hops); direct: 2
  double wire_factor = 0.0;          // Topology::wire_factor of the rank
};

struct RateBudget {
  // The largest number of bits a value, the same for all buckets, with which the exchange ends in
  // time. Infinity if nothing limits it (one rank, or no values).
  double bits_per_value = 0.0;
  bool fits = true;  // false: the exchange is too late even at 0 bits
  // When this bucket is ready, the port becomes busy and stays busy until the end, so this bucket
  // and the later ones limit the bits. Empty if nothing limits them.
  std::optional<std::size_t> binding = std::nullopt;
};

// Asserts that the goodput is positive if there is anything to send.
[[nodiscard]] RateBudget hidden_rate(const RateBudgetSetup& setup);

}  // namespace dp
