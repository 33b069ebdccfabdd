// Compares what an exchange delivered with the exact sum: telemetry of a single step now and then.
//
// It takes a sample of every bucket: up to 16 evenly spaced runs of 256 floats, or the whole of a
// bucket of up to 4,096 floats. It copies their values before and after the exchange. Then each
// rank gets all ranks' values of its part of the samples, a P-th of them, and adds them in double,
// in the order of ranks. So the error includes all that happened on the way: what was dropped in
// this step, and what earlier residuals added to it. The parts' squares are added up over ranks.
//
// Cost: a rank sends its sample in fp32 but for its own part, 4 (P-1)/P bytes a value, and 16 (P-1)
// bytes a bucket. It is kept small because codecs send few bytes: once in 157 steps of ResNet-20 on
// 4 ranks it is a thirtieth of what ecq sends with 0.05 bits a value. Failures are the
// communicator's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "comm/exchange/exchange.hpp"
#include "comm/mpi/communicator.hpp"
#include "comm/topologies/buckets.hpp"

namespace dp {

class ErrorSample {
 public:
  static constexpr std::size_t kRun = 256, kMostRuns = 16;

  struct Result {
    double error_squares = 0.0;  // of delivered - exact
    double value_squares = 0.0;  // of exact
    std::uint64_t sent_bytes = 0;
  };

  // `exact` is the codec none on the gradient's memory. That is memory of `device`, or of the host
  // if there is no device.
  ErrorSample(std::span<float> gradient, std::span<const Bucket> buckets, const Codec& exact,
              Device* device, int ranks);

  // The next step is to be compared.
  void want() { is_wanted_ = true; }
  void begin_step() { is_on_ = std::exchange(is_wanted_, false); }
  // Whether the step that has begun is.
  [[nodiscard]] bool is_on() const { return is_on_; }

  // Copy the bucket's sample before its exchange starts and when its sum is in place.
  void take_input(std::size_t bucket) { copy(bucket, inputs_); }
  void take_delivered(std::size_t bucket) { copy(bucket, delivered_); }
  // Collective, after both for all buckets. By bucket; the squares are the same on all ranks.
  [[nodiscard]] std::span<const Result> compare(Communicator& communicator);

 private:
  struct Run {
    std::size_t begin = 0, size = 0;  // in the gradient
  };
  struct Squares {
    double of_errors = 0.0, of_values = 0.0;
  };
  void copy(std::size_t bucket, std::span<float> to);

  std::span<float> gradient_;
  const Codec& exact_;
  bool is_wanted_ = false, is_on_ = false;
  std::vector<Run> runs_;
  std::vector<std::size_t> first_run_, first_value_;  // by bucket; one more for the end
  std::vector<std::size_t> first_of_rank_;            // by rank, in the samples; one more, too
  BufferSet memory_;                                  // host memory that the device reaches
  std::span<float> inputs_, delivered_;
  std::vector<float> all_;                          // the inputs of this rank's part, of all ranks
  std::vector<Result> results_;                     // by bucket
  std::vector<Squares> own_squares_, all_squares_;  // by bucket; of all ranks, by rank first
};

}  // namespace dp
