#include "app/replica.hpp"

#include <algorithm>

#include "kernels/base/error.hpp"
#include "kernels/base/setting_error.hpp"
#include "kernels/sgd.hpp"

namespace dp {

namespace {

float* floats(const Device::Memory& memory) { return reinterpret_cast<float*>(memory.get()); }

}  // namespace

void Replica::begin_epoch(std::size_t epoch) {
  sync_->begin_epoch(epoch);
  const bool changes = std::ranges::any_of(network_.parameters().tensors(), [&](const auto& t) {
    return t.is_trained_in(epoch) != t.is_trained_in(epoch_);
  });
  epoch_ = epoch;
  if (changes) set_groups();
}

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
  *squares_ = 0.0;
  network_.position().step = step;
  sync_->begin_step(step);
  if (options_.trace != nullptr) options_.trace->begin_step(step);
  clock_.step_begins(step);
  if (batch_.samples > 0) {
    bring_in(batch_);
    // Recorded when the first batch of this size comes, and replayed from then on.
    std::unique_ptr<Recording>& passes = recordings_[{batch_.samples, batch_.global_samples}];
    if (!passes) passes = device_.record([this] { forward_and_backward(); });
    passes->replay();
  } else {
    // A rank without samples in the last, smaller step still takes part in the exchange.
    zero_gradients();
  }
}

void Replica::await_loaded() {
  if (input_) input_->await_sent();
}

StepVerdict Replica::await_sums(double data_s) {
  const StepVerdict verdict = sync_->finish_step();
  clock_.exchanged(data_s);
  // Only here the device has certainly ended the step's computation, because without an exchange
  // nothing has waited for it before.
  loss_sums_ = *loss_;
  gradient_squares_ = *squares_;
  return verdict;
}

void Replica::update(double learning_rate) {
  optimizer_->step(learning_rate);
  clock_.updated();
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
  // Operations use the same view type for the images that they read and the outputs that they
  // write.
  return {network_.images_desc(batch.samples),
          input_ ? floats(image_memory_) : const_cast<float*>(batch.images)};
}

// The operations of a step. On a GPU they are recorded, so they may only depend on the numbers of
// samples.
void Replica::forward_and_backward() {
  const TensorView images = images_of(batch_);
  const TensorView logits = network_.forward(images, net::Mode::training);
  // The gradient is divided by the samples of all ranks here, so the exchange only adds.
  {
    const TraceSlice slice(host_trace(), TraceKind::loss);
    softmax_cross_entropy(device_, logits, input_ ? input_->labels() : batch_.labels,
                          static_cast<float>(options_.label_smoothing),
                          static_cast<double>(batch_.global_samples), network_.logit_gradient(),
                          loss_);
  }
  clock_.forward_ended();
  network_.backward(images, tensor_final_);
  // An exchange looks at every value; without one nobody else does. The squares of finite floats do
  // not overflow a double.
  if (!options_.exchange) sum_of_squares(device_, network_.parameters().gradients(), squares_);
  clock_.backward_ended();
}

void Replica::zero_gradients() {
  const std::span<float> gradients = network_.parameters().gradients();
  device_.fill_zero(gradients.data(), gradients.size_bytes());
  sync_->all_final();
  clock_.nothing_computed();
}

void Replica::list_state(StateVisitor& visitor) {
  network_.parameters().list_state(visitor);
  optimizer_->list_state(visitor);
  sync_->list_state(visitor);
  visitor.text({.name = "algorithms",
                .get = [this] { return device_.tuning().export_text(); },
                .set = [this](const std::string& text) { device_.tuning().import_text(text); }});
}

// ---- set-up -------------------------------------------------------------------------------------

Replica::Replica(Device& device, net::Graph graph, const ReplicaOptions& options)
    : device_(device),
      options_(options),
      network_(device, std::move(graph), options.activation_type, options.seed),
      optimizer_(net::make_optimizer(device, network_.parameters(), options.optimizer)),
      loss_memory_(device.allocate_host(sizeof(LossSums))),
      loss_(new (loss_memory_.get()) LossSums{}),
      squares_memory_(device.allocate_host(sizeof(double))),
      squares_(new (squares_memory_.get()) double(0.0)),
      clock_(device, options.trace) {
  network_.set_trace(host_trace());
  network_.position().first_image = options.rank;
  network_.position().image_stride = options.ranks;
  loaded_.reserve(2);
}

Replica::~Replica() {
  // The reducer's thread may still use members that are declared before it and freed after it.
  // Operations may still use all members.
  sync_.reset();
}

void Replica::prepare(std::size_t samples, net::Mode mode) {
  network_.prepare(samples, mode);
  // Allocates now, so that memory runs out here and not in a step.
  static_cast<void>(device_.scratch());
  if (!is_gpu() || samples <= largest_batch_) return;
  largest_batch_ = samples;
  const ImageShape& image = network_.image();
  input_ = make_input_link(device_, largest_batch_, image,
                           Normalizer(image, options_.normalization).table());
  image_memory_ = device_.allocate(network_.images_desc(largest_batch_).bytes());
}

void Replica::plan_exchange() {
  if (sync_) return;
  net::Parameters& parameters = network_.parameters();
  std::vector<TensorSlot> slots;
  if (options_.exchange) {
    for (const net::Parameter& tensor : parameters.tensors()) {
      const std::size_t rows = tensor.shape[0];
      slots.push_back({.offset = tensor.offset,
                       .rows = rows,
                       .columns = tensor.elements / rows,
                       .is_1d = tensor.kind == net::ParameterKind::vector,
                       .name = tensor.name});
    }
  }
  GradientSyncOptions sync = options_.sync;
  sync.weight_decay = options_.optimizer.weight_decay;
  sync.has_nesterov = options_.optimizer.has_nesterov;
  if (!is_gpu()) sync.parameters = parameters.values();
  sync_ = std::make_unique<GradientSync>(&device_, parameters.gradients(), std::move(slots),
                                         std::move(sync));
  set_groups();
  if (!options_.exchange) return;
  tensor_final_ = [this](std::size_t tensor) { sync_->tensor_final(tensor); };
}

// Factors by name, which tensors are trained no more, and what the exchange does instead of the
// optimiser.
void Replica::set_groups() {
  const net::Parameters& parameters = network_.parameters();
  std::vector<net::GroupFactors> factors = net::named_factors(parameters, options_.groups);
  for (std::size_t t = 0; t < factors.size(); ++t) {
    if (!parameters.tensors()[t].is_trained_in(epoch_)) factors[t].learning_rate = 0.0;
    if (!options_.exchange || !sync_->has_momentum(t)) continue;
    if (!net::can_leave_momentum(options_.optimizer.kind)) {
      throw SettingError(Setting::codec, options_.sync.compress,
                         fmt::format("keeps the momentum itself, which {} cannot leave to it; "
                                     "allowed with dgc: sgd",
                                     net::optimizer_name(options_.optimizer.kind)),
                         ErrorKind::usage, Setting::optimizer);
    }
    // The codec has one weight decay for all that it sends.
    if (factors[t].weight_decay != 1.0) {
      throw SettingError(Setting::codec, options_.sync.compress,
                         fmt::format("adds the same weight decay to all tensors that it sends, "
                                     "{} among them; give no factor for its decay",
                                     parameters.tensors()[t].name));
    }
    factors[t].weight_decay = factors[t].momentum = 0.0;
  }
  optimizer_->set_groups(
      net::make_groups(parameters.tensors(), [&](std::size_t t) { return factors[t]; }));
}

}  // namespace dp
