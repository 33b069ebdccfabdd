// PowerSGD: a bucket's matrices are exchanged as two thin factors each (Vogels, Karimireddy, Jaggi:
// PowerSGD, 2019, algorithms 1 and 2).
//
// M_k is rank k's gradient plus its residual, a matrix of rows x columns; r is the codec's `rank=`.
// Every rank holds the same Q, columns x r, from the step before (at first normal numbers). A step:
//
//     P   = sum_k M_k Q         all-reduced in fp32 by an exchange of the run's topology
//     P   = orthonormalise(P)   every rank by itself: all hold the same bits
//     Q_k = M_k^T P
//     Q   = sum_k Q_k           all-reduced in the same way
//     gradient   = P Q^T        on all ranks the same bits
//     residual_k = M_k - P Q_k^T
//
// Conservation: sum_k residual_k = sum_k M_k - P Q^T, up to rounding, whatever P is; so the inputs'
// sum is what is delivered and what residuals gain. (The paper subtracts the mean of what was
// delivered instead of P Q_k^T. Both give the same sum, and only the sum comes back into P and Q;
// here residuals also stay small where ranks disagree.)
// Contraction: P's columns are orthonormal, hence norm(residual_k) <= norm(M_k), and
// norm(sum M - P Q^T)^2 = norm(sum M)^2 - norm(Q)^2. It is strict wherever Q is not zero; there is
// no c < 1 for all matrices, but Q follows the largest singular vectors of what gathers in the
// residuals (power iteration).
//
// Between steps each column of Q is scaled by a power of two to a largest value in [1, 2), which
// changes neither P's span nor a rounding; a column that has become zero is drawn anew, or it would
// stay zero.
//
// A tensor whose factors would not be smaller, r (rows + columns) >= rows * columns, is summed as
// it is, in fp32, together with the P factors.
//
// Wire: two exchanges of fp32 values, each with the messages and the bytes of the topology's
// header. The *first* carries, tensor after tensor, its P factor, column after column, or the
// tensor itself; the *second* the Q factors, column after column. They have a
// message stream each, the exchange's first and the one after it.
//     wire bytes = wire bytes of `first_floats` + wire bytes of `second_floats` (PowerSgdPlan)
// Cost: three passes over gradient and residual and 8 r flops a value; only the last one writes.
// Memory beyond the residual: about 3 x the factors.
//
// Input that is not finite on any rank: all deliver zeros and are told, residuals and Q stay as
// they were. A group of one rank exchanges nothing and leaves the gradient as it is.
//
// Host memory only. Failures are those of the inner exchanges.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "comm/buckets.hpp"
#include "comm/exchange.hpp"

namespace dp {

// How a bucket's tensors go. Pure arithmetic, the same on all ranks.
struct PowerSgdPlan {
  struct Tensor {
    std::size_t begin = 0;  // in the bucket
    std::size_t rows = 0, columns = 0;
    bool is_factored = false;
    std::size_t first = 0;   // of P, or of the tensor itself, in the first exchange
    std::size_t second = 0;  // of Q, in the second
  };
  std::vector<Tensor> tensors;
  std::size_t first_floats = 0, second_floats = 0;
};
// `tensors` follow each other without gaps; the first begins at the bucket's begin.
[[nodiscard]] PowerSgdPlan plan_powersgd(std::span<const TensorSlot> tensors, std::size_t rank);

struct PowerSgdSetup {
  // The bucket. `codec` is a lossless one of the host (none): that of the inner exchanges. A null
  // residual: what is dropped is lost.
  ExchangeSetup exchange;
  std::span<const TensorSlot> tensors;  // the bucket's; needed at construction alone
  std::size_t rank = 4;
  // The run's topology: makes the two inner exchanges, which own nothing of this struct.
  std::function<std::unique_ptr<Exchange>(const ExchangeSetup&)> make_inner;
};

[[nodiscard]] std::unique_ptr<Exchange> make_powersgd(const PowerSgdSetup& setup);

}  // namespace dp
