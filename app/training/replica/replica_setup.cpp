// The set-up of a replica: the network's memory, the plan of the exchange, the optimiser's groups.
#include <algorithm>

#include "app/training/replica/replica.hpp"
#include "comm/topologies/exchange_kinds.hpp"
#include "kernels/base/error.hpp"
#include "kernels/base/setting_error.hpp"
#include "kernels/mix.hpp"

namespace dp {

namespace {

// If ranks differ between steps, each rank must keep its own copy of the state that training
// changes. This visitor then marks replicated state as own state. Frozen values never change, so
// they stay replicated.
class ShareVisitor final : public StateVisitor {
 public:
  ShareVisitor(StateVisitor& visitor, StateShare share) : visitor_(visitor), share_(share) {}

  void block(const StateBlock& block) override {
    StateBlock own = block;
    if (share_ == StateShare::own && block.share == StateShare::replicated &&
        !block.name.starts_with("frozen/")) {
      own.share = StateShare::own;
      own.merge = StateMerge::mean;
    }
    visitor_.block(own);
  }
  void text(const StateText& text) override { visitor_.text(text); }

 private:
  StateVisitor& visitor_;
  StateShare share_;
};

}  // namespace

bool can_leave_momentum_to(const CodecSpec& codec, net::OptimizerKind kind) {
  return net::can_leave_momentum(kind) ||
         (net::can_leave_step(kind) && !exchange_kind(codec).has_momentum);
}

Replica::Replica(Device& device, net::Graph graph, const ReplicaOptions& options)
    : device_(device),
      options_(options),
      desk_(options.batch_norm_ranks > 1 && options.exchange
                ? std::make_unique<GatherDesk>(options.batch_norm_ranks, host_trace())
                : nullptr),
      network_(device, std::move(graph), options.activation_type, options.seed),
      optimizer_(net::make_optimizer(device, network_.parameters(), options.optimizer)),
      loss_(device),
      averages_(device, network_.parameters(), options.averages),
      earlier_(device, network_.parameters().gradients(), options.accumulates),
      feed_(device, network_, options.normalization),
      clock_(device, options.trace),
      policies_({.device = device,
                 .network = network_,
                 .averages = averages_,
                 .earlier = earlier_,
                 .clock = clock_},
                options.exchange, options.rounds, options.optimizer) {
  early_update_.action = [this] {
    clock_.early_update_begins();
    enqueue_update(early_update_.planned);
    clock_.early_update_ends();
    early_update_.is_enqueued = true;
  };
  network_.set_trace(host_trace());
  network_.set_gather(desk_.get());
}

Replica::~Replica() {
  // The reducer's thread must end first, because this thread and the device's operations may still
  // use the other members.
  sync_.reset();
}

void Replica::prepare(std::size_t samples, net::Mode mode) {
  if (network_.is_prepared(samples, mode)) return;
  const std::size_t arena_bytes = network_.arena_bytes();
  device_.synchronize();  // operations may still use memory that grows
  const std::byte* const scratch = device_.scratch();
  network_.prepare(samples, mode);
  // Allocates now, so that memory runs out here and not in a step.
  const bool has_moved = device_.scratch() != scratch;
  if (has_moved || network_.arena_bytes() != arena_bytes) {
    recordings_.clear();  // they hold addresses
    rehearsals_.clear();
  }
  if (has_moved && sync_) set_groups();  // the recorded update uses the scratch memory, too
  if (!is_gpu()) return;
  feed_.prepare(samples);
  if (desk_ && mode == net::Mode::training) run_once(samples);
}

// Executes every operation of a step with this batch size once, so that libraries load what they
// need. Layers that gather values of all ranks get zeros, because no thread exchanges these values
// yet (desk_). The zeros are like sums over no images. The layers then compute a mean of NaN, which
// they keep out of their running statistics. Only gradients are changed.
void Replica::run_once(std::size_t samples) {
  if (samples == 0 || !run_once_.insert(samples).second) return;
  const LoadedBatch zeros = {.samples = samples, .global_samples = samples};
  const TensorView images = feed_.images_of(zeros);
  const TensorView logits = network_.forward(images, net::Mode::training);
  compute_loss(zeros, logits, 1.0);
  network_.backward(images, {});
  const std::span<float> gradients = network_.parameters().gradients();
  device_.fill_zero(gradients.data(), gradients.size_bytes());
  device_.synchronize();
}

void Replica::plan_exchange() {
  if (sync_) return;
  std::vector<TensorSlot> slots;
  if (options_.exchange) slots = tensor_slots();
  GradientSyncOptions sync = options_.sync;
  // The optimiser's kind is not checked here: if the codec applies momentum, set_groups() refuses
  // every optimiser that cannot leave its momentum to a codec.
  const net::OptimizerOptions& optimizer = options_.optimizer;
  sync.has_nesterov = optimizer.has_nesterov && net::can_leave_momentum(optimizer.kind);
  if (optimizer.clip_norm == 0.0 && !options_.rounds) {
    sync.momentum = optimizer.momentum;
    if (net::can_leave_step(optimizer.kind)) {
      sync.adam = {
          .beta1 = optimizer.beta1, .beta2 = optimizer.beta2, .epsilon = optimizer.epsilon};
    }
  }
  sync.reducer.desk = desk_.get();
  sync_ = std::make_unique<GradientSync>(&device_, policies_.parts().exchanged, std::move(slots),
                                         std::move(sync));
  policies_.parts().sync = sync_.get();
  policies_.parts().steps_ahead = desk_ == nullptr;
  set_groups();
}

std::vector<TensorSlot> Replica::tensor_slots() {
  std::vector<TensorSlot> slots;
  for (const net::Parameter& tensor : network_.parameters().tensors()) {
    const std::size_t rows = tensor.shape[0];
    slots.push_back({.offset = tensor.offset,
                     .rows = rows,
                     .columns = tensor.elements / rows,
                     .is_1d = tensor.kind == net::ParameterKind::vector,
                     .name = tensor.name});
  }
  return slots;
}

// Sets each tensor's factors to the factors that are given for its name. The factor of the learning
// rate is 0 if the tensor is not trained any more. The factors of momentum and weight decay are 0
// if the exchange applies these.
void Replica::set_groups() {
  const net::Parameters& parameters = network_.parameters();
  std::vector<net::GroupFactors> factors = net::named_factors(parameters, options_.groups);
  std::vector<float>& exchanged_decays = policies_.parts().exchanged_decays;
  exchanged_decays.assign(factors.size(), 0.0f);
  std::vector<float>& rate_factors = policies_.parts().rate_factors;
  rate_factors.clear();
  for (std::size_t t = 0; t < factors.size(); ++t) {
    if (!parameters.tensors()[t].is_trained_in(epoch_)) factors[t].learning_rate = 0.0;
    rate_factors.push_back(static_cast<float>(factors[t].learning_rate));
    if (!options_.exchange || !sync_->has_momentum(t)) continue;
    DP_ASSERT(!options_.rounds, "in rounds, momentum must not be applied before the exchange");
    if (!can_leave_momentum_to(options_.sync.compress.codec, options_.optimizer.kind)) {
      throw SettingError(
          Setting{"codec"}, options_.sync.compress.text,
          fmt::format("applies the momentum itself, but {} cannot leave its momentum to a codec; "
                      "allowed: {}",
                      net::optimizer_name(options_.optimizer.kind),
                      can_leave_momentum_to(options_.sync.compress.codec, net::OptimizerKind::adam)
                          ? "sgd, adam or adamw"
                          : "sgd"),
          ErrorKind::usage, Setting{"optimiser"});
    }
    factors[t].momentum = 0.0;
    // AdamW subtracts the weight decay from the weights, after the exchange.
    if (options_.optimizer.kind == net::OptimizerKind::adamw) continue;
    exchanged_decays[t] =
        options_.optimizer.weight_decay * static_cast<float>(factors[t].weight_decay);
    factors[t].weight_decay = 0.0;
  }
  optimizer_->set_groups(
      net::make_groups(parameters.tensors(), [&](std::size_t t) { return factors[t]; }));
}

void Replica::list_state(StateVisitor& visitor) {
  policy().list_state(visitor);
  ShareVisitor of_steps(visitor, policy().model_share());
  network_.parameters().list_state(of_steps);
  optimizer_->list_state(of_steps);
  averages_.list_state(of_steps, visitor);
  sync_->list_state(visitor);
  visitor.text({.name = "algorithms",
                .get = [this] { return device_.tuning().export_text(); },
                .set = [this](const std::string& text) { device_.tuning().import_text(text); }});
}

}  // namespace dp
