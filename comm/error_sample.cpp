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
  std::size_t values = 0;
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
  }
  first_run_.push_back(runs_.size());
  first_value_.push_back(values);
  auto* floats = reinterpret_cast<float*>(memory_.at(0));
  inputs_ = {floats, values};
  delivered_ = {floats + values, values};
  const auto parts = static_cast<std::size_t>(ranks);
  for (std::size_t r = 0; r <= parts; ++r) first_of_rank_.push_back(values * r / parts);
  all_.resize((values + parts - 1) / parts * parts);
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

std::vector<ErrorSample::Result> ErrorSample::compare(Communicator& communicator) {
  const auto ranks = static_cast<std::size_t>(communicator.size());
  const auto me = static_cast<std::size_t>(communicator.rank());
  const std::size_t begin = first_of_rank_[me], end = first_of_rank_[me + 1], n = end - begin;
  const std::span<float> all = std::span(all_).first(n * ranks);
  communicator.all_to_all(std::span<const float>(inputs_), first_of_rank_, all);

  const std::size_t buckets = first_value_.size() - 1;
  std::vector<double> squares(2 * buckets);  // of a bucket: of the errors, then of the values
  for (std::size_t b = 0; b < buckets; ++b) {
    const std::size_t last = std::min(end, first_value(b + 1));
    for (std::size_t i = std::max(begin, first_value(b)); i < last; ++i) {
      double exact = 0.0;
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        exact += static_cast<double>(all[rank * n + (i - begin)]);
      }
      const double error = static_cast<double>(delivered_[i]) - exact;
      squares[2 * b] += error * error;
      squares[2 * b + 1] += exact * exact;
    }
  }
  communicator.all_sum(std::span(squares));

  std::vector<Result> results;
  for (std::size_t b = 0; b < buckets; ++b) {
    const std::size_t first = first_value(b), last = first_value(b + 1);
    const std::size_t own_first = std::clamp(begin, first, last);
    const std::size_t own_last = std::clamp(end, first, last);
    results.push_back({.error_squares = squares[2 * b],
                       .value_squares = squares[2 * b + 1],
                       .sent_bytes = (last - first - (own_last - own_first)) * sizeof(float) +
                                     (ranks - 1) * 2 * sizeof(double)});
  }
  return results;
}

}  // namespace dp
