// Outline: begin_step() compares gradients over ranks (for Adam's steps) and asks the RateGovernor
// for the number of bits per value. tensor_final() counts tensors; a bucket whose last tensor is
// final goes to the reducer, on a GPU through the BucketLink. finish_step() waits for the sums and
// tells the governor how many bytes the step has sent. The second half is set-up: the constructor
// checks options and plans buckets, and connect() makes the link, the reducer and the governor's
// watch, in this order, since each needs the previous one.
#include "comm/gradient_sync.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include "comm/rate_inputs.hpp"
#include "kernels/base/setting_error.hpp"
#include "kernels/codecs/codec.hpp"

namespace dp {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// True for codecs that plan fewer than 0.1 bits a value. Only these codecs profit if gradients are
// computed at parameters that include the undelivered residuals (undelivered_parts). At 0.1 bits
// there was no gain (experiments/studies/few_bits.md), and a step took 5 % longer.
bool is_long_undelivered(const CodecSpec& codec) {
  constexpr double kFrom = 0.1;
  return has_few_bits(codec) && codec.number("bits") < kFrom;
}

}  // namespace

// ---- a step -------------------------------------------------------------------------------------

void GradientSync::begin_step(std::uint64_t step, double progress) {
  if (options_.adam) compare_gradients(step);
  if (governor_) order_rate(step, progress);
  if (link_) link_->begin_step(step);
  reducer_->begin_step(step);
}

void GradientSync::compare_gradients(std::uint64_t step) {
  AdamVelocity* const adam = reducer_->state().adam();
  if (adam == nullptr || !AdamVelocity::compares_before(step)) return;
  std::vector<float> sums = adam->comparison(step);
  reducer_->run([&](Communicator& comm) { comm.all_sum(std::span(sums)); });
  adam->compare(sums, step);
}

void GradientSync::tensor_final(std::size_t tensor) {
  tracker_.tensor_final(tensor, [this](std::size_t bucket) {
    if (options_.overlap) bucket_final(bucket);
  });
  if (!tracker_.is_complete()) return;
  if (options_.overlap) {
    end_of_gradients();
  } else {
    all_final();
  }
}

void GradientSync::all_final() {
  for (std::size_t b = 0; b < buckets_.size(); ++b) bucket_final(b);
  end_of_gradients();
}

StepVerdict GradientSync::finish_step(const FollowUp::Action* when_finite) {
  const double waits_since_s = seconds_now();
  when_finite_ = when_finite;
  has_taken_sums_ = false;
  const StepVerdict verdict = reducer_->wait_step(when_finite != nullptr ? &take_sums_ : nullptr);
  if (StepWatch* const steps = watch()) {
    steps->sums_are_there(seconds_now() - waits_since_s, verdict.busy);
  }
  if (governor_) {
    governor_->end_step(verdict.rate, verdict.finite, verdict.grown_bucket,
                        [this](std::span<std::int64_t> counts) {
                          reducer_->run([&](Communicator& comm) { comm.all_sum(counts); });
                        });
  }
  if (link_ && !has_taken_sums_) link_->await_sums();
  if (verdict.finite && !sums_.empty()) gaps_.add(sums_);
  return verdict;
}

void GradientSync::order_rate(std::uint64_t step, double progress) {
  // The host does not see when a GPU's gradients are final, but the reducer's thread does. Hence
  // the thread's times are used.
  governor_->begin_step(step, progress, seconds_now(),
                        is_gpu() ? reducer_->started_s() : std::span<const double>());
  if (governor_->looks_at_values()) {
    std::array<std::int64_t, 2> sum = governor_->own_step(
        count_own_values(*reducer_, is_gpu() ? device_ : nullptr, gradient_, is_on_device_));
    reducer_->all_sum(sum);
    governor_->follow(sum);
  }
  reducer_->set_rate(governor_->order(seconds_now()));
}

const RateReport& GradientSync::rate_report() const {
  static const RateReport nothing;
  return governor_ ? governor_->report() : nothing;
}

void GradientSync::set_mean_bits(double bits) {
  if (!governor_ || !governor_->has_mean_bits()) {
    throw SettingError(Setting{"codec"}, options_.compress.text,
                       "has no bits= to change; allowed: ecq:bits=");
  }
  governor_->set_mean_bits(bits);
}

