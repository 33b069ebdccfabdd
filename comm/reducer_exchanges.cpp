// The reducer's exchanges: how a bucket, its codec and its topology become one.
#include <algorithm>

#include "comm/powersgd.hpp"
#include "comm/reducer.hpp"

namespace dp {

void check_bucket_count(const CodecSpec& spec, std::size_t buckets) {
  // Each has the tags of a second one, kPowerSgdSecondBucket further on.
  if (!find_codec(spec.name)->is_exchange || buckets <= kPowerSgdSecondBucket) return;
  throw_error(ErrorKind::usage,
              "--compress {}: {} buckets, and at most {} with this codec; raise --bucket-mb",
              spec.name, buckets, kPowerSgdSecondBucket);
}

std::size_t Reducer::segment_of(const Codec& codec) const {
  const std::size_t floats = std::max<std::size_t>(options_.segment_bytes / sizeof(float), 1);
  return (floats + codec.block() - 1) / codec.block() * codec.block();
}

// Makes what differs from what there is, and buffers that suffice.
void Reducer::make_exchanges(const std::vector<std::string>& specs) {
  DP_ASSERT(specs.size() == buckets_.size(), "{} codecs for {} buckets", specs.size(),
            buckets_.size());
  // A spec that cannot be must not leave half of them replaced.
  std::vector<CodecSpec> wanted;
  for (const std::string& spec : specs) wanted.push_back(parse_codec_spec(spec));
  for (const CodecSpec& spec : wanted) check_bucket_count(spec, buckets_.size());
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const CodecSpec& spec = wanted[b];
    if (exchanges_[b] != nullptr && spec == specs_[b]) continue;
    if (spec.feedback && communicator_.size() > 1 && residual_.empty()) {
      residual_memory_ = exact_->memory().allocate(gradient_.size());
      residual_ = {residual_memory_.get(), gradient_.size()};
    }
    const ExchangeStats stats = exchanges_[b] == nullptr ? ExchangeStats{} : exchanges_[b]->stats();
    exchanges_[b].reset();  // refers to the codec
    exchanges_[b] = make_exchange(b, spec);
    exchanges_[b]->set_stats(stats);
    specs_[b] = spec;
    buckets_[b].codec = spec.text();
  }
  BufferNeeds most;
  for (const auto& exchange : exchanges_) {
    const BufferNeeds needs = exchange->needs();
    most.count = std::max(most.count, needs.count);
    most.bytes = std::max(most.bytes, needs.bytes);
  }
  if (!buffers_.empty() && most.count <= buffer_needs_.count && most.bytes <= buffer_needs_.bytes) {
    return;
  }
  buffer_needs_ = most;
  buffers_.clear();
  const std::size_t in_flight = std::clamp<std::size_t>(options_.buckets_in_flight, 1,
                                                        std::max<std::size_t>(buckets_.size(), 1));
  for (std::size_t i = 0; i < in_flight; ++i) {
    buffers_.push_back(std::make_unique<BufferSet>(most, options_.device));
  }
  is_buffer_free_.assign(in_flight, true);
}

std::unique_ptr<Exchange> Reducer::make_exchange(std::size_t b, const CodecSpec& spec) {
  const Bucket& bucket = buckets_[b];
  const bool has_residual = spec.feedback && !residual_.empty();
  ExchangeSetup setup = {.communicator = &communicator_,
                         .bucket = checked_cast<std::uint32_t>(b),
                         .offset = bucket.offset,
                         .gradient = gradient_.subspan(bucket.offset, bucket.elements),
                         .residual = has_residual ? residual_.data() + bucket.offset : nullptr,
                         .codec = exact_.get(),
                         .exact = exact_.get(),
                         .seed = options_.seed,
                         .segment = segment_of(*exact_),
                         .window = options_.window,
                         .link = link_ ? &*link_ : nullptr,
                         .hosts = hosts_,
                         .trace = options_.trace};
  const Topology& topology = topology_of(b);
  if (find_codec(spec.name)->is_exchange) {
    DP_ASSERT(options_.device == nullptr, "{} has no form for this device", spec.text());
    codecs_[b] = nullptr;
    return make_powersgd({.exchange = setup,
                          .tensors = bucket.tensors,
                          .rank = spec.whole("rank"),
                          .make_inner = topology.make});
  }
  codecs_[b] = options_.device == nullptr ? make_codec(spec) : make_codec(spec, *options_.device);
  DP_ASSERT(codecs_[b] != nullptr, "{} has no form for this device", spec.text());
  setup.codec = codecs_[b].get();
  setup.segment = segment_of(*codecs_[b]);
  return topology.make(setup);
}

const Topology& Reducer::topology_of(std::size_t bucket) const {
  const std::string& own = buckets_[bucket].topology;
  return find_topology(own.empty() ? options_.topology : own);
}

std::optional<std::uint64_t> Reducer::wire_bytes(std::size_t bucket) const {
  const bool is_factored = codecs_[bucket] == nullptr;
  const Codec& codec = is_factored ? *exact_ : *codecs_[bucket];
  if (!codec.fixed_payload_bytes(segment_of(codec))) return std::nullopt;
  const auto of = [&](std::size_t elements) {
    const ExchangeShape shape = {
        .elements = elements, .ranks = hosts_.size(), .segment = segment_of(codec)};
    const auto rank = static_cast<std::size_t>(communicator_.rank());
    return topology_of(bucket).wire_bytes(shape, hosts_, rank, codec);
  };
  if (!is_factored) return of(buckets_[bucket].elements);
  const PowerSgdPlan plan = plan_powersgd(buckets_[bucket].tensors, specs_[bucket].whole("rank"));
  return of(plan.first_floats) + of(plan.second_floats);
}

std::size_t Reducer::hops(std::size_t bucket) const {
  const std::size_t of_topology = topology_of(bucket).hops(hosts_.size(), hosts_);
  if (codecs_[bucket] != nullptr) return of_topology;
  return of_topology *
         exchanges_of(plan_powersgd(buckets_[bucket].tensors, specs_[bucket].whole("rank")));
}

void Reducer::replace_codecs(const std::vector<std::string>& specs) {
  run([&](Communicator& communicator) {
    make_exchanges(specs);
    // A bucket's new messages have the numbers of its old ones, which have all been taken when
    // every rank has come here.
    communicator.barrier();
  });
}

void Reducer::sample_error() {
  run([this](Communicator& communicator) {
    if (sample_ == nullptr) {
      sample_ = std::make_unique<ErrorSample>(gradient_, buckets_, *exact_, options_.device,
                                              communicator.size());
    }
    must_sample_ = true;
  });
}

}  // namespace dp
