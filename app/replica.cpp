#include "app/replica.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "kernels/base/error.hpp"
#include "kernels/codecs/codec.hpp"

namespace dp {

namespace {

float* floats(const Device::Memory& memory) { return reinterpret_cast<float*>(memory.get()); }

bool is_dgc(const Bucket& bucket) { return parse_codec_spec(bucket.codec).name == "dgc"; }

// An object in memory that both the host and operations can reach.
template <class T>
T* shared_object(const Device::Memory& memory) {
  return new (memory.get()) T{};
}

}  // namespace

// ---- a step -------------------------------------------------------------------------------------

void Replica::load(const Batch& batch) {
  DP_ASSERT(loaded_.size() < 2, "{} batches are loaded already", loaded_.size());
  loaded_.push_back({.images = batch.images.data(),
                     .labels = batch.labels.data(),
                     .samples = batch.samples,
                     .global_samples = batch.global_samples});
  if (input_ && batch.samples > 0) input_->send(batch.bytes, batch.crops, batch.labels);
}

void Replica::compute(std::uint64_t step) {
  DP_ASSERT(!loaded_.empty(), "no batch is loaded");
  batch_ = loaded_.front();
  loaded_.erase(loaded_.begin());
  *loss_ = {};
  if (link_) link_->begin_step(step);
  reducer_->begin_step(step);
  if (options_.trace != nullptr) options_.trace->begin_step(step);
  clock_.step_begins(step);
  if (batch_.samples > 0) {
    bring_in(batch_);
    recording(batch_).replay();
  } else {
    // A rank without samples in the last, uneven step takes part in the exchange all the same.
    zero_gradients();
  }
}

void Replica::await_loaded() {
  if (input_) input_->await_sent();
}

StepVerdict Replica::exchange(double data_s) {
  const StepVerdict verdict = reducer_->wait_step();
  if (link_) link_->await_sums();
  clock_.exchanged(data_s);
  // Only now is a device certain to have ended the step's computation: without an exchange nothing
  // before has waited for it.
  loss_sums_ = *loss_;
  return verdict;
}

void Replica::update(double learning_rate) {
  *sgd_ = options_.sgd;
  sgd_->learning_rate = static_cast<float>(learning_rate);
  if (dgc_) {
    // Momentum and weight decay came before the exchange.
    *dgc_sgd_ = *sgd_;
    dgc_sgd_->momentum = dgc_sgd_->weight_decay = 0.0f;
  }
  update_->replay();
  clock_.updated();
}

void Replica::update_operations() {
  net::Parameters& parameters = network_.parameters();
  // All ranks hold the same bits, so all clip alike.
  const bool clips = options_.sgd.clip_norm > 0;
  if (clips) sum_of_squares(device_, parameters.gradients(), squares_);
  const auto update = [&](std::size_t offset, std::size_t count, const SgdStep* step) {
    sgd_update(device_, parameters.values().subspan(offset, count),
               parameters.gradients().subspan(offset, count),
               std::span(floats(velocity_), parameters.size()).subspan(offset, count), step,
               clips ? squares_ : nullptr);
  };
  if (!dgc_) {
    update(0, parameters.size(), sgd_);
    return;
  }
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    update(buckets_[b].offset, buckets_[b].elements, is_dgc_[b] ? dgc_sgd_ : sgd_);
  }
}

void Replica::skip_update() { clock_.updated(); }

LossSums Replica::evaluate() {
  DP_ASSERT(!loaded_.empty(), "no batch is loaded");
  const LoadedBatch batch = loaded_.front();
  loaded_.erase(loaded_.begin());
  if (batch.samples == 0) return {};
  bring_in(batch);
  const TensorView logits = network_.forward(images_of(batch), net::Mode::evaluation);
  softmax_cross_entropy(device_, logits, input_ ? input_->labels() : batch.labels, 0.0f, 1.0, {},
                        loss_);
  device_.synchronize();
  return *loss_;
}

void Replica::bring_in(const LoadedBatch& batch) {
  if (input_) input_->receive(images_of(batch));
}

TensorView Replica::images_of(const LoadedBatch& batch) {
  const Shape shape = {batch.samples, kImageHeight, kImageWidth, kImageChannels};
  // Operations read images through the same view type that they write outputs through.
  return {TensorDesc::nhwc(shape),
          input_ ? floats(image_memory_) : const_cast<float*>(batch.images)};
}