std::vector<UndeliveredPart> GradientSync::undelivered_parts() const {
  std::vector<UndeliveredPart> parts;
  if (!reducer_ || options_.adam || reducer_->residual().empty()) return parts;
  const std::size_t ranks = reducer_->hosts().size();
  const std::vector<Bucket>& in_use = reducer_->buckets();  // in a warm-up with other codecs
  for (std::size_t b = 0; b < in_use.size(); ++b) {
    const Bucket& bucket = in_use[b];
    if (bucket.velocity != Bucket::Velocity::masked || bucket.every > 1 ||
        !is_long_undelivered(bucket.codec) || !reducer_->topology_of(b).has_owner_weights) {
      continue;
    }
    const ElementRange own = reducer_->owned_by_this_rank(b);
    for (std::size_t t = bucket.first_tensor; t < bucket.end_tensor; ++t) {
      const TensorSlot& tensor = bucket.tensors[t - bucket.first_tensor];
      const std::size_t end = tensor.offset + tensor.elements();
      const std::size_t cuts[] = {tensor.offset, std::clamp(own.begin, tensor.offset, end),
                                  std::clamp(own.end, tensor.offset, end), end};
      for (std::size_t i = 0; i < 3; ++i) {
        if (cuts[i] == cuts[i + 1]) continue;
        parts.push_back({.tensor = t,
                         .offset = cuts[i],
                         .residual = reducer_->residual().subspan(cuts[i], cuts[i + 1] - cuts[i]),
                         .times = i == 1 ? 1.0f : static_cast<float>(ranks)});
      }
    }
  }
  return parts;
}

void GradientSync::list_state(StateVisitor& visitor) {
  reducer_->list_state(visitor);
  if (governor_) governor_->list_state(visitor);
}

void GradientSync::change_loss_scale(double factor) {
  if (factor != 1.0 && !buckets_.empty() && reducer_->state().adam() != nullptr) {
    throw_error(ErrorKind::usage,
                "Adam's steps do not depend on the scale of the loss: divide gradients by the "
                "scale, and leave the exchange's scale at 1");
  }
  const auto as_float = static_cast<float>(factor);
  if (!(as_float > 0.0f) || !std::isfinite(as_float)) {
    throw_error(ErrorKind::usage, "loss scale factor {}: must be a finite number above 0", factor);
  }
  if (factor == 1.0) return;
  if (!buckets_.empty()) reducer_->scale_memory(as_float);
  set_loss_scale(loss_scale_ * factor);
}

void GradientSync::set_loss_scale(double scale) {
  if (scale == loss_scale_) return;
  loss_scale_ = scale;
  if (governor_) governor_->set_scale(scale);
  // A threshold is a magnitude of gradients, so it scales with the loss.
  constexpr const char* kThreshold = "alpha";
  std::vector<CodecSpec> codecs;
  bool has_threshold = false;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    CodecSpec codec = reducer_->buckets()[b].codec;
    if (const auto alpha = codec.settings.find(kThreshold); alpha != codec.settings.end()) {
      has_threshold = true;
      const double at_start = buckets_[b].codec.number(kThreshold);
      alpha->second = std::clamp(at_start * scale, std::numeric_limits<double>::min(),
                                 find_codec(codec.name)->find(kThreshold)->most);
    }
    codecs.push_back(std::move(codec));
  }
  if (has_threshold) reducer_->replace_codecs(codecs);
}

void GradientSync::bucket_final(std::size_t bucket) {
  if (StepWatch* const steps = watch()) steps->bucket_final(bucket, seconds_now());
  if (link_) {
    link_->bucket_final(bucket);
  } else {
    reducer_->bucket_ready(bucket);
  }
}

void GradientSync::end_of_gradients() {
  if (StepWatch* const steps = watch()) steps->backward_ends(seconds_now());
  if (link_) link_->end_backward();
  tracker_.begin_step();
}

// ---- set-up -------------------------------------------------------------------------------------

