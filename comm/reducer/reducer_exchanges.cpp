// The reducer's exchanges: how a bucket, its codec and its topology become one, and what they cost.
#include <algorithm>
#include <utility>

#include "comm/mpi/tags.hpp"
#include "comm/reducer/reducer.hpp"
#include "comm/topologies/velocity_exchange.hpp"
#include "kernels/base/setting_error.hpp"

namespace dp {

void check_streams(std::size_t buckets) {
  const std::size_t most = kMostStreams / most_streams();
  if (buckets <= most) return;
  throw SettingError(
      ErrorKind::usage,
      fmt::format("the gradient has {} buckets, but MPI has message numbers for {} at most: make "
                  "the buckets larger",
                  buckets, most),
      Setting::bucket_size);
}

// Makes what differs from what there is, and buffers that suffice.
void Reducer::make_exchanges(const std::vector<std::string>& specs) {
  DP_ASSERT(specs.size() == buckets_.size(), "{} codecs for {} buckets", specs.size(),
            buckets_.size());
  // A spec that cannot be must not leave half of them replaced.
  std::vector<CodecSpec> wanted;
  for (const std::string& spec : specs) wanted.push_back(parse_codec_spec(spec));
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const CodecSpec& spec = wanted[b];
    const bool is_new = pipeline_.exchanges()[b] == nullptr;
    if (!is_new && spec == specs_[b]) continue;
    if (spec.feedback && communicator_.size() > 1) state_->need_residual();
    const ExchangeStats stats = is_new ? ExchangeStats{} : pipeline_.exchange(b).stats();
    pipeline_.set_exchange(b, nullptr);  // refers to the codec
    MadeExchange made = make_exchange(b, spec);
    codecs_[b] = std::move(made.codec);
    made.exchange->set_stats(stats);
    pipeline_.set_exchange(b, std::move(made.exchange));
    specs_[b] = spec;
    buckets_[b].codec = spec.text();
  }
  pipeline_.fit_buffers();
}

MadeExchange Reducer::make_exchange(std::size_t b, const CodecSpec& spec) {
  const Bucket& bucket = buckets_[b];
  const bool has_residual = spec.feedback && state_->has_residual();
  const bool has_velocity = bucket.velocity != Bucket::Velocity::off;
  const ExchangeKind& kind = exchange_kind(spec);
  if (kind.has_momentum) {
    state_->need_velocity({.momentum = static_cast<float>(spec.number("momentum")),
                           .clip = spec.number("clip"),
                           .ranks = hosts_.size()});
  } else if (has_velocity) {
    state_->need_velocity({.momentum = options_.momentum, .has_nesterov = options_.has_nesterov});
  }
  Transport& transport = throttled_ ? static_cast<Transport&>(*throttled_) : mpi_;
  ExchangeRequest request = {
      .setup = {.transport = &transport,
                .bucket = checked_cast<std::uint32_t>(b),
                // The same numbers whatever the codec is, so that those of a warm-up
                // can be replaced.
                .stream = checked_cast<std::uint32_t>(b * most_streams()),
                .offset = bucket.offset,
                .gradient = gradient_.subspan(bucket.offset, bucket.elements),
                .residual = has_residual ? residual().data() + bucket.offset : nullptr,
                .codec = exact_.get(),
                .exact = exact_.get(),
                .seed = options_.seed,
                .segment = segment_floats(options_.segment_bytes, *exact_),
                .window = options_.window,
                .hosts = hosts_,
                .trace = options_.trace,
                .rate = has_rate(spec) ? &rate_ : nullptr,
                .stop_wish = options_.stop_wish},
      .segment_bytes = options_.segment_bytes,
      .spec = &spec,
      .topology = &topology_of(b),
      .tensors = bucket.tensors,
      .device = options_.device,
      .velocity = state_->velocity()};
  MadeExchange made = kind.make(request);
  if (!has_velocity) return made;
  // In a warm-up everything is delivered, which would leave no velocity.
  const bool is_masked = bucket.velocity == Bucket::Velocity::masked && spec.feedback;
  made.exchange =
      make_velocity_exchange({.setup = request.setup,
                              .inner = std::move(made.exchange),
                              .velocity = state_->velocity(),
                              .mask = is_masked ? VelocityMask::by_delivered : VelocityMask::none});
  return made;
}

