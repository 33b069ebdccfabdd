#include "app/training/replica/sync_policy.hpp"

#include <cmath>
#include <utility>

#include "app/process/stop_vote.hpp"
#include "app/training/replica/round_policy.hpp"
#include "app/training/replica/step_ahead.hpp"
#include "kernels/base/error.hpp"
#include "kernels/sgd.hpp"

namespace dp {

void SyncPolicy::update_averages(double progress) {
  parts_.averages.update_lookahead(progress);
  parts_.averages.update_ema(progress);
}

// `wish` is the same on all ranks, because it came with the sums.
bool SyncPolicy::agree_on_stop(std::uint64_t, bool wish) { return wish; }

void SyncPolicy::swap_evaluated() { parts_.averages.swap(); }

void SyncPolicy::merge_ranks(Communicator&, std::size_t) {}

void SyncPolicy::list_state(StateVisitor&) {}

void SyncPolicy::finish(Communicator&) {}

namespace {

class EveryStep final : public SyncPolicy {
 public:
  explicit EveryStep(SyncParts& parts)
      : SyncPolicy(parts),
        tensor_final_([this](std::size_t tensor) { send(tensor); }),
        take_and_update_([this] {
          take_sums();
          (*update_)();
        }),
        ahead_(parts.device, parameters().values()) {}

  void plan_step(const StepPlace& place) override {
    learning_rate_ = place.learning_rate;
    if (place.in_epoch == place.of_epoch / 2 && parts_.ranks > 1) sync().reducer().sample_error();
  }
  void begin_step(std::uint64_t step, double progress) override {
    if (parts_.steps_ahead) ahead_.move(sync(), learning_rate_, parts_.rate_factors);
    sync().begin_step(step, progress);
  }
  [[nodiscard]] double loss_divisor(std::size_t global_samples) const override {
    return static_cast<double>(global_samples);  // so the exchange only adds
  }
  // Each bucket is sent as soon as the gradients of all its tensors are final.
  void backward(const TensorView& images) override {
    parts_.network.backward(images, tensor_final_);
  }
  void finish_without_batch() override {
    for (std::size_t t = 0; t < parts_.exchanged_decays.size(); ++t) add_decay(t);
    copy_to_exchanged(parameters().gradients(), 0);
    sync().all_final();
  }
  // judge() is the exchange's verdict, so the update may follow the sums at once.
  StepVerdict await_sums(const FollowUp::Action* update) override {
    update_ = update;
    has_taken_ = false;
    const StepVerdict verdict = sync().finish_step(update != nullptr ? &take_and_update_ : nullptr);
    if (!has_taken_) take_sums();
    return verdict;
  }
  [[nodiscard]] bool judge(const StepVerdict& verdict, const LossSums&) override {
    return verdict.finite;
  }
  [[nodiscard]] StateShare judged() const override { return StateShare::replicated; }
  SyncResult end_step(const StepVerdict& verdict, const StepPlace&) override {
    return {.stop = verdict.stop, .has_exchanged = true, .exchanges = 1};
  }

 private:
  void take_sums() {
    ahead_.restore();
    if (has_memory()) {
      blend_values(parts_.device, parts_.exchanged, parameters().gradients(), 1.0f);
    }
    has_taken_ = true;
  }
  void send(std::size_t tensor) {
    const net::Parameter& place = parameters().tensors()[tensor];
    const std::span<float> gradient =
        parameters().gradients().subspan(place.offset, place.elements);
    parts_.earlier.add_to(gradient);
    add_decay(tensor);
    copy_to_exchanged(gradient, place.offset);
    sync().tensor_final(tensor);
  }
  // Adds this rank's part of the weight decay to the gradient of a tensor whose momentum is applied
  // before the exchange.
  void add_decay(std::size_t tensor) {
    const float decay = parts_.exchanged_decays[tensor];
    if (decay == 0.0f) return;
    const net::Parameter& place = parameters().tensors()[tensor];
    add_values(parts_.device, parameters().values().subspan(place.offset, place.elements),
               parameters().gradients().subspan(place.offset, place.elements),
               decay / static_cast<float>(parts_.ranks));
  }
  [[nodiscard]] bool has_memory() {
    return parts_.exchanged.data() != parameters().gradients().data();
  }
  void copy_to_exchanged(std::span<const float> slice, std::size_t offset) {
    if (!has_memory()) return;
    blend_values(parts_.device, slice, parts_.exchanged.subspan(offset, slice.size()), 1.0f);
  }