Recording& Replica::recording(const LoadedBatch& batch) {
  std::unique_ptr<Recording>& known = recordings_[{batch.samples, batch.global_samples}];
  if (!known) known = device_.record([this] { forward_and_backward(); });
  return *known;
}

// The operations of a step. On a GPU they are recorded, so that nothing here may depend on more
// than the numbers of samples.
void Replica::forward_and_backward() {
  if (tracker_) tracker_->begin_step();
  const TensorView images = images_of(batch_);
  const TensorView logits = network_.forward(images, net::Mode::training);
  // The gradient is divided by the samples of all ranks, so the exchange only adds.
  {
    const TraceSlice slice(host_trace(), TraceKind::loss);
    softmax_cross_entropy(device_, logits, input_ ? input_->labels() : batch_.labels,
                          static_cast<float>(options_.label_smoothing),
                          static_cast<double>(batch_.global_samples), network_.logit_gradient(),
                          loss_);
  }
  clock_.forward_ended();
  network_.backward(images, tensor_final_);
  if (!options_.overlap) all_buckets_final();
  if (link_) link_->end_backward();
  clock_.backward_ended();
}

void Replica::zero_gradients() {
  const std::span<float> gradients = network_.parameters().gradients();
  device_.fill_zero(gradients.data(), gradients.size_bytes());
  all_buckets_final();
  if (link_) link_->end_backward();
  clock_.nothing_computed();
}

void Replica::bucket_final(std::size_t bucket) {
  if (link_) {
    link_->bucket_final(bucket);
  } else {
    reducer_->bucket_ready(bucket);
  }
}

// --overlap off: nothing leaves before backward has ended.
void Replica::all_buckets_final() {
  for (std::size_t b = 0; b < buckets_.size(); ++b) bucket_final(b);
}

// ---- set-up -------------------------------------------------------------------------------------

Replica::Replica(Device& device, net::Graph graph, const ReplicaOptions& options)
    : device_(device),
      options_(options),
      network_(device, std::move(graph), options.activation_type, options.seed),
      velocity_(device.allocate(network_.parameters().size() * sizeof(float))),
      loss_memory_(device.allocate_host(sizeof(LossSums))),
      step_memory_(device.allocate_host(sizeof(SgdStep))),
      squares_memory_(device.allocate_host(sizeof(double))),
      loss_(shared_object<LossSums>(loss_memory_)),
      sgd_(shared_object<SgdStep>(step_memory_)),
      squares_(shared_object<double>(squares_memory_)),
      clock_(device, options.trace) {
  network_.set_trace(host_trace());
  loaded_.reserve(2);
  update_ = device_.record([this] { update_operations(); });
}

Replica::~Replica() {
  // The reducer's thread may still use what is declared before it and freed after it; operations
  // may still use everything.
  reducer_.reset();
}

void Replica::prepare(std::size_t samples, net::Mode mode) {
  network_.prepare(samples, mode);
  // Asked for now, so that memory runs out here and not in a step.
  static_cast<void>(device_.scratch());
  if (!is_gpu() || samples <= largest_batch_) return;
  largest_batch_ = samples;
  input_ = make_input_link(device_, largest_batch_, kImageBytes, Normalizer().table());
  image_memory_ = device_.allocate(largest_batch_ * kImageBytes * sizeof(float));
}

