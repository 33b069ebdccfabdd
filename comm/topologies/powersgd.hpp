// PowerSGD exchanges each matrix of a bucket as two thin factors (Vogels, Karimireddy, Jaggi:
// PowerSGD, 2019, algorithms 1 and 2).
//
// M_k is rank k's gradient plus its residual, a matrix of rows x columns; r is the codec's `rank=`.
// Every rank holds the same Q, columns x r, from the step before (in the first step, random normal
// numbers). A step:
//
//     P   = sum_k M_k Q         all-reduced in fp32 by an exchange of the run's topology
//     P   = orthonormalise(P)   every rank by itself: all hold the same bits
//     Q_k = M_k^T P
//     Q   = sum_k Q_k           all-reduced in the same way
//     gradient   = P Q^T        on all ranks the same bits
//     residual_k = M_k - P Q_k^T
//
// Conservation: sum_k residual_k = sum_k M_k - P Q^T, up to rounding, for every P. Hence the sum of
// inputs equals the delivered sum plus the growth of the residuals. (The paper subtracts the
// delivered mean instead of P Q_k^T. Both give the same sum of residuals, and only this sum matters
// for later P and Q. With P Q_k^T, residuals also stay small when ranks disagree.) Contraction: P's
// columns are orthonormal, hence norm(residual_k) <= norm(M_k), and norm(sum M - P Q^T)^2 =
// norm(sum M)^2 - norm(Q)^2. The contraction is strict if Q is not zero. No contraction factor
// below 1 holds for all matrices, but Q follows the largest singular vectors of the accumulated
// residuals (power iteration).
//
// Between steps each column of Q is scaled by a power of two so that its largest magnitude is in
// [1, 2). This changes neither the span of P nor any rounding. A column that has become zero is
// drawn anew, because it would stay zero.
//
// A tensor whose factors would not be smaller than itself, r (rows + columns) >= rows * columns, is
// summed in fp32 without factors, together with the P factors.
//
// Wire: two exchanges of fp32 values over the topology, with the messages and bytes that the
// topology's header describes. The *first* carries for each tensor its P factor, column after
// column, or the tensor itself. The *second* carries the Q factors, column after column. Each has
// its own message stream: the exchange's first stream and the one after it.
//     wire bytes = wire bytes of `first_floats` + wire bytes of `second_floats` (PowerSgdPlan)
// Cost: three passes over gradient and residual (only the last pass writes), and 8 r flops per
// value. Memory beyond the residual: about 3 x the factors.
//
// If the input of any rank is not finite, all ranks deliver zeros and report it; residuals and Q do
// not change. A single rank exchanges nothing and leaves the gradient unchanged.
//
// Host memory only. It fails only if an inner exchange fails.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "comm/exchange/exchange.hpp"
#include "comm/topologies/buckets.hpp"
#include "comm/topologies/topology.hpp"

namespace dp {

// The places of a bucket's tensors in the two exchanges: pure arithmetic, with the same result on
// all ranks.
struct PowerSgdPlan {
  struct Tensor {
    std::size_t begin = 0;  // in the bucket
    std::size_t rows = 0, columns = 0;
    bool is_factored = false;
    std::size_t first = 0;   // place of P, or of the tensor itself, in the first exchange
    std::size_t second = 0;  // place of Q in the second exchange
  };
  std::vector<Tensor> tensors;
  std::size_t first_floats = 0, second_floats = 0;
};
// `tensors` follow each other without gaps; the first begins at the bucket's begin.
[[nodiscard]] PowerSgdPlan plan_powersgd(std::span<const TensorSlot> tensors,
                                         std::size_t factor_rank);

struct PowerSgdSetup {
  // The bucket. Its codec is "none" on host memory; the inner exchanges use this codec. If the
  // residual is null, dropped values are lost.
  ExchangeSetup exchange;
  std::span<const TensorSlot> tensors;  // the bucket's; needed only during construction
  std::size_t factor_rank = 4;
  const Topology* topology = nullptr;  // of the two inner exchanges
};

[[nodiscard]] std::unique_ptr<Exchange> make_powersgd(const PowerSgdSetup& setup);

}  // namespace dp
