// A rank's copy of the model: batch -> gradients -> their sum over all ranks -> update.
//
// A step, in this order (evaluation: load, evaluate):
//     load(batch)      the batch of the next step; a GPU begins to copy it
//     compute(step)    gradients of the batch: forward, loss, backward (forward_and_backward()
//                      in replica.cpp calls the network); buckets leave as they become final
//     await_loaded()   the loader may have the batch's memory back
//     await_sums()     waits until the sums of all ranks are in place
//     update(rate)     the optimiser (net/optimizer.hpp) and the averages of the weights
//     clock().updated()
// When ranks exchange, and what, is the policy's matter (sync_policy.hpp), at every place alike.
// A batch may come in parts (--accumulate): load() and compute() are then called for each of them.
// On a GPU compute() and update() return before the device has done its work. load() of the next
// batch may be called between compute() and await_sums(). Forward and backward of a batch size run
// as one recording (on a GPU a CUDA graph), the update as another.
//
// Set-up: construct, prepare() every batch size, plan_exchange(), connect(); begin_epoch() before
// the first step of each epoch.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "app/training/replica/averages.hpp"
#include "app/training/replica/batch_feed.hpp"
#include "app/training/replica/earlier_parts.hpp"
#include "app/training/replica/step_clock.hpp"
#include "app/training/replica/sync_policy.hpp"
#include "comm/gradient_sync.hpp"
#include "comm/mpi/communicator.hpp"
#include "comm/mpi/prompt_gather.hpp"
#include "kernels/arrays.hpp"
#include "kernels/device.hpp"
#include "kernels/softmax_cross_entropy.hpp"
#include "net/network.hpp"
#include "net/optimizer.hpp"
#include "net/parameter_groups.hpp"

namespace dp {

struct ReplicaOptions {
  DataType activation_type = DataType::f32;
  Normalization normalization = {};  // of the images: a GPU applies it, on a CPU the loader does
  std::uint64_t seed = 1;
  double label_smoothing = 0;
  net::OptimizerOptions optimizer = {};
  net::GroupOptions groups = {};
  bool accumulates = false;  // steps may have several parts
  AverageOptions averages = {};
  bool exchange = true;  // false: every rank trains its own model
  // The number of ranks whose images batch normalisation takes together; 1: each rank's own.
  std::size_t batch_norm_ranks = 1;
  std::optional<RoundOptions> rounds = {};  // epochs may have rounds
  // Fields that depend on the optimiser's settings are filled in here.
  GradientSyncOptions sync = {};
  // Gets the training loop's slices: a step's parts and, on a CPU, the layers. On a GPU forward and
  // backward are one graph, in which the host cannot time layers. Null: no trace.
  TraceTrack* trace = nullptr;
};

// Whether an optimiser of that kind can leave the momentum to an exchange with that codec. dgc has
// SGD's momentum; velocity= also makes Adam's steps.
[[nodiscard]] bool can_leave_momentum_to(const CodecSpec& codec, net::OptimizerKind kind);

class Replica {
 public:
  Replica(Device& device, net::Graph graph, const ReplicaOptions& options);
  ~Replica();
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  // ---- set-up
  // Makes memory and plans for a batch size, unless it has them. An OutOfMemory says what would
  // fit. On a GPU, if layers gather values of all ranks, it also computes one batch of zeros in
  // training (expect_host_waits); so not after
  // connect(), when the other ranks would take part.
  void prepare(std::size_t samples, net::Mode mode);
  // Plans the buckets and, on a GPU, the path, which is chosen by measurement if it is `automatic`.
  void plan_exchange();
  // Collective. From here on the reducer's thread owns the communicator.
  void connect(Communicator& comm) {
    policies_.parts().ranks = static_cast<std::size_t>(comm.size());
    sync_->connect(comm);
  }

  // Collective. Call it before the first step of an epoch, with that step's learning rate and the
  // steps of a round (SyncPolicies::begin_epoch).
  void begin_epoch(std::size_t epoch, double learning_rate = 1.0, std::size_t round_steps = 0);

  // The weights were set from outside: averages of them begin there.
  void reset_averages() { averages_.reset(); }

