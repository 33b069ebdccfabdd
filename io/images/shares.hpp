// How the ranks divide the images of a step (--shares).
//
// Even shares are interleaved: rank r of P takes images r, r + P, r + 2 P, ... of a step, so the
// ranks' counts differ by at most one.
//
// Uneven shares are blocks. With weights w, rank r's block begins at image floor(L (w_0 + ... +
// w_{r-1}) / W) and ends where the next rank's block begins. L is the number of images in the step,
// W the sum of the weights. A step of W images is thus divided exactly by the weights. The
// arithmetic is exact, so all machines get the same division.
//
// With gradient accumulation, a rank computes its share in `parts` parts. Even shares: part j of
// rank r holds the images that rank j P + r would have if there were P x parts ranks. Uneven
// shares: the block is divided evenly, in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace dp {

// Images first, first + stride, ... of a step.
struct StepImages {
  std::size_t first = 0, stride = 1, count = 0;
};

class Shares {
 public:
  // The largest allowed weight. It ensures that L x W fits into 64 bits.
  static constexpr std::uint64_t kMostWeight = 1'000'000'000;

  Shares() = default;  // even, for any number of ranks
  // One weight for each rank; the largest must be in 1 to kMostWeight. Equal weights mean even
  // shares.
  explicit Shares(std::vector<std::uint64_t> weights);

  [[nodiscard]] bool is_even() const { return weights_.empty(); }
  // Empty if even.
  [[nodiscard]] std::span<const std::uint64_t> weights() const { return weights_; }
  // The rank's weight in a mean over ranks; 1 if shares are even.
  [[nodiscard]] std::uint64_t weight(std::size_t rank) const {
    return is_even() ? 1 : weights_[rank];
  }

  // The images that a rank computes in part `part` of a step with `images` images.
  [[nodiscard]] StepImages of(std::size_t images, std::size_t rank, std::size_t ranks,
                              std::size_t part = 0, std::size_t parts = 1) const;
  // The number of images that a rank, or each rank, computes in a step: the sum over its parts.
  [[nodiscard]] std::size_t count(std::size_t images, std::size_t rank, std::size_t ranks) const;
  [[nodiscard]] std::vector<std::size_t> counts(std::size_t images, std::size_t ranks) const;
  // The largest and the smallest number of images that any rank has in a step.
  [[nodiscard]] std::size_t most(std::size_t images, std::size_t ranks) const;
  [[nodiscard]] std::size_t least(std::size_t images, std::size_t ranks) const;

  // "3:2:1", or "even".
  [[nodiscard]] std::string text() const;

  friend bool operator==(const Shares&, const Shares&) = default;

 private:
  // The first image of a rank's block in a step of `images` images.
  [[nodiscard]] std::size_t begin_of(std::size_t images, std::size_t rank) const {
    return static_cast<std::size_t>(images * before_[rank] / before_.back());
  }

  std::vector<std::uint64_t> weights_;
  std::vector<std::uint64_t> before_;  // before_[r]: the sum of the weights of ranks 0 to r - 1
};

}  // namespace dp
