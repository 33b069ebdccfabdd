// Adam's step before the exchange, for codecs that deliver late (velocity= with --optimizer adam or
// adamw).
//
// A codec with few bits gathers a parameter's gradient in the residual and delivers it in rare
// lumps. If Adam gets these, it divides each by its own size, so a parameter moves far less than it
// should, the rarer the slower. So each rank makes Adam's step of its own gradient and exchanges
// that instead: a lump of k steps then moves a parameter as far as k steps would have, and the
// residual is in units of the update, which are the same for rare and frequent values.
//
//     m_r = beta1 m_r + (1 - beta1) g_r           g_r: this rank's part of the gradient g = sum g_r
//     v_r = beta2 v_r + (1 - beta2) g_r^2
//     u_r = m_r / (1 - beta1^t) / (sqrt(c_r v_r / (1 - beta2^t)) + epsilon)
//     parameter -= learning rate * sum over ranks of what was delivered of u_r
//
// Adam divides by the root mean square of g, but a rank knows only that of g_r. c_r is the ratio of
// both, one number for each tensor and rank: the mean square of g over that of g_r. It is P^2 where
// all P ranks have the same gradient, P where their gradients are noise, and differs between ranks
// with different shares of the batch. Both mean squares come from *sketches* (Alon, Matias,
// Szegedy 1996): kLanes sums of a tensor's values with random signs, whose squares add up to the
// tensor's square norm in the mean. Sketches of parts add up to the sketch of the sum, so ranks add
// kLanes numbers a tensor: after each of the first steps, later after every few.
//
// With one rank c_r is 1 and this is Adam. What is not finite stays as it is, so that the exchange
// reports it, and changes nothing here.
//
// Host memory. One thread at a time, as in velocity.hpp. Nothing fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/topologies/buckets.hpp"
#include "comm/topologies/velocity.hpp"
#include "kernels/base/state.hpp"

namespace dp {

struct AdamVelocityOptions {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  std::size_t ranks = 1;
};

class AdamVelocity final : public LocalMomentum {
 public:
  static constexpr std::size_t kLanes = 16;
  static constexpr std::uint64_t kFirstSteps = 16, kLaterEvery = 8;  // comparisons

  // `elements`: of the flat gradient. A bucket consists of whole tensors.
  AdamVelocity(std::size_t elements, std::span<const TensorSlot> tensors,
               const AdamVelocityOptions& options);

  void prepare(std::size_t begin, std::span<float> gradient) override;
  // Steps do not depend on the gradient's scale, which must therefore stay the same (factor 1).
  void scale(float factor) override;
  void list_state(StateVisitor& visitor) override;

  // Whether ranks add their sketches before this step (counted from 0).
  [[nodiscard]] static bool compares_before(std::uint64_t step);
  // The sketches of this rank's last gradient, kLanes a tensor; and what they are over all ranks,
  // `steps` after the last call.
  [[nodiscard]] std::span<const float> sketches() const { return sketches_; }
  void compare(std::span<const double> sums, std::uint64_t steps);

  // c_r of a tensor.
  [[nodiscard]] double ratio(std::size_t tensor) const;

 private:
  struct Tensor {
    std::size_t begin = 0, size = 0;  // in the flat gradient
  };
  void step(std::size_t tensor, float* gradient);

  AdamVelocityOptions options_;
  std::vector<Tensor> tensors_;
  std::vector<float> square_;  // v_r; velocity_ is m_r
  // By tensor: the steps so far, the sketches, and the mean squares of both gradients, not yet
  // divided by 1 - beta2^t, which is the same in both.
  std::vector<float> steps_, sketches_, sum_squares_, own_squares_;
};

}  // namespace dp
