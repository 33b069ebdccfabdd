// Which samples a rank trains on, step by step.
//
// An epoch of N samples consists of steps of G = `global_batch` positions. Step s covers positions
// [s G, min((s + 1) G, N)), and rank r takes positions s G + r + k P. So the ranks' counts in a
// step differ by at most one, every sample is seen exactly once, and nothing is padded or repeated.
// In the last step a rank may have no sample at all. G need not be divisible by P.
//
// In training, position p holds sample perm[p]. The permutation depends on (seed, epoch) and is the
// same on every rank. In evaluation, position p holds sample p.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace dp {

enum class SampleOrder { shuffled, in_order };

struct SamplerOptions {
  std::size_t samples = 0;  // N
  std::size_t global_batch = 1;
  std::size_t rank = 0;
  std::size_t ranks = 1;  // P
  std::uint64_t seed = 0;
  SampleOrder order = SampleOrder::shuffled;
};

class Sampler {
 public:
  // Starts in epoch 0.
  explicit Sampler(const SamplerOptions& options);

  // Draws the epoch's permutation; allocates nothing.
  void start_epoch(std::uint64_t epoch);

  [[nodiscard]] std::uint64_t epoch() const noexcept { return epoch_; }
  [[nodiscard]] std::size_t steps() const noexcept;
  // Samples of all ranks in a step, and of this rank.
  [[nodiscard]] std::size_t global_samples(std::size_t step) const;
  [[nodiscard]] std::size_t rank_samples(std::size_t step) const;
  // The most that rank_samples() returns for any step.
  [[nodiscard]] std::size_t largest_batch() const noexcept;
  // The k-th sample of this rank in a step, k < rank_samples(step).
  [[nodiscard]] std::size_t sample(std::size_t step, std::size_t k) const;

 private:
  SamplerOptions options_;
  std::uint64_t epoch_ = 0;
  std::vector<std::uint32_t> permutation_;  // empty if in order
};

}  // namespace dp