GradientSync::GradientSync(Device* device, std::span<float> gradient,
                           std::vector<TensorSlot> tensors, GradientSyncOptions options)
    : device_(device), gradient_(gradient), options_(std::move(options)) {
  if (tensors.empty()) return;
  choose_tensor_codecs(tensors);
  options_.compress = options_.compress.for_network(gradient.size(), options_.ranks);
  if (options_.is_on_gpus) lengthen_segments();
  const CompressChoice& compress = options_.compress;
  if (options_.choose_bucket_bytes) {
    options_.bucket_bytes = options_.choose_bucket_bytes(tensors, compress.codec);
  }
  buckets_ = plan_buckets(tensors, {.bucket_bytes = options_.bucket_bytes,
                                    .codec = compress.codec,
                                    .optimizer_normalizes = options_.adam.has_value()});
  if (options_.is_one_host && options_.reducer.topology == "hierarchical") {
    // With this topology only sums between hosts are encoded, and here there are none.
    for (Bucket& bucket : buckets_) {
      if (!bucket.codec.is_exact()) bucket.why = "one host: fp32";
      bucket.codec = CodecSpec::exact();
      bucket.every = 1;
    }
  }
  check_streams(buckets_.size());
  bucket_of_tensor_.resize(tensors.size());
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    for (std::size_t t = buckets_[b].first_tensor; t < buckets_[b].end_tensor; ++t) {
      bucket_of_tensor_[t] = b;
    }
  }
  tracker_ = BucketTracker(bucket_of_tensor_);
  const double exchanges_of_gradient = take_velocities();
  for (const Bucket& bucket : buckets_) {
    if (exchange_kind(bucket.codec).has_momentum) check_momentum();
  }
  for (const Bucket& bucket : buckets_) {
    if (governor_ || !dp::has_rate(bucket.codec)) continue;
    governor_.emplace(bucket.codec, RateGovernorOptions{.compress = compress.text,
                                                        .topology = options_.reducer.topology,
                                                        .limits = compress.limits,
                                                        .planned_bits = options_.planned_bits,
                                                        .is_adam = options_.adam.has_value()});
    governor_->set_exchanges_of_gradient(exchanges_of_gradient);
  }
  if (is_gpu()) {
    is_on_device_ = takes_device_path(options_.path, *device_, buckets_, compress.text,
                                      options_.reducer.segment_bytes, options_.adam.has_value());
  }
}

// On a GPU, encoding a segment of ecq takes about 30 us however short it is (an estimate: two
// waits for kernels). With few planned bits, segments are longer in any case (segment_floats). The
// number of bytes in flight stays as it is.
void GradientSync::lengthen_segments() {
  constexpr std::size_t kFactor = 4, kLeastWindow = 4;
  const CodecSpec& codec = options_.compress.codec;
  if (!dp::has_rate(codec) || has_few_bits(codec)) return;
  if (options_.adam && takes_momentum(codec)) return;  // on the host
  options_.reducer.segment_bytes *= kFactor;
  options_.reducer.window = std::max(options_.reducer.window / kFactor, kLeastWindow);
}

GradientSync::~GradientSync() {
  // The reducer's thread uses other members of this object, so it must end before they are
  // destroyed.
  reducer_.reset();
}

void GradientSync::choose_tensor_codecs(std::vector<TensorSlot>& tensors) const {
  for (const auto& [pattern, codec] : options_.tensor_codecs) {
    if (dp::has_rate(codec) || exchange_kind(codec).has_momentum ||
        !suitable_topology(codec, options_.ranks).empty()) {
      throw_error(ErrorKind::usage,
                  "{}={}: not allowed for single tensors; allowed: none, bf16, fp16, q8, q4 and "
                  "other codecs without a rate or a topology of their own",
                  pattern, codec.text());
    }
    bool is_used = false;
    for (TensorSlot& tensor : tensors) {
      if (::fnmatch(pattern.c_str(), tensor.name.c_str(), 0) != 0) continue;
      is_used = true;
      tensor.codec = codec;
    }
    if (is_used) continue;
    const std::string why = fmt::format(
        "matches no tensor of the model; its first tensors are {}, {}", tensors.front().name,
        tensors[std::min<std::size_t>(1, tensors.size() - 1)].name);
    if (codec.is_exact()) throw SettingError(Setting{"exact tensors"}, pattern, why);
    throw_error(ErrorKind::usage, "{}={}: {}", pattern, codec.text(), why);
  }
}

bool GradientSync::has_momentum(std::size_t tensor) const {
  if (buckets_.empty()) return false;
  return takes_momentum(buckets_[bucket_of_tensor_[tensor]].codec);
}

