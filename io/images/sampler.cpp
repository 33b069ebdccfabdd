#include "io/images/sampler.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/base/error.hpp"
#include "kernels/base/random.hpp"

namespace dp {

Sampler::Sampler(const SamplerOptions& options) : options_(options) {
  DP_ASSERT(options.global_batch > 0, "global batch 0");
  DP_ASSERT(options.rank < options.ranks, "rank {} of {}", options.rank, options.ranks);
  DP_ASSERT(options.parts > 0, "a batch in no parts");
  if (options.order == SampleOrder::shuffled) {
    static_cast<void>(checked_cast<std::uint32_t>(options.samples));
    permutation_.resize(options.samples);
  }
  start_epoch(0);
}

void Sampler::start_epoch(std::uint64_t epoch) {
  epoch_ = epoch;
  // Each epoch starts from the identity, so that its order does not depend on earlier epochs.
  std::iota(permutation_.begin(), permutation_.end(), 0u);
  const CounterRng rng(options_.seed, RandomStream::permutation, epoch);
  for (std::size_t i = permutation_.size(); i > 1; --i) {  // Fisher-Yates, Durstenfeld's form
    std::swap(permutation_[i - 1], permutation_[rng.below(i, i)]);
  }
}

void Sampler::set_batch(std::size_t global_batch, std::size_t parts) {
  DP_ASSERT(global_batch > 0 && parts > 0,
            "the batch has {} images in {} parts, but both must be above 0", global_batch, parts);
  options_.global_batch = global_batch;
  options_.parts = parts;
}

std::size_t Sampler::steps() const noexcept {
  return (options_.samples + options_.global_batch - 1) / options_.global_batch;
}

std::size_t Sampler::global_samples(std::size_t step) const {
  DP_ASSERT(step < steps(), "step {} of {}", step, steps());
  return std::min(options_.global_batch, options_.samples - step * options_.global_batch);
}

StepImages Sampler::images(std::size_t step, std::size_t part) const {
  return options_.shares.of(global_samples(step), options_.rank, options_.ranks, part,
                            options_.parts);
}

std::size_t Sampler::rank_samples(std::size_t step, std::size_t part) const {
  return images(step, part).count;
}

std::size_t Sampler::largest_batch() const {
  std::size_t largest = 0;
  for (std::size_t part = 0; steps() > 0 && part < parts(); ++part) {
    largest = std::max(largest, rank_samples(0, part));
  }
  return largest;
}

std::size_t Sampler::sample(std::size_t step, std::size_t k, std::size_t part) const {
  const StepImages images = this->images(step, part);
  DP_ASSERT(k < images.count, "there is no sample {} among {} samples in step {}", k, images.count,
            step);
  const std::size_t position = step * options_.global_batch + images.first + k * images.stride;
  return permutation_.empty() ? position : permutation_[position];
}

}  // namespace dp