void Replica::plan_exchange() {
  if (!buckets_.empty() || !options_.exchange) return;
  std::vector<bool> is_used(options_.exact_tensors.size(), false);
  const auto is_exact = [&](const std::string& name) {
    bool is_matched = false;
    for (std::size_t i = 0; i < is_used.size(); ++i) {
      if (::fnmatch(options_.exact_tensors[i].c_str(), name.c_str(), 0) != 0) continue;
      is_used[i] = is_matched = true;
    }
    return is_matched;
  };
  std::vector<TensorSlot> slots;
  for (const net::Parameter& tensor : network_.parameters().tensors()) {
    const std::size_t rows = tensor.shape[0];
    slots.push_back({.offset = tensor.offset,
                     .rows = rows,
                     .columns = tensor.elements / rows,
                     .is_1d = tensor.kind == net::ParameterKind::vector,
                     .is_exact = is_exact(tensor.name)});
  }
  for (std::size_t i = 0; i < is_used.size(); ++i) {
    if (is_used[i]) continue;
    throw_error(ErrorKind::usage,
                "--compress-exclude {}: no tensor of the model has such a name; the first ones are "
                "{}, {}",
                options_.exact_tensors[i], network_.parameters().tensors().front().name,
                network_.parameters().tensors()[1].name);
  }
  buckets_ =
      plan_buckets(slots, {.bucket_bytes = options_.bucket_bytes, .codec = options_.compress});
  if (options_.is_one_host && options_.reducer.topology == "hierarchical") {
    // Its ranks add up in fp32; only between hosts would anything be encoded.
    for (Bucket& bucket : buckets_) {
      if (bucket.codec != "none") bucket.why = "one host: fp32";
      bucket.codec = "none";
    }
  }
  check_bucket_count(parse_codec_spec(options_.compress), buckets_.size());
  std::vector<std::size_t> bucket_of_tensor(slots.size());
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    for (std::size_t t = buckets_[b].first_tensor; t < buckets_[b].end_tensor; ++t) {
      bucket_of_tensor[t] = b;
    }
  }
  tracker_.emplace(std::move(bucket_of_tensor));
  tensor_final_ = [this](std::size_t tensor) {
    tracker_->tensor_final(tensor, [this](std::size_t bucket) {
      if (options_.overlap) bucket_final(bucket);
    });
  };
  if (std::any_of(buckets_.begin(), buckets_.end(), is_dgc)) check_dgc();
  if (is_gpu()) choose_path();
}

void Replica::choose_path() {
  const auto has_device_form = [&] {
    return std::all_of(buckets_.begin(), buckets_.end(), [&](const Bucket& bucket) {
      return has_codec(parse_codec_spec(bucket.codec), device_.kind());
    });
  };
  switch (options_.path) {
    case ExchangePath::host:
      return;
    case ExchangePath::device:
      if (!has_device_form()) {
        throw_error(
            ErrorKind::usage,
            "--gpu-exchange device: --compress {} has no form for GPUs; allowed: host, auto",
            options_.compress);
      }
      is_on_device_ = true;
      return;
    case ExchangePath::automatic:
      break;
  }
  if (!has_device_form()) return;
  const std::vector<std::string> paths = {"device", "host"};
  is_on_device_ = device_.tuning().choose("gradient exchange", paths, [&](std::size_t i) {
    return seconds_of_path(i == 0);
  }) == 0;
}

// What the reducer's thread does for a segment on one hop: decode, add, encode.
double Replica::seconds_of_path(bool on_device) {
  // The codec of most values: --compress may be for none of them.
  const auto largest =
      std::max_element(buckets_.begin(), buckets_.end(),
                       [](const Bucket& a, const Bucket& b) { return a.elements < b.elements; });
  const CodecSpec spec = parse_codec_spec(largest->codec);
  const std::unique_ptr<Codec> codec = on_device ? make_codec(spec, device_) : make_codec(spec);
  const std::size_t count = (options_.reducer.segment_bytes / sizeof(float) + codec->block() - 1) /
                            codec->block() * codec->block();
  const auto memory = [&](std::size_t bytes) {
    return on_device ? device_.allocate(bytes) : device_.allocate_host(bytes);
  };
  const std::size_t most = codec->max_payload_bytes(count);
  const Device::Memory values = memory(count * sizeof(float)),
                       residual = memory(count * sizeof(float)),
                       received = device_.allocate_host(most), sent = device_.allocate_host(most);
  const std::span<float> partial(floats(values), count);
  const EncodeResult first =
      codec->encode(partial, floats(residual), {received.get(), most}, EncodePlace{});
  const auto hop = [&] {
    static_cast<void>(codec->decode_add_encode({received.get(), first.payload_bytes}, partial,
                                               floats(residual), {sent.get(), most},
                                               EncodePlace{}));
  };
  hop();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 20; ++i) hop();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void Replica::connect(Communicator& comm) {
  net::Parameters& parameters = network_.parameters();
  std::span<float> gradient = parameters.gradients();
  ReducerOptions options = options_.reducer;
  reducer_ranks_ = static_cast<std::size_t>(comm.size());
  if (is_gpu()) {
    if (!is_on_device_) {
      host_gradient_ = device_.allocate_host(gradient.size_bytes());
      gradient = {floats(host_gradient_), gradient.size()};
    }
    std::vector<BucketSlice> slices;
    for (const Bucket& bucket : buckets_) slices.push_back({bucket.offset, bucket.elements});
    link_ = make_bucket_link(device_, parameters.gradients().data(),
                             is_on_device_ ? nullptr : gradient.data(), std::move(slices));
    options.device = is_on_device_ ? &device_ : nullptr;
    options.thread_start = [this] { device_.make_current(); };
    options.is_final = [link = link_.get()](std::size_t bucket) { return link->is_final(bucket); };
    if (!is_on_device_) {
      options.on_delivered = [link = link_.get()](std::size_t bucket) {
        link->return_sums(bucket);
      };
    }
  }
  if (std::any_of(buckets_.begin(), buckets_.end(), is_dgc)) connect_dgc(options);
  reducer_ = std::make_unique<Reducer>(comm, gradient, buckets_, options);
}

