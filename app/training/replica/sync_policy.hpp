// Policies decide when ranks exchange, and what they exchange. A run has one of three policies, or
// two of them one after the other (--sync-every with from= or "auto"):
//
//   every step   the sum of the ranks' gradients, at every step
//   rounds       each rank trains alone for some steps, and then all ranks exchange the changes of
//                their parameters (round_sync.hpp)
//   alone        nothing (--exchange off)
//
// Training loop and replica call the same functions at the same places, whatever the policy is:
//
//     function                 caller    when
//     plan_step()              loop      before the step's first batch
//     begin_step()             replica   at the start of the step's first part
//     loss_divisor()           replica   in the forward pass
//     backward()               replica   for the step's last part
//     finish_without_batch()   replica   instead of backward(), if the rank has no batch
//     await_sums()             replica   after either of them
//     judge()                  loop      to decide whether to update the parameters
//     update_averages()        replica   after the update
//     end_step()               loop      after the update, or after the decision against it
//     agree_on_stop()          loop      at the end of the step
//
// Between begin_step() and await_sums() a rank's parameters may be ahead of the common ones
// (step_ahead.hpp).
//
// All ranks make the same calls. Failures are thrown as in comm/gradient_sync.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "app/output/exchange_window.hpp"
#include "app/training/replica/averages.hpp"
#include "app/training/replica/earlier_parts.hpp"
#include "app/training/replica/round_sync.hpp"
#include "app/training/replica/step_clock.hpp"
#include "comm/gradient_sync.hpp"
#include "comm/mpi/communicator.hpp"
#include "kernels/arrays.hpp"
#include "kernels/device.hpp"
#include "kernels/softmax_cross_entropy.hpp"
#include "net/network.hpp"
#include "net/optimizer.hpp"

namespace dp {

struct RoundOptions {
  std::size_t ranks = 1;
  OuterOptions outer = {};
  // Steps of the next round that run while an exchange is under way; 0: all ranks wait for the
  // exchange.
  std::size_t delay = 0;
  bool has_longest_delay = false;  // the delay is one step less than a round; `delay` is not used

  [[nodiscard]] bool has_delay() const { return delay > 0 || has_longest_delay; }
};

// The parts of a replica that a policy uses. The replica owns them.
struct SyncParts {
  Device& device;
  net::Network& network;
  Averages& averages;
  EarlierParts& earlier;
  StepClock& clock;
  // The exchanged values: the model's gradients or, if rounds have a delay, separate memory,
  // because the gradients of the next round are computed while an exchange is under way.
  std::span<float> exchanged = {};
  // For each tensor, the weight decay that is added to the gradient before the exchange, because
  // the exchange applies the tensor's momentum. 0 if the optimiser applies decay and momentum.
  std::vector<float> exchanged_decays = {};
  std::vector<float> rate_factors = {};  // for each tensor, a factor of the learning rate
  // Whether ranks compute gradients ahead of the common parameters (step_ahead.hpp). Layers that
  // combine values of all ranks rule this out, because all ranks must then compute with the same
  // parameters.
  bool steps_ahead = true;
  std::size_t ranks = 1;
  GradientSync* sync = nullptr;  // null until it is planned
};

// A step and its place in the epoch.
struct StepPlace {
  std::uint64_t step = 0;  // of the run
  std::size_t in_epoch = 0, of_epoch = 1;
  double learning_rate = 1.0;
  double progress = -1.0;  // fraction of the run done, with this step; below 0: unknown

  [[nodiscard]] bool is_last() const { return in_epoch + 1 == of_epoch; }
  [[nodiscard]] std::size_t left() const { return of_epoch - in_epoch - 1; }
};

// A failed exchange: some rank's change of parameters was not finite, and all ranks have gone back
// to the common parameters.
struct LostExchange {
  StepVerdict verdict;
  std::int64_t steps = 0;  // lost steps, without those that this rank had skipped
  int in_a_row = 1;
};

struct SyncResult {
  bool stop = false;           // as far as this rank knows, some rank asks to stop
  bool has_exchanged = false;  // in the step, or after it
  std::int64_t exchanges = 0;  // the number of exchanges that have ended
  std::vector<LostExchange> lost = {};
};

class SyncPolicy {
 public:
  explicit SyncPolicy(SyncParts& parts) : parts_(parts) {}
  virtual ~SyncPolicy() = default;
  SyncPolicy(const SyncPolicy&) = delete;
  SyncPolicy& operator=(const SyncPolicy&) = delete;

