#include "comm/gradient_sync.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/base/setting_error.hpp"
#include "kernels/codecs/codec.hpp"

namespace dp {
// ---- a step -------------------------------------------------------------------------------------

void GradientSync::begin_step(std::uint64_t step, double progress,
                              std::optional<std::uint64_t> number) {
  is_round_ = number.has_value();
  if (has_rate()) order_rate(step, number.value_or(step), progress);
  if (link_) link_->begin_step(step);
  reducer_->begin_step(step);
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

StepVerdict GradientSync::finish_step() {
  const double waits_since_s = seconds_now();
  const StepVerdict verdict = reducer_->wait_step();
  if (auto_rate_) {
    times_.exposed_s = seconds_now() - waits_since_s;
    times_.busy = verdict.busy;
    has_times_ = true;
  }
  if (has_rate()) steer_rate(verdict);
  if (link_) link_->await_sums();
  if (verdict.finite && !sums_.empty()) gaps_.add(sums_);
  return verdict;
}

void GradientSync::list_state(StateVisitor& visitor) {
  reducer_->list_state(visitor);
  if (has_rate()) list_rate_state(visitor);
}

void GradientSync::change_scale(float factor) {
  scale_residual(factor);
  rate_ = {};
  rate_.set_scale(loss_scale_);
  histograms_.reset();
  // What follows from the times of steps, too, but for what is known of the link.
  has_times_ = false;
  if (auto_rate_) auto_rate_->forget_times();
}

void GradientSync::change_loss_scale(double factor) {
  const auto as_float = static_cast<float>(factor);
  if (!(as_float > 0.0f) || !std::isfinite(as_float)) {
    throw_error(ErrorKind::usage,
                "a loss scale cannot become {} times as large; allowed: a finite number above 0",
                factor);
  }
  if (factor == 1.0) return;
  if (!buckets_.empty()) reducer_->scale_memory(as_float);
  set_loss_scale(loss_scale_ * factor);
}

void GradientSync::set_loss_scale(double scale) {
  if (scale == loss_scale_) return;
  loss_scale_ = scale;
  rate_.set_scale(scale);
  // A threshold is a magnitude of gradients.
  constexpr const char* kThreshold = "alpha";
  std::vector<std::string> specs;
  bool has_threshold = false;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    CodecSpec spec = parse_codec_spec(reducer_->buckets()[b].codec);
    if (const auto alpha = spec.settings.find(kThreshold); alpha != spec.settings.end()) {
      has_threshold = true;
      const double at_start = parse_codec_spec(buckets_[b].codec).number(kThreshold);
      alpha->second = std::clamp(at_start * scale, std::numeric_limits<double>::min(),
                                 find_codec(spec.name)->find(kThreshold)->most);
    }
    specs.push_back(spec.text());
  }
  if (has_threshold) reducer_->replace_codecs(specs);
}

void GradientSync::all_mean(std::span<float> values) {
  const double begin_s = seconds_now();
  reducer_->all_mean(values);
  times_.exposed_s += seconds_now() - begin_s;
}

void GradientSync::scale_residual(float factor) { reducer_->scale_residual(factor); }

void GradientSync::keep_residual() {
  // What was sent in the last step may still be forwarded.
  reducer_->run([](Communicator&) {});
  const std::span<float> residual = reducer_->residual();
  kept_residual_.resize(residual.size());
  if (is_gpu() && is_on_device_) {
    device_->download(kept_residual_.data(), residual.data(), residual.size_bytes());
  } else {
    std::ranges::copy(residual, kept_residual_.begin());
  }
}

void GradientSync::bring_back_residual() {
  const std::span<float> residual = reducer_->residual();
  if (is_gpu() && is_on_device_) {
    device_->upload(residual.data(), kept_residual_.data(), residual.size_bytes());
  } else {
    std::ranges::copy(kept_residual_, residual.begin());
  }
}

void GradientSync::bucket_final(std::size_t bucket) {
  if (auto_rate_) ready_s_[bucket] = seconds_now();
  if (link_) {
    link_->bucket_final(bucket);
  } else {
    reducer_->bucket_ready(bucket);
  }
}

void GradientSync::end_of_gradients() {
  if (auto_rate_) times_.backward_end_s = seconds_now();
  if (link_) link_->end_backward();
  tracker_.begin_step();
}

// ---- set-up -------------------------------------------------------------------------------------

GradientSync::GradientSync(Device* device, std::span<float> gradient,
                           std::vector<TensorSlot> tensors, GradientSyncOptions options)
    : device_(device), gradient_(gradient), options_(std::move(options)) {
  const CompressChoice choice = parse_compress(options_.compress, options_.auto_sends_velocities);
  codec_ = choice.codec;
  limits_ = choice.limits;
  if (tensors.empty()) return;
  mark_exact_tensors(tensors);
  if (options_.choose_bucket_bytes) options_.bucket_bytes = options_.choose_bucket_bytes(tensors);
  buckets_ = plan_buckets(tensors, {.bucket_bytes = options_.bucket_bytes, .codec = codec_});
  if (options_.is_one_host && options_.reducer.topology == "hierarchical") {
    // The ranks of one host add in fp32; only sums between hosts are encoded.
    for (Bucket& bucket : buckets_) {
      if (bucket.codec != "none") bucket.why = "one host: fp32";
      bucket.codec = "none";
    }
  }
  for (const Bucket& bucket : buckets_) {
    const CodecSpec spec = parse_codec_spec(bucket.codec);
    if (dp::has_rate(spec)) take_rate(spec);
  }
  check_streams(buckets_.size());
  bucket_of_tensor_.resize(tensors.size());
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    for (std::size_t t = buckets_[b].first_tensor; t < buckets_[b].end_tensor; ++t) {
      bucket_of_tensor_[t] = b;
    }
  }
  tracker_ = BucketTracker(bucket_of_tensor_);
  take_velocities();
  for (const Bucket& bucket : buckets_) {
    if (exchange_kind(parse_codec_spec(bucket.codec)).has_momentum) check_momentum();
  }
  check_rate();
  if (is_gpu()) {
    is_on_device_ = takes_device_path(options_.path, *device_, buckets_, options_.compress,
                                      options_.reducer.segment_bytes);
  }
}