const Topology& Reducer::topology_of(std::size_t bucket) const {
  const std::string& own = buckets_[bucket].topology;
  return find_topology(own.empty() ? options_.topology : own);
}

std::optional<std::uint64_t> Reducer::wire_bytes(std::size_t bucket) const {
  const Codec& codec = codec_of(bucket);
  const std::size_t segment = segment_floats(options_.segment_bytes, codec);
  if (!codec.fixed_payload_bytes(segment)) return std::nullopt;
  std::uint64_t bytes = 0;
  for (const std::size_t floats : sums_of(bucket)) {
    const ExchangeShape shape = {
        .elements = floats, .ranks = hosts_.size(), .segment = segment, .turn = bucket};
    const auto rank = static_cast<std::size_t>(communicator_.rank());
    bytes += topology_of(bucket).wire_bytes(shape, hosts_, rank, codec);
  }
  return bytes;
}

ExchangePlan Reducer::plan_of(std::size_t bucket) const {
  const ExchangeShape shape = {.elements = buckets_[bucket].elements,
                               .ranks = hosts_.size(),
                               .segment = segment_floats(options_.segment_bytes, codec_of(bucket)),
                               .turn = bucket};
  return topology_of(bucket).plan(shape, hosts_, static_cast<std::size_t>(communicator_.rank()),
                                  options_.window);
}

std::size_t Reducer::hops(std::size_t bucket) const {
  return topology_of(bucket).hops(hosts_.size(), hosts_) * sums_of(bucket).size();
}

double Reducer::wire_factor(std::size_t bucket) const {
  return topology_of(bucket).wire_factor(hosts_.size(), hosts_,
                                         static_cast<std::size_t>(communicator_.rank()));
}

std::vector<std::size_t> Reducer::sums_of(std::size_t bucket) const {
  return exchange_kind(specs_[bucket])
      .sums(specs_[bucket], buckets_[bucket].elements, buckets_[bucket].tensors);
}

void Reducer::scale_residual(float factor) {
  run([&](Communicator&) { state_->scale_residual(factor); });
}

void Reducer::scale_memory(float factor) {
  scale_residual(factor);
  state_->scale_velocity(factor);
}

void Reducer::list_state(StateVisitor& visitor) {
  state_->list_state(visitor);
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    pipeline_.exchange(b).list_state(fmt::format("exchange/bucket{}/", b), visitor);
  }
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

CommTimes Reducer::take_times() {
  DP_ASSERT(times_job_ == 0, "the costs of step {} were not taken", step_);
  return run([this](Communicator&) {
    CommTimes taken = taken_times();
    if (!state_->has_residual()) return taken;
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      if (!specs_[b].feedback) continue;
      const double squares = state_->residual_squares(buckets_[b].offset, buckets_[b].elements);
      taken.buckets[b].residual_squares = squares;
      taken.total.residual_squares += squares;
    }
    return taken;
  });
}

CommTimes Reducer::taken_times() {
  CommTimes taken = meter_.take();
  if (gather_) taken.total.gathered = gather_->take_cost();
  return taken;
}

void Reducer::ask_times() {
  DP_ASSERT(times_job_ == 0, "the costs of step {} were not taken", step_);
  times_job_ = thread_->post(
      [](void* self) {
        auto& reducer = *static_cast<Reducer*>(self);
        reducer.asked_times_ = reducer.taken_times();
      },
      this);
}

CommTimes Reducer::asked_times() {
  DP_ASSERT(times_job_ != 0, "nobody has asked for the costs of step {}", step_);
  thread_->wait(std::exchange(times_job_, 0));
  return std::move(asked_times_);
}

}  // namespace dp