  // ---- a step
  // Plans the step. In one step of each epoch, the codecs' errors are sampled.
  virtual void plan_step(const StepPlace& place) = 0;
  // progress: the fraction of the run that lies before the step; below 0: unknown.
  virtual void begin_step(std::uint64_t step, double progress) = 0;
  // The gradient of the loss is divided by this number of images.
  [[nodiscard]] virtual double loss_divisor(std::size_t global_samples) const = 0;
  // The backward pass of the step's last part. Adds the gradients of the earlier parts. Its device
  // operations may be recorded.
  virtual void backward(const TensorView& images) = 0;
  // Called instead of backward() if this rank has no images in the last part. The rank's gradients
  // are then the sums over the earlier parts.
  virtual void finish_without_batch() = 0;
  // On return the device has computed the gradients, and sums over ranks are in place.
  // update: if given, another thread may call it before this call returns, provided that judge()
  // will return true. It enqueues the update.
  virtual StepVerdict await_sums(const FollowUp::Action* update) = 0;
  // Returns whether the update follows. A gradient that is not finite would spoil the parameters,
  // so it is not applied. loss: this rank's loss.
  [[nodiscard]] virtual bool judge(const StepVerdict& verdict, const LossSums& loss) = 0;
  // replicated: judge() is the same on all ranks; own: each rank judges its own steps.
  [[nodiscard]] virtual StateShare judged() const = 0;
  // progress: the fraction of the run that is done, including this update.
  virtual void update_averages(double progress);
  // verdict: of await_sums().
  virtual SyncResult end_step(const StepVerdict& verdict, const StepPlace& place) = 0;
  // Returns whether all ranks stop after this many steps of the run. wish: whether this rank wishes
  // to stop.
  [[nodiscard]] virtual bool agree_on_stop(std::uint64_t steps, bool wish);

  // ---- between steps
  // Whether an exchange is under way. A call of reducer().run() would wait for it.
  [[nodiscard]] virtual bool is_under_way() const { return false; }
  [[nodiscard]] virtual ExchangeWindow window() const { return {}; }
  // Swaps the current parameters and those that are evaluated: the averaged weights if there are
  // any, otherwise the common parameters. Call it before and after an evaluation or an export of
  // weights.
  virtual void swap_evaluated();
  // Collective. Call it if the ranks of this run are not those that wrote the checkpoint. Makes the
  // parameters equal on all ranks. `counts_for` is the number of earlier ranks whose state this
  // rank has loaded, and is the weight of its parameters.
  virtual void merge_ranks(Communicator& comm, std::size_t counts_for);
  // Lists the policy's own state, which comes before the model's.
  virtual void list_state(StateVisitor& visitor);
  // Whether parameters and the optimiser's state are the same on all ranks between steps.
  [[nodiscard]] virtual StateShare model_share() const { return StateShare::replicated; }
  // Collective, at the end of the run.
  virtual void finish(Communicator& comm);

 protected:
  [[nodiscard]] net::Parameters& parameters() { return parts_.network.parameters(); }
  [[nodiscard]] GradientSync& sync() { return *parts_.sync; }

  SyncParts& parts_;
};

// The base of the policies "rounds" and "alone", in which each rank updates its parameters with its
// own gradient.
class OwnSteps : public SyncPolicy {
 public:
  explicit OwnSteps(SyncParts& parts);

  void begin_step(std::uint64_t step, double progress) override;
  void backward(const TensorView& images) override;
  void finish_without_batch() override;
  [[nodiscard]] bool judge(const StepVerdict& verdict, const LossSums& loss) override;
  [[nodiscard]] StateShare judged() const override { return StateShare::own; }

 private:
  HostArray<double> squares_;  // one: the sum of the gradient's squares
};

class RoundPolicy;

// The policies of a run. The first one exchanges gradients at every step, or exchanges nothing. A
// run with rounds also has their policy, which begins at the start of the run or in a later epoch.
class SyncPolicies {
 public:
  SyncPolicies(SyncParts parts, bool exchange, const std::optional<RoundOptions>& rounds,
               const net::OptimizerOptions& optimizer);
  ~SyncPolicies();
  SyncPolicies(const SyncPolicies&) = delete;
  SyncPolicies& operator=(const SyncPolicies&) = delete;

  [[nodiscard]] SyncParts& parts() { return parts_; }
  // The policy of the running epoch.
  [[nodiscard]] SyncPolicy& now() { return *now_; }
  [[nodiscard]] const SyncPolicy& now() const { return *now_; }
  // Call it before the first step of an epoch. round_steps: the number of steps in a round; 0: no
  // rounds. learning_rate: the first step's learning rate. Returns whether the policy has changed.
  bool begin_epoch(std::size_t round_steps, double learning_rate);
  // Lists the counts of skipped steps and lost rounds, in a run that has rounds.
  void list_judgement(StateVisitor& visitor);

 private:
  SyncParts parts_;
  DeviceArray exchanged_;  // empty: the gradients are exchanged where they are
  std::unique_ptr<SyncPolicy> first_;
  std::unique_ptr<RoundPolicy> rounds_;
  SyncPolicy* now_;
  bool has_begun_ = false;
};

}  // namespace dp
