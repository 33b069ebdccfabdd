// The samples that a rank trains on, step by step.
//
// An epoch of N samples consists of steps of G = `global_batch` positions. Step s covers positions
// [s G, min((s + 1) G, N)), which the ranks divide by their shares (shares.hpp). Every sample is
// seen exactly once; nothing is padded or repeated. In the last step a rank may have no sample. G
// need not be divisible by the number of ranks. With gradient accumulation a rank computes its
// batch in `parts` parts.
//
// In training, position p holds sample perm[p]. The permutation depends on (seed, epoch) and is the
// same on every rank. In evaluation, position p holds sample p.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "io/images/shares.hpp"

namespace dp {

enum class SampleOrder { shuffled, in_order };

struct SamplerOptions {
  std::size_t samples = 0;  // N
  std::size_t global_batch = 1;
  std::size_t rank = 0;
  std::size_t ranks = 1;  // P
  std::size_t parts = 1;  // of a rank's batch
  Shares shares = {};     // even by default
  std::uint64_t seed = 0;
  SampleOrder order = SampleOrder::shuffled;
};

class Sampler {
 public:
  // Starts in epoch 0.
  explicit Sampler(const SamplerOptions& options);

  // Draws the epoch's permutation; allocates nothing.
  void start_epoch(std::uint64_t epoch);
  // Set the batch size and the ranks' shares of all later steps.
  void set_batch(std::size_t global_batch, std::size_t parts);
  void set_shares(Shares shares) { options_.shares = std::move(shares); }

  [[nodiscard]] std::uint64_t epoch() const noexcept { return epoch_; }
  [[nodiscard]] std::size_t steps() const noexcept;
  [[nodiscard]] std::size_t parts() const noexcept { return options_.parts; }
  // The number of samples of all ranks in a step, and the number of samples in one part of this
  // rank's batch.
  [[nodiscard]] std::size_t global_samples(std::size_t step) const;
  [[nodiscard]] std::size_t rank_samples(std::size_t step, std::size_t part = 0) const;
  // The largest value that rank_samples() returns for any step and part.
  [[nodiscard]] std::size_t largest_batch() const;
  // The positions of a part's samples in the step.
  [[nodiscard]] StepImages images(std::size_t step, std::size_t part = 0) const;
  // The k-th sample of a part, k < rank_samples(step, part).
  [[nodiscard]] std::size_t sample(std::size_t step, std::size_t k, std::size_t part = 0) const;

 private:
  SamplerOptions options_;
  std::uint64_t epoch_ = 0;
  std::vector<std::uint32_t> permutation_;  // empty if in order
};

}  // namespace dp
