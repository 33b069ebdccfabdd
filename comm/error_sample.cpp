#include "comm/error_sample.hpp"

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
  std::size_t values = 0, most = 0;
  for (const Bucket& bucket : buckets) {
    first_run_.push_back(runs_.size());
    first_value_.push_back(values);
    const std::size_t n = sample_size(bucket.elements);
    for (std::size_t at = 0; at < n; at += kRun) {
      // Runs are spread evenly: a run's position in the sample and in the bucket are the same
      // fractions of both.
      const std::size_t begin =
          bucket.elements == n ? at : at / kRun * (bucket.elements / kMostRuns);
      runs_.push_back({bucket.offset + begin, std::min(kRun, n - at)});
    }
    values += n;
    most = std::max(most, n);
  }
  first_run_.push_back(runs_.size());
  first_value_.push_back(values);
  auto* floats = reinterpret_cast<float*>(memory_.at(0));
  inputs_ = {floats, values};
  delivered_ = {floats + values, values};
  all_.resize(most * static_cast<std::size_t>(ranks));
}

// The codec none writes floats as they are, from host memory or a GPU's.
void ErrorSample::copy(std::size_t bucket, std::span<float> to) {
  std::size_t at = first_value(bucket);
  for (std::size_t i = first_run_[bucket]; i < first_run_[bucket + 1]; ++i) {
    const Run& run = runs_[i];
    static_cast<void>(exact_.encode(gradient_.subspan(run.begin, run.size), nullptr,
                                    std::as_writable_bytes(to.subspan(at, run.size)), {}));
    at += run.size;
  }
}

ErrorSample::Result ErrorSample::compare(Communicator& communicator, std::size_t bucket) {
  const std::size_t begin = first_value(bucket), n = first_value(bucket + 1) - begin;
  const auto ranks = static_cast<std::size_t>(communicator.size());
  const std::span<float> all = std::span(all_).first(n * ranks);
  communicator.all_gather(std::span<const float>(inputs_.subspan(begin, n)), all);
  Result result{.sent_bytes = n * sizeof(float) * (ranks - 1)};
  for (std::size_t i = 0; i < n; ++i) {
    double exact = 0.0;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      exact += static_cast<double>(all[rank * n + i]);
    }
    const double error = static_cast<double>(delivered_[begin + i]) - exact;
    result.error_squares += error * error;
    result.value_squares += exact * exact;
  }
  return result;
}

}  // namespace dp