GradientSync::~GradientSync() {
  // The reducer's thread uses what is declared before it.
  reducer_.reset();
}

void GradientSync::mark_exact_tensors(std::vector<TensorSlot>& tensors) const {
  for (const std::string& pattern : options_.exact_tensors) {
    bool is_used = false;
    for (TensorSlot& tensor : tensors) {
      if (::fnmatch(pattern.c_str(), tensor.name.c_str(), 0) != 0) continue;
      is_used = tensor.is_exact = true;
    }
    if (is_used) continue;
    throw SettingError(
        Setting::exact_tensors, pattern,
        fmt::format("no tensor of the model has such a name; the first ones are {}, {}",
                    tensors.front().name,
                    tensors[std::min<std::size_t>(1, tensors.size() - 1)].name));
  }
}

bool GradientSync::has_momentum(std::size_t tensor) const {
  if (buckets_.empty()) return false;
  const Bucket& bucket = buckets_[bucket_of_tensor_[tensor]];
  return takes_momentum(parse_codec_spec(bucket.codec));
}

void GradientSync::take_velocities() {
  bool has_velocity = false;
  for (Bucket& bucket : buckets_) {
    const CodecSpec spec = parse_codec_spec(bucket.codec);
    if (!takes_momentum(spec) || exchange_kind(spec).has_momentum) continue;
    has_velocity = true;
    bucket.velocity =
        spec.has_choice("velocity", "masked") ? Bucket::Velocity::masked : Bucket::Velocity::on;
    if (!spec.feedback) {
      throw SettingError(Setting::codec, options_.compress,
                         "velocity= gathers what is not sent in the residual; allowed: ef=on");
    }
  }
  if (!has_velocity) return;
  if (!options_.momentum) {
    throw SettingError(Setting::codec, options_.compress,
                       "velocity= needs gradients that are exchanged at every step and not "
                       "clipped; allowed here: velocity=off");
  }
  // With 0.1 bits and a momentum of 0.9 a sound run of ResNet-20 came to more than 35 times the
  // velocity, and not to 80.
  exchanges_of_gradient_ = 1.0 / std::max(1.0 - *options_.momentum, 1e-3);
}

void GradientSync::check_momentum() const {
  if (options_.has_nesterov) {
    throw SettingError(Setting::codec, options_.compress,
                       "dgc has a momentum of its own; allowed: Nesterov's momentum off",
                       ErrorKind::usage, Setting::nesterov);
  }
  if (!parse_codec_spec(codec_).feedback) {
    throw SettingError(Setting::codec, options_.compress,
                       "dgc gathers what it does not send in the residual; allowed: ef=on");
  }
}

void GradientSync::connect(Communicator& communicator) {
  std::span<float> gradient = gradient_;
  ReducerOptions options = options_.reducer;
  options.momentum = options_.momentum.value_or(0.0f);
  options.has_nesterov = options_.has_nesterov;
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
  rank_ = static_cast<std::uint64_t>(communicator.rank());
  ranks_ = static_cast<std::uint64_t>(communicator.size());
  if (!is_gpu() || !is_on_device_) sums_ = gradient;
  gaps_ = DeliveryGaps(buckets_);
  reducer_ = std::make_unique<Reducer>(communicator, gradient, buckets_, options);
  if (limits_) watch_link();
}

void GradientSync::begin_epoch(std::size_t epoch) {
  if (options_.compress_warmup == 0) return;
  std::vector<std::string> specs;
  for (const Bucket& bucket : buckets_) {
    CodecSpec spec = parse_codec_spec(bucket.codec);
    const bool is_warmup = epoch < options_.compress_warmup;
    if (is_warmup && spec.settings.contains("ratio")) {
      spec.settings["ratio"] = warmup_ratio(spec.number("ratio"), epoch);
    } else if (is_warmup) {
      spec = parse_codec_spec("none");
    }
    specs.push_back(spec.text());
  }
  reducer_->replace_codecs(specs);
  // The new codecs have the thresholds of the start.
  const double scale = std::exchange(loss_scale_, 1.0);
  set_loss_scale(scale);
}

std::string GradientSync::path() const {
  if (!is_gpu() || buckets_.empty()) return {};
  return is_on_device_ ? "device" : "host";
}

}  // namespace dp