  net::TensorCallback tensor_final_;
  FollowUp::Action take_and_update_;
  const FollowUp::Action* update_ = nullptr;  // of the running await_sums()
  bool has_taken_ = false;                    // the sums of the running await_sums()
  StepAhead ahead_;
  double learning_rate_ = 0.0;  // of the running step
};

// The policy of ranks that train alone. The exchange then has no tensors.
class Alone final : public OwnSteps {
 public:
  using OwnSteps::OwnSteps;

  void plan_step(const StepPlace&) override {}
  void begin_step(std::uint64_t step, double progress) override {
    OwnSteps::begin_step(step, progress);
    sync().begin_step(step, progress);
  }
  [[nodiscard]] double loss_divisor(std::size_t global_samples) const override {
    return static_cast<double>(global_samples);
  }
  void finish_without_batch() override {
    OwnSteps::finish_without_batch();
    sync().all_final();
  }
  StepVerdict await_sums(const FollowUp::Action*) override { return sync().finish_step(); }
  SyncResult end_step(const StepVerdict& verdict, const StepPlace&) override {
    return {.stop = verdict.stop};
  }
  [[nodiscard]] bool agree_on_stop(std::uint64_t steps, bool wish) override {
    if (parts_.ranks == 1) return wish;
    if (!StopVote::is_due(steps)) return false;
    return sync().reducer().run(
        [&](Communicator& comm) { return vote_.is_agreed(comm, steps, wish); });
  }
  void finish(Communicator& comm) override { vote_.finish(comm); }

 private:
  StopVote vote_;
};

}  // namespace

OwnSteps::OwnSteps(SyncParts& parts) : SyncPolicy(parts), squares_(parts.device) {}

void OwnSteps::begin_step(std::uint64_t, double) { squares_[0] = 0.0; }

// Computes the sum of the gradient's squares, with which judge() checks that all values are finite.
// The squares of finite floats do not overflow a double. (With an exchange, the exchange checks
// this.)
void OwnSteps::backward(const TensorView& images) {
  parts_.network.backward(images, {});
  parts_.earlier.add_to(parameters().gradients());
  sum_of_squares(parts_.device, parameters().gradients(), squares_.at(0));
}

void OwnSteps::finish_without_batch() {
  sum_of_squares(parts_.device, parameters().gradients(), squares_.at(0));
}

// Each rank decides for its own model, and also checks its own loss.
bool OwnSteps::judge(const StepVerdict&, const LossSums& loss) {
  return std::isfinite(loss.loss) && std::isfinite(squares_[0]);
}

SyncPolicies::SyncPolicies(SyncParts parts, bool exchange,
                           const std::optional<RoundOptions>& rounds,
                           const net::OptimizerOptions& optimizer)
    : parts_(std::move(parts)) {
  net::Parameters& parameters = parts_.network.parameters();
  parts_.exchanged = parameters.gradients();
  if (rounds && rounds->has_delay()) {
    exchanged_ = DeviceArray(parts_.device, parts_.exchanged.size());
    parts_.exchanged = exchanged_.values();
  }
  if (rounds) rounds_ = std::make_unique<RoundPolicy>(parts_, *rounds, optimizer);
  if (exchange) {
    first_ = std::make_unique<EveryStep>(parts_);
  } else {
    first_ = std::make_unique<Alone>(parts_);
  }
  now_ = first_.get();
}

SyncPolicies::~SyncPolicies() = default;

bool SyncPolicies::begin_epoch(std::size_t round_steps, double learning_rate) {
  SyncPolicy* const before = now_;
  const bool has_begun = std::exchange(has_begun_, true);
  DP_ASSERT(round_steps > 0 || before == first_.get(), "rounds cannot end before the run ends");
  if (round_steps == 0) return false;
  rounds_->set_length(round_steps);
  if (before == rounds_.get()) return false;
  rounds_->begin(learning_rate, has_begun);
  now_ = rounds_.get();
  return true;
}

void SyncPolicies::list_judgement(StateVisitor& visitor) {
  if (rounds_) rounds_->list_judgement(visitor, now_->judged());
}

}  // namespace dp
