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
//     s_r = a longer mean of g_r^2 (over kTimesAsLong / (1 - beta2) steps, or all until then)
//     u_r = m_r / (1 - beta1^t) / (sqrt(v_r / (1 - beta2^t) + c_r s_r) + epsilon)
//     parameter -= learning rate * sum over ranks of what was delivered of u_r
//
// Adam divides by the root mean square of g, but a rank knows only that of g_r. c_r s_r estimates
// what the others add to it. In a row of a tensor,
//
//     c_r = b_r O / R + k_r a_r
//
// where R is the row's mean squared norm on this rank and O the sum of R over the others. So a row
// of an embedding counts as often as the others have a gradient for it, however rarely this rank
// has one. a_r, 0 to 1, is the row's *activity*: the square of its mean norm over the mean of its
// squared norm; 1 if the gradient is as large in every step, and n/t if the row has one in n of t
// steps. b_r and k_r are two numbers for each tensor and rank, by which the estimate is right in
// the tensor's mean. b_r is 1, which holds where the ranks' gradients are noise (less if the mean
// asks for less), and k_r covers what they have in common, which only active rows can.
//
// Ranks compare their gradients (comparison, compare): they add two kinds of numbers.
//
//     rows       R of every row; after steps 1, 2, 4, 8 and 16, later after every kRowsEvery steps,
//                or kRowsEveryARank for each rank if these are more, since gathering takes each
//                rank as many bytes as there are ranks
//     sketches   (Alon, Matias, Szegedy 1996) of every tensor: kLanes sums of its values, with
//                random signs, whose squares add up to the square norm in the mean. Sketches of
//                parts add up to the sketch of the sum. After each of the first kFirstSteps steps,
//                later after every kLaterEvery.
//
// With one rank c_r is 0 and this is Adam. What is not finite stays as it is, so that the exchange
// reports it, and changes nothing here; nor does a tensor whose gradient is all zeros.
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
  static constexpr std::uint64_t kFirstSteps = 16, kLaterEvery = 8;     // of sketches
  static constexpr std::uint64_t kRowsEvery = 32, kRowsEveryARank = 4;  // of rows
  static constexpr double kTimesAsLong = 10.0;                          // as v_r's mean

  // `elements`: of the flat gradient. A bucket consists of whole tensors.
  AdamVelocity(std::size_t elements, std::span<const TensorSlot> tensors,
               const AdamVelocityOptions& options);

  void prepare(std::size_t begin, std::span<float> gradient) override;
  // Steps do not depend on the gradient's scale, which must therefore stay the same (factor 1).
  void scale(float factor) override;
  void list_state(StateVisitor& visitor) override;

  // This rank's numbers for the comparison before that step (counted from 0), the same step on all
  // ranks; empty if none comes before it. Ranks add these numbers and pass the sums to compare().
  [[nodiscard]] std::vector<float> comparison(std::uint64_t step) const;
  void compare(std::span<const float> sums, std::uint64_t step);
  [[nodiscard]] static bool compares_before(std::uint64_t step);
  // Whether rows are compared as well.
  [[nodiscard]] bool compares_rows_before(std::uint64_t step) const;

  // kLanes a tensor, of this rank's last gradient.
  [[nodiscard]] std::span<const float> sketches() const { return sketches_; }
  // c_r of a tensor's row.
  [[nodiscard]] double ratio(std::size_t tensor, std::size_t row) const;

 private:
  struct Tensor {
    std::size_t begin = 0;  // in the flat gradient
    std::size_t rows = 1, columns = 0;
    std::size_t first_row = 0;  // of all tensors' rows
  };
  struct Others {
    double of_rows = 0.0, of_active = 0.0;  // b_r and k_r
  };
  void step(std::size_t tensor, float* gradient);
  [[nodiscard]] Others others(std::size_t tensor) const;
  [[nodiscard]] double ratio_of(const Others& of_tensor, std::size_t row) const;
  [[nodiscard]] double activity(std::size_t row) const;
  [[nodiscard]] double long_share(double steps) const;

  AdamVelocityOptions options_;
  std::vector<Tensor> tensors_;
  std::vector<float> square_, long_square_;  // v_r and a longer mean; velocity_ is m_r
  // By row: the long means of its norm and of its squared norm (R), and O.
  std::vector<float> row_norms_, row_squares_, row_others_;
  // By tensor: the steps so far, the sketches, the means of the squares of g and of g_r, not yet
  // divided by 1 - beta2^t, and the steps that these means are of.
  std::vector<float> steps_, sketches_, sum_squares_, own_squares_, compared_steps_;
};

}  // namespace dp