  // ---- a step
  void load(const Batch& batch) { feed_.load(batch); }
  // A step of several parts calls load() and compute() for each, is_last_part with the last one,
  // and the rest once. The gradients of earlier parts are added to the last one's as these become
  // final. progress: the share of the run that lies before this step; below 0: not known.
  void compute(std::uint64_t step, bool is_last_part = true, double progress = -1.0);
  void await_loaded() { feed_.await_sent(); }
  // data_s is how long the loop waited for this step's batch.
  StepVerdict await_sums(double data_s);
  // progress: the share of the run that is done, with this step.
  void update(double learning_rate, double progress = 0);
  // Instead of update(), for a step that is skipped: its images leave no trace in the running
  // statistics either. One that is not a number would stay in them for ever.
  void skip_update();
  // The policy of the running epoch.
  [[nodiscard]] SyncPolicy& policy() { return policies_.now(); }
  [[nodiscard]] SyncPolicies& policies() { return policies_; }

  // Forward and backward of the loaded batch, as in a step, but nothing is exchanged. The moments:
  // kBegin, kBackwardEnd, and kFirstTensor + t when tensor t's gradient is final. A batch without
  // images marks them all at once. Call it between steps, with the same marks, which must exist
  // until end_rehearsals(); it waits for the device. It changes gradients and running statistics.
  struct RehearsalMarks {
    static constexpr std::size_t kBegin = 0, kBackwardEnd = 1, kFirstTensor = 2;
  };
  void rehearse(TimeMarks& marks, std::uint64_t step);
  // The optimiser's work with a learning rate of 0, which changes its state alone; it waits for the
  // device.
  void rehearse_update();
  void end_rehearsals() { rehearsals_.clear(); }

  // The loss of the step's batch, in all its parts; call it after await_sums().
  [[nodiscard]] const LossSums& loss() const { return loss_sums_; }
  // Computes loss and hits of the loaded batch, with the statistics for evaluation.
  LossSums evaluate();
  // Instead of evaluate(): the logits, a row for each image.
  [[nodiscard]] std::vector<float> logits();

  // The clock of the steps' parts; every step ends with clock().updated().
  [[nodiscard]] StepClock& clock() { return clock_; }

  // The parameters as an exchange sees them.
  [[nodiscard]] std::vector<TensorSlot> tensor_slots();
  [[nodiscard]] net::Network& network() { return network_; }
  [[nodiscard]] Device& device() { return device_; }
  [[nodiscard]] GradientSync& sync() { return *sync_; }

  // Call it between steps, after connect(), and not while an exchange is under way: a checkpoint
  // waits until its sum is taken. Lists parameters, running statistics, the states of the
  // optimiser and the exchange, and the choices of algorithms.
  void list_state(StateVisitor& visitor);

 private:
  [[nodiscard]] bool is_gpu() const { return device_.kind() == DeviceKind::cuda; }
  // Null on a GPU, where layers run later than they are called.
  [[nodiscard]] TraceTrack* host_trace() const { return is_gpu() ? nullptr : options_.trace; }
  void run_once(std::size_t samples);
  // Operations: loss and its gradient, which is divided by `divisor`.
  void compute_loss(const LoadedBatch& batch, const TensorView& logits, double divisor);
  void forward_and_backward(bool is_last_part);
  void finish_without_batch();
  void set_groups();

  Device& device_;
  ReplicaOptions options_;
  std::unique_ptr<GatherDesk> desk_;  // where layers of the network gather; null: none do
  net::Network network_;
  std::unique_ptr<net::Optimizer> optimizer_;

  HostArray<LossSums> loss_;
  LossSums loss_sums_;
  std::size_t epoch_ = 0;  // the running one, which decides what is trained
  Averages averages_;
  EarlierParts earlier_;

  std::set<std::size_t> run_once_;  // batch sizes
  BatchFeed feed_;
  LoadedBatch batch_;  // of the running step
  StepClock clock_;
  // By the number of samples of this rank and of all ranks, whether gradients of earlier parts are
  // added, and whether this is the last part.
  std::map<std::tuple<std::size_t, std::size_t, bool, bool>, std::unique_ptr<Recording>>
      recordings_;
  std::map<std::pair<std::size_t, std::size_t>, std::unique_ptr<Recording>> rehearsals_;

  SyncPolicies policies_;
  std::unique_ptr<GradientSync> sync_;
};

}  // namespace dp
