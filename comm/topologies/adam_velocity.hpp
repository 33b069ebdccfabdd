// Makes Adam's step before the exchange, for codecs that deliver late (velocity= with --optimizer
// adam or adamw).
//
// A codec with few bits accumulates a parameter's gradient in the residual and delivers it in rare
// lumps. If Adam received these lumps, it would divide each lump by the lump's own size: the rarer
// a parameter's lumps, the less the parameter would move. Therefore each rank computes Adam's step
// from its own gradient and exchanges the step. A lump of k steps then moves a parameter as far as
// the k steps would have, and the residual is in units of the parameter's update, for rare and
// frequent values alike.
//
//     m_r = beta1 m_r + (1 - beta1) g_r           g_r: this rank's part of the gradient g = sum g_r
//     v_r = beta2 v_r + (1 - beta2) g_r^2
//     s_r = a longer mean of g_r^2 (over kTimesAsLong / (1 - beta2) steps, or all if fewer)
//     u_r = m_r / (1 - beta1^t) / (sqrt(v_r / (1 - beta2^t) + c_r s_r) + epsilon)
//     parameter -= learning rate * sum over ranks of the delivered part of u_r
//
// Adam divides by the root mean square of g, but a rank knows only the root mean square of g_r. c_r
// s_r estimates the other ranks' part. In a row of a tensor,
//
//     c_r = b_r O / R + k_r a_r
//
// where R is the row's mean squared norm on this rank, and O is the sum of R over the other ranks.
// Hence the estimate for a row of an embedding reflects how often the other ranks have a gradient
// for the row, even if this rank rarely has one. a_r, 0 to 1, is the row's *activity*: (mean
// norm)^2 / mean squared norm. It is 1 if the gradient is equally large in every step, and n/t if
// the row has a gradient in n of t steps. b_r and k_r are two numbers for each tensor and rank,
// chosen so that the estimate is right for the tensor's mean. b_r is 1, which is right for
// independent noise on the ranks. It is less if 1 would make the estimate too large for the tensor.
// k_r covers the part that the ranks' gradients have in common. Only active rows can have such a
// part.
//
// To compare their gradients (comparison() and compare()), the ranks add up two kinds of numbers.
//
//     rows       R of every row. Compared after steps 1, 2, 4, 8 and 16, and later after every
//                kRowsEvery or kRowsEveryARank x ranks steps, whichever is more: with more ranks,
//                a gather costs each rank more bytes
//     sketches   (Alon, Matias, Szegedy 1996) of every tensor: kLanes sums of its values with
//                random signs. On average, the squares of these sums add up to the squared norm.
//                The sketches of the ranks' gradients add up to the sketch of the sum. Compared
//                after each of the first kFirstSteps steps, later after every kLaterEvery steps
//
// With one rank, c_r is 0 and u_r is Adam's step. If a tensor's gradient has values that are not
// finite, it passes unchanged, so that the exchange reports them, and the moments stay the same.
// The moments also stay the same if the tensor's gradient is all zeros.
//
// Host memory only. One thread at a time, as in velocity.hpp. Nothing fails.
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
  // the length of s_r's mean, as a multiple of v_r's
  static constexpr double kTimesAsLong = 10.0;

  // `elements`: the size of the flat gradient. Buckets consist of whole tensors.
  AdamVelocity(std::size_t elements, std::span<const TensorSlot> tensors,
               const AdamVelocityOptions& options);

  void prepare(std::size_t begin, std::span<float> gradient) override;
  // Adam's steps do not depend on the gradient's scale, so only factor 1 is allowed.
  void scale(float factor) override;
  void list_state(StateVisitor& visitor) override;

  // This rank's numbers for the comparison before `step`, which counts from 0 and is the same on
  // all ranks. Empty if no comparison precedes that step. Add the numbers over ranks and pass the
  // sums to compare().
  [[nodiscard]] std::vector<float> comparison(std::uint64_t step) const;
  void compare(std::span<const float> sums, std::uint64_t step);
  [[nodiscard]] static bool compares_before(std::uint64_t step);
  // Whether the ranks also compare single rows of tensors, and not only whole tensors.
  [[nodiscard]] bool compares_rows_before(std::uint64_t step) const;

  // kLanes numbers for each tensor, from this rank's last gradient.
  [[nodiscard]] std::span<const float> sketches() const { return sketches_; }
  // c_r of a tensor's row.
  [[nodiscard]] double ratio(std::size_t tensor, std::size_t row) const;

 private:
  struct Tensor {
    std::size_t begin = 0;  // in the flat gradient
    std::size_t rows = 1, columns = 0;
    std::size_t first_row = 0;  // index among all tensors' rows
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
  std::vector<float> square_, long_square_;  // v_r and s_r; velocity() is m_r
  // By row: the long means of the norm and of the squared norm (R), and O.
  std::vector<float> row_norms_, row_squares_, row_others_;
  // By tensor: the number of steps so far, the sketches, the means of the squares of g and of g_r
  // (not yet divided by 1 - beta2^t), and the number of steps in these means.
  std::vector<float> steps_, sketches_, sum_squares_, own_squares_, compared_steps_;
};

}  // namespace dp
