// Outline: make_exchange() creates the state that a bucket's codec needs, makes the exchange of the
// codec's kind, and wraps it, first in a spaced exchange (for buckets that are sent only in every
// k-th step), then in a velocity exchange. The rest of the file computes bytes, hops and plans from
// the same shapes.
#include "comm/reducer/bucket_exchanges.hpp"

#include <algorithm>
#include <utility>

#include "comm/mpi/tags.hpp"
#include "comm/topologies/hierarchical.hpp"
#include "comm/topologies/owner_weights.hpp"
#include "comm/topologies/spaced_exchange.hpp"
#include "comm/topologies/velocity_exchange.hpp"
#include "kernels/base/setting_error.hpp"

namespace dp {
namespace {

std::unique_ptr<Codec> exact_codec(Device* device) {
  return device == nullptr ? make_codec(CodecSpec::exact())
                           : make_codec(CodecSpec::exact(), *device);
}

// The number of ranks on this rank's host, by MPI's host names.
std::size_t ranks_beside(const Communicator& communicator) {
  const std::vector<int> hosts = host_numbers(communicator.hosts());
  return static_cast<std::size_t>(
      std::ranges::count(hosts, hosts[static_cast<std::size_t>(communicator.rank())]));
}

}  // namespace

void check_streams(std::size_t buckets) {
  const std::size_t most = kMostStreams / most_streams();
  if (buckets <= most) return;
  throw SettingError(
      ErrorKind::usage,
      fmt::format("the gradient has {} buckets, but MPI has message numbers for {} at most: make "
                  "the buckets larger",
                  buckets, most),
      Setting{"size of buckets"});
}

BucketExchanges::BucketExchanges(Communicator& communicator, std::span<float> gradient,
                                 std::vector<Bucket> buckets, const ReducerOptions& options)
    : options_(options),
      gradient_(gradient),
      buckets_(std::move(buckets)),
      hosts_(options.hosts.empty() ? host_numbers(communicator.hosts()) : options.hosts),
      mpi_(communicator),
      exact_(exact_codec(options.device)),
      codecs_(buckets_.size()),
      threads_(options.codec_threads > 0 ? std::min(options.codec_threads, CodecThreads::kMost)
                                         : CodecThreads::on_host_of(ranks_beside(communicator))),
      state_(gradient.size(), exact_->memory(), options.device) {
  DP_ASSERT(hosts_.size() == static_cast<std::size_t>(communicator.size()), "{} hosts for {} ranks",
            hosts_.size(), communicator.size());
  static_cast<void>(find_topology(options_.topology));
  check_streams(buckets_.size());
  if (options_.throttle_bits_per_s > 0.0) throttled_.emplace(mpi_, options_.throttle_bits_per_s);
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    DP_ASSERT(buckets_[b].offset + buckets_[b].elements <= gradient.size(),
              "bucket {} reaches beyond the end of the gradient", b);
  }
}

// Makes new exchanges only for buckets whose codec has changed.
void BucketExchanges::put_into(BucketPipeline& pipeline, const std::vector<CodecSpec>& codecs) {
  DP_ASSERT(codecs.size() == buckets_.size(), "{} codecs for {} buckets", codecs.size(),
            buckets_.size());
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const CodecSpec& spec = codecs[b];
    const bool is_new = pipeline.exchanges()[b] == nullptr;
    if (!is_new && spec == buckets_[b].codec) continue;
    if (spec.feedback && hosts_.size() > 1) state_.need_residual();
    const ExchangeStats stats = is_new ? ExchangeStats{} : pipeline.exchange(b).stats();
    pipeline.set_exchange(b, nullptr);  // it refers to the old codec
    MadeExchange made = make_exchange(b, spec);
    codecs_[b] = std::move(made.codec);
    made.exchange->set_stats(stats);
    pipeline.set_exchange(b, std::move(made.exchange));
    buckets_[b].codec = spec;
  }
  pipeline.fit_buffers();
}