// Sets the buckets' velocity modes. Returns the number of exchanges in which a gradient takes part
// because momentum repeats it: 1 / (1 - momentum), or 1 without velocities.
double GradientSync::take_velocities() {
  bool has_velocity = false;
  for (Bucket& bucket : buckets_) {
    const CodecSpec& spec = bucket.codec;
    if (!takes_momentum(spec) || exchange_kind(spec).has_momentum) continue;
    has_velocity = true;
    bucket.velocity =
        spec.has_choice("velocity", "masked") ? Bucket::Velocity::masked : Bucket::Velocity::on;
    if (!spec.feedback) {
      throw SettingError(Setting{"codec"}, options_.compress.text,
                         "velocity= needs error feedback; allowed: ef=on");
    }
  }
  if (!has_velocity) return 1.0;
  if (options_.adam) return 1.0 / std::max(1.0 - options_.adam->beta1, 1e-3);
  if (!options_.momentum) {
    throw SettingError(Setting{"codec"}, options_.compress.text,
                       "velocity= needs gradients that are exchanged at every step and not "
                       "clipped; allowed here: velocity=off");
  }
  // With growth=8 and a momentum of 0.9, this factor of 10 lets a residual grow to 80 times the
  // velocity. In a healthy run of ResNet-20 at 0.1 bits, residuals grew to more than 35 times the
  // velocity but stayed below 80 times.
  return 1.0 / std::max(1.0 - *options_.momentum, 1e-3);
}

void GradientSync::check_momentum() const {
  if (options_.has_nesterov) {
    throw SettingError(Setting{"codec"}, options_.compress.text,
                       "dgc applies its own momentum; allowed: Nesterov's momentum off",
                       ErrorKind::usage, Setting{"Nesterov's momentum"});
  }
  if (!options_.compress.codec.feedback) {
    throw SettingError(Setting{"codec"}, options_.compress.text,
                       "dgc needs error feedback; allowed: ef=on");
  }
}

void GradientSync::connect(Communicator& communicator) {
  std::span<float> gradient = gradient_;
  ReducerOptions options = options_.reducer;
  options.momentum = options_.momentum.value_or(0.0f);
  options.has_nesterov = options_.has_nesterov;
  options.adam = options_.adam;
  if (is_gpu()) {
    if (!is_on_device_) {
      host_gradient_ = device_->allocate_host(gradient.size_bytes());
      gradient = {reinterpret_cast<float*>(host_gradient_.get()), gradient.size()};
    }
    std::vector<BucketSlice> slices;
    for (const Bucket& bucket : buckets_) slices.push_back({bucket.offset, bucket.elements});
    link_ = make_bucket_link(*device_, gradient_.data(), is_on_device_ ? nullptr : gradient.data(),
                             std::move(slices));
    options.device = is_on_device_ ? device_ : nullptr;
    options.computing = device_;
    options.thread_start = [device = device_] { device->make_current(); };
    options.is_final = [link = link_.get()](std::size_t bucket) { return link->is_final(bucket); };
    if (!is_on_device_) {
      options.on_delivered = [link = link_.get()](std::size_t bucket) {
        link->return_sums(bucket);
      };
    }
  }
  take_sums_ = [this] {
    if (link_) link_->await_sums();
    has_taken_sums_ = true;
    (*when_finite_)();
  };
  if (!is_gpu() || !is_on_device_) sums_ = gradient;
  gaps_ = DeliveryGaps(buckets_);
  reducer_ = std::make_unique<Reducer>(communicator, gradient, buckets_, options);
  if (governor_) {
    governor_->connect(communicator.rank(), communicator.size(),
                       governor_->is_auto() ? watch_steps(*reducer_, options_.link_bytes_per_s,
                                                          options_.link_latency_s)
                                            : std::nullopt);
  }
}

void GradientSync::begin_epoch(std::size_t epoch) {
  if (options_.compress_warmup == 0) return;
  std::vector<CodecSpec> codecs;
  for (const Bucket& bucket : buckets_) {
    CodecSpec codec = bucket.codec;
    const bool is_warmup = epoch < options_.compress_warmup;
    if (is_warmup && codec.settings.contains("ratio")) {
      codec.settings["ratio"] = warmup_ratio(codec.number("ratio"), epoch);
    } else if (is_warmup) {
      codec = CodecSpec::exact();
    }
    codecs.push_back(std::move(codec));
  }
  reducer_->replace_codecs(codecs);
  // The new codecs have the thresholds of the start of the run; scale them again.
  const double scale = std::exchange(loss_scale_, 1.0);
  set_loss_scale(scale);
}

std::string GradientSync::path() const {
  if (!is_gpu() || buckets_.empty()) return {};
  return is_on_device_ ? "device" : "host";
}

}  // namespace dp
