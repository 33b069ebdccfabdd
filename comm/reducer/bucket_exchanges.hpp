// Makes the exchanges of a gradient's buckets on one rank from each bucket's codec and topology,
// replaces codecs, and computes the bytes and messages of an exchange.
//
// It owns everything that exchanges refer to: transport, codecs, rate order, residual and velocity.
// The exchanges themselves are in the pipeline (bucket_pipeline.hpp), which must be destroyed
// first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/exchange/exchange.hpp"
#include "comm/exchange/exchange_plan.hpp"
#include "comm/mpi/communicator.hpp"
#include "comm/mpi/mpi_transport.hpp"
#include "comm/mpi/throttled_transport.hpp"
#include "comm/rate/rate_control.hpp"
#include "comm/reducer/bucket_pipeline.hpp"
#include "comm/reducer/gradient_state.hpp"
#include "comm/reducer/reducer_options.hpp"
#include "comm/topologies/buckets.hpp"
#include "comm/topologies/exchange_kinds.hpp"
#include "comm/topologies/topology.hpp"
#include "kernels/codecs/codec.hpp"

namespace dp {

// Throws Error(usage) if there are not enough message streams for that many buckets (tags.hpp).
void check_streams(std::size_t buckets);

// A contiguous range of the flat gradient, in floats: [begin, end).
struct ElementRange {
  std::size_t begin = 0, end = 0;
};

class BucketExchanges {
 public:
  // Communicator, gradient and options outlive this object. Throws what Reducer's constructor
  // throws.
  BucketExchanges(Communicator& communicator, std::span<float> gradient,
                  std::vector<Bucket> buckets, const ReducerOptions& options);

  // Puts an exchange for each bucket's codec into the pipeline, and makes its buffers large enough.
  // Buckets whose codec does not change keep their exchange.
  void put_into(BucketPipeline& pipeline, const std::vector<CodecSpec>& codecs);

  [[nodiscard]] const std::vector<Bucket>& buckets() const { return buckets_; }
  [[nodiscard]] std::span<float> gradient() const { return gradient_; }
  [[nodiscard]] std::span<const int> hosts() const { return hosts_; }
  [[nodiscard]] Transport& transport() {
    return throttled_ ? static_cast<Transport&>(*throttled_) : mpi_;
  }
  // The codec `none` on the gradient's memory.
  [[nodiscard]] const Codec& exact() const { return *exact_; }
  [[nodiscard]] GradientState& state() { return state_; }
  [[nodiscard]] const GradientState& state() const { return state_; }
  void set_rate(const RateOrder& order) { rate_ = order; }
  // The sum of squares of the bucket's residual; 0 if its codec has no feedback.
  [[nodiscard]] double residual_squares(std::size_t bucket) const;

  // The next functions describe one exchange of the bucket. Reducer documents its functions of the
  // same names.
  [[nodiscard]] const Topology& topology_of(std::size_t bucket) const;
  [[nodiscard]] std::optional<std::uint64_t> wire_bytes(std::size_t bucket) const;
  [[nodiscard]] ExchangePlan plan_of(std::size_t bucket) const;
  [[nodiscard]] ElementRange owned_by_this_rank(std::size_t bucket) const;
  [[nodiscard]] std::size_t hops(std::size_t bucket) const;
  [[nodiscard]] double wire_factor(std::size_t bucket) const;

 private:
  [[nodiscard]] std::uint32_t spacing_of(std::size_t bucket, const CodecSpec& spec) const;
  [[nodiscard]] std::span<const std::uint32_t> owner_weights(std::size_t bucket) const;
  [[nodiscard]] ExchangeShape shape_of(std::size_t bucket) const;
  [[nodiscard]] MadeExchange make_exchange(std::size_t bucket, const CodecSpec& spec);
  // The codec that writes the bucket's messages.
  [[nodiscard]] const Codec& codec_of(std::size_t bucket) const {
    return codecs_[bucket] == nullptr ? *exact_ : *codecs_[bucket];
  }
  [[nodiscard]] std::size_t rank() const { return static_cast<std::size_t>(mpi_.rank()); }
  // The lengths, in floats, of the sums that an exchange of the bucket makes one after the other.
  [[nodiscard]] std::vector<std::size_t> sums_of(std::size_t bucket) const;

  const ReducerOptions& options_;
  std::span<float> gradient_;
  std::vector<Bucket> buckets_;
  std::vector<int> hosts_;
  MpiTransport mpi_;
  std::optional<ThrottledTransport> throttled_;
  std::unique_ptr<Codec> exact_;
  std::vector<std::unique_ptr<Codec>> codecs_;  // null: the bucket uses exact_
  CodecThreads threads_;
  RateOrder rate_;  // of buckets whose codec has a rate
  GradientState state_;
};

}  // namespace dp