MadeExchange BucketExchanges::make_exchange(std::size_t b, const CodecSpec& spec) {
  const Bucket& bucket = buckets_[b];
  const bool has_residual = spec.feedback && state_.has_residual();
  const bool has_velocity = bucket.velocity != Bucket::Velocity::off;
  const ExchangeKind& kind = exchange_kind(spec);
  if (kind.has_momentum) {
    state_.need_velocity({.momentum = static_cast<float>(spec.number("momentum")),
                          .clip = spec.number("clip"),
                          .ranks = hosts_.size()});
  } else if (has_velocity && options_.adam) {
    std::vector<TensorSlot> tensors;
    for (const Bucket& sends : buckets_) {
      if (sends.velocity == Bucket::Velocity::off) continue;
      tensors.insert(tensors.end(), sends.tensors.begin(), sends.tensors.end());
    }
    AdamVelocityOptions adam = *options_.adam;
    adam.ranks = hosts_.size();
    state_.need_adam(tensors, adam);
  } else if (has_velocity) {
    state_.need_velocity({.momentum = options_.momentum, .has_nesterov = options_.has_nesterov});
  }
  ExchangeRequest request = {
      .setup = {.transport = &transport(),
                .bucket = checked_cast<std::uint32_t>(b),
                // Stream numbers do not depend on the codec, so that a warm-up's exchanges can be
                // replaced.
                .stream = checked_cast<std::uint32_t>(b * most_streams()),
                .offset = bucket.offset,
                .gradient = gradient_.subspan(bucket.offset, bucket.elements),
                .residual = has_residual ? state_.residual().data() + bucket.offset : nullptr,
                .codec = exact_.get(),
                .exact = exact_.get(),
                .seed = options_.seed,
                .segment = segment_floats(options_.segment_bytes, *exact_),
                .window = options_.window,
                .hosts = hosts_,
                .owner_weights = owner_weights(b),
                .threads = threads_.size() > 1 ? &threads_ : nullptr,
                .trace = options_.trace,
                .rate = has_rate(spec) ? &rate_ : nullptr,
                .stop_wish = options_.stop_wish},
      .segment_bytes = options_.segment_bytes,
      .spec = &spec,
      .topology = &topology_of(b),
      .tensors = bucket.tensors,
      .device = options_.device,
      .velocity = state_.velocity()};
  MadeExchange made = kind.make(request);
  if (const std::uint32_t every = spacing_of(b, spec); every > 1) {
    made.exchange = make_spaced_exchange(request.setup, std::move(made.exchange), every);
  }
  if (!has_velocity) return made;
  // A warm-up delivers everything, so masking would leave no velocity.
  const bool is_masked = bucket.velocity == Bucket::Velocity::masked && spec.feedback;
  made.exchange =
      make_velocity_exchange({.setup = request.setup,
                              .inner = std::move(made.exchange),
                              .velocity = state_.velocity(),
                              .mask = is_masked ? VelocityMask::by_delivered : VelocityMask::none});
  return made;
}

const Topology& BucketExchanges::topology_of(std::size_t bucket) const {
  const std::string& own = buckets_[bucket].topology;
  return find_topology(own.empty() ? options_.topology : own);
}

std::optional<std::uint64_t> BucketExchanges::wire_bytes(std::size_t bucket) const {
  const Codec& codec = codec_of(bucket);
  const std::size_t segment = segment_floats(options_.segment_bytes, codec);
  if (!codec.fixed_payload_bytes(segment)) return std::nullopt;
  std::uint64_t bytes = 0;
  for (const std::size_t floats : sums_of(bucket)) {
    const ExchangeShape shape = {.elements = floats,
                                 .ranks = hosts_.size(),
                                 .segment = segment,
                                 .turn = bucket,
                                 .owner_weights = owner_weights(bucket)};
    bytes += topology_of(bucket).wire_bytes(shape, hosts_, rank(), codec);
  }
  return bytes / spacing_of(bucket, buckets_[bucket].codec);
}

// Without a residual, as in a warm-up, every training step has an exchange.
std::uint32_t BucketExchanges::spacing_of(std::size_t bucket, const CodecSpec& spec) const {
  return spec.feedback && state_.has_residual() ? buckets_[bucket].every : 1;
}

ExchangeShape BucketExchanges::shape_of(std::size_t bucket) const {
  return {.elements = buckets_[bucket].elements,
          .ranks = hosts_.size(),
          .segment = segment_floats(options_.segment_bytes, codec_of(bucket)),
          .turn = bucket,
          .has_brief_messages = has_few_bits(buckets_[bucket].codec),
          .owner_weights = owner_weights(bucket)};
}

ExchangePlan BucketExchanges::plan_of(std::size_t bucket) const {
  return topology_of(bucket).plan(shape_of(bucket), hosts_, rank(), options_.window);
}

ElementRange BucketExchanges::owned_by_this_rank(std::size_t bucket) const {
  const ExchangeShape shape = shape_of(bucket);
  const std::size_t chunk = shape.chunk_of(rank());
  const std::size_t begin = buckets_[bucket].offset + shape.chunk_begin(chunk);
  return {.begin = begin, .end = begin + shape.chunk_size(chunk)};
}

std::size_t BucketExchanges::hops(std::size_t bucket) const {
  return topology_of(bucket).hops(hosts_.size(), hosts_) * sums_of(bucket).size();
}

std::span<const std::uint32_t> BucketExchanges::owner_weights(std::size_t bucket) const {
  if (!topology_of(bucket).has_owner_weights) return {};
  return options_.owner_weights;
}

double BucketExchanges::wire_factor(std::size_t bucket) const {
  const std::span<const std::uint32_t> weights = owner_weights(bucket);
  if (!weights.empty()) return owner_wire_factor(weights, hosts_.size(), rank());
  return topology_of(bucket).wire_factor(hosts_.size(), hosts_, rank());
}

std::vector<std::size_t> BucketExchanges::sums_of(std::size_t bucket) const {
  const Bucket& of = buckets_[bucket];
  return exchange_kind(of.codec).sums(of.codec, of.elements, of.tensors);
}

double BucketExchanges::residual_squares(std::size_t bucket) const {
  if (!state_.has_residual() || !buckets_[bucket].codec.feedback) return 0.0;
  return state_.residual_squares(buckets_[bucket].offset, buckets_[bucket].elements);
}

}  // namespace dp
