#include "comm/reducer/error_sample.hpp"

#include <algorithm>

namespace dp {
namespace {

std::size_t sample_size(std::size_t elements) {
  return std::min(elements, ErrorSample::kRun * ErrorSample::kMostRuns);
}

std::size_t all_samples(std::span<const Bucket> buckets) {
  std::size_t n = 0;
  for (const Bucket& bucket : buckets) n += sample_size(bucket.elements);
  return n;
}

}  // namespace

ErrorSample::ErrorSample(std::span<float> gradient, std::span<const Bucket> buckets,
                         const Codec& exact, Device* device, int ranks)
    : gradient_(gradient),
      exact_(exact),
      memory_({.count = 1, .bytes = 2 * all_samples(buckets) * sizeof(float)}, device) {
  std::size_t values = 0;
  for (const Bucket& bucket : buckets) {
    first_run_.push_back(runs_.size());
    first_value_.push_back(values);
    const std::size_t n = sample_size(bucket.elements);
    for (std::size_t at = 0; at < n; at += kRun) {
      // Runs are spread evenly over the bucket: a run halfway through the sample lies halfway
      // through the bucket.
      const std::size_t begin =
          bucket.elements == n ? at : at / kRun * (bucket.elements / kMostRuns);
      runs_.push_back({bucket.offset + begin, std::min(kRun, n - at)});
    }
    values += n;
  }
  first_run_.push_back(runs_.size());
  first_value_.push_back(values);
  auto* floats = reinterpret_cast<float*>(memory_.at(0));
  inputs_ = {floats, values};
  delivered_ = {floats + values, values};
  const auto parts = static_cast<std::size_t>(ranks);
  for (std::size_t r = 0; r <= parts; ++r) first_of_rank_.push_back(values * r / parts);
  all_.resize((values + parts - 1) / parts * parts);
  results_.resize(buckets.size());
  own_squares_.resize(buckets.size());
  all_squares_.resize(buckets.size() * parts);
}

// Copies by encoding with the codec `none`, which leaves floats unchanged and reads host memory or
// a GPU's.
void ErrorSample::copy(std::size_t bucket, std::span<float> to) {
  std::size_t at = first_value_[bucket];
  for (std::size_t i = first_run_[bucket]; i < first_run_[bucket + 1]; ++i) {
    const Run& run = runs_[i];
    static_cast<void>(exact_.encode(gradient_.subspan(run.begin, run.size), nullptr,
                                    std::as_writable_bytes(to.subspan(at, run.size)), {}));
    at += run.size;
  }
}

std::span<const ErrorSample::Result> ErrorSample::compare(Communicator& communicator) {
  const auto ranks = static_cast<std::size_t>(communicator.size());
  const auto me = static_cast<std::size_t>(communicator.rank());
  const std::size_t begin = first_of_rank_[me], end = first_of_rank_[me + 1], n = end - begin;
  const std::span<float> all = std::span(all_).first(n * ranks);
  communicator.all_to_all(std::span<const float>(inputs_), first_of_rank_, all);
  for (std::size_t b = 0; b < results_.size(); ++b) {
    const std::size_t first = first_value_[b], last = first_value_[b + 1];
    const std::size_t own_first = std::clamp(begin, first, last);
    const std::size_t own_last = std::clamp(end, first, last);
    own_squares_[b] = {};
    for (std::size_t i = own_first; i < own_last; ++i) {
      double exact = 0.0;
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        exact += static_cast<double>(all[rank * n + (i - begin)]);
      }
      const double error = static_cast<double>(delivered_[i]) - exact;
      own_squares_[b].of_errors += error * error;
      own_squares_[b].of_values += exact * exact;
    }
    results_[b] = {.sent_bytes = (last - first - (own_last - own_first)) * sizeof(float) +
                                 (ranks - 1) * sizeof(Squares)};
  }
  // In both collective calls a rank sends a checksum to each other rank.
  if (!results_.empty()) results_.front().sent_bytes += 2 * (ranks - 1) * kSealBytes;
  communicator.all_gather(std::span<const Squares>(own_squares_), std::span(all_squares_));
  for (std::size_t i = 0; i < all_squares_.size(); ++i) {
    Result& result = results_[i % results_.size()];
    result.error_squares += all_squares_[i].of_errors;
    result.value_squares += all_squares_[i].of_values;
  }
  return results_;
}

}  // namespace dp