void Replica::check_dgc() const {
  if (is_gpu()) {
    throw_error(
        ErrorKind::usage,
        "--compress {}: dgc's momentum is kept by the host's processor; with a GPU use topk",
        options_.compress);
  }
  if (options_.sgd.has_nesterov) {
    throw_error(ErrorKind::usage,
                "--compress {}: dgc has a momentum of its own; allowed: "
                "--nesterov off",
                options_.compress);
  }
  const CodecSpec spec = parse_codec_spec(options_.compress);
  if (!spec.feedback) {
    throw_error(ErrorKind::usage,
                "--compress {}: dgc gathers what it does not send in the residual; allowed: ef=on",
                options_.compress);
  }
}

// Where buckets are sent as dgc, their momentum and weight decay come before the exchange
// (dgc.hpp).
void Replica::connect_dgc(ReducerOptions& options) {
  const CodecSpec spec = parse_codec_spec(options_.compress);
  net::Parameters& parameters = network_.parameters();
  const std::size_t ranks = reducer_ranks_;
  dgc_ = std::make_unique<DgcMomentum>(
      parameters.size(), DgcOptions{.momentum = static_cast<float>(spec.number("momentum")),
                                    .clip = spec.number("clip"),
                                    .ranks = ranks});
  dgc_step_memory_ = device_.allocate_host(sizeof(SgdStep));
  dgc_sgd_ = shared_object<SgdStep>(dgc_step_memory_);
  options.before_start = [this, ranks](std::size_t b) {
    const Bucket& bucket = buckets_[b];
    if (!is_dgc_[b]) return;
    net::Parameters& p = network_.parameters();
    const std::span<float> gradient = p.gradients().subspan(bucket.offset, bucket.elements);
    const std::span<const float> values = p.values().subspan(bucket.offset, bucket.elements);
    // The exchange adds the parts of all ranks.
    const float decay = options_.sgd.weight_decay / static_cast<float>(ranks);
    for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] += decay * values[i];
    dgc_->prepare(bucket.offset, gradient);
  };
  options.on_delivered = [this](std::size_t b) {
    const Bucket& bucket = buckets_[b];
    if (!is_dgc_[b] || reducer_->residual().empty()) return;
    if (options_.reducer.topology == "hierarchical") {
      // Ranks that do not lead their host encode nothing, so their residuals tell nothing.
      dgc_->mask_delivered(
          bucket.offset, network_.parameters().gradients().subspan(bucket.offset, bucket.elements));
      return;
    }
    dgc_->mask(bucket.offset, reducer_->residual().subspan(bucket.offset, bucket.elements));
  };
  for (const Bucket& bucket : buckets_) is_dgc_.push_back(is_dgc(bucket));
}

void Replica::begin_epoch(std::size_t epoch) {
  if (options_.compress_warmup == 0) return;
  std::vector<std::string> specs;
  for (const Bucket& bucket : buckets_) {
    CodecSpec spec = parse_codec_spec(bucket.codec);
    const bool is_warm = epoch >= options_.compress_warmup;
    if (!is_warm && spec.settings.contains("ratio")) {
      spec.settings["ratio"] = dgc_ratio(spec.number("ratio"), epoch);
    } else if (!is_warm) {
      spec = parse_codec_spec("none");
    }
    specs.push_back(spec.text());
  }
  reducer_->replace_codecs(specs);
}

std::string Replica::path() const {
  if (!is_gpu()) return {};
  return is_on_device_ ? "device" : "host";
}

}  // namespace dp
