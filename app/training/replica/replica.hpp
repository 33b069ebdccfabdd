// A rank's copy of the model: batch -> gradients -> their sum over all ranks -> update.
//
// A step, in this order (evaluation: load, evaluate):
//     load(batch)      the batch of the next step; a GPU begins to copy it
//     compute(step)    gradients of the batch: forward, loss, backward (forward_and_backward()
//                      in replica.cpp calls the network); buckets are sent once they are final
//     await_loaded()   the loader may reuse the batch's memory
//     await_sums()     waits until the sums of all ranks are in place
//     update(rate)     the optimiser (net/optimizer.hpp) and the averages of the weights
//     clock().updated()
// The policy (sync_policy.hpp) decides when ranks exchange and what they exchange; the calls are
// the same for every policy. A batch may come in parts (--accumulate): load() and compute() are
// then called for each part. On a GPU, compute() and update() return before the device has done its
// work. load() of the next batch may be called between compute() and await_sums(). For each batch
// size, forward and backward run as one recording (on a GPU, a CUDA graph), and the update runs as
// another.
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
  Normalization normalization = {};  // applied on a GPU; on a CPU the loader applies it
  std::uint64_t seed = 1;
  double label_smoothing = 0;
  net::OptimizerOptions optimizer = {};
  net::GroupOptions groups = {};
  bool accumulates = false;  // steps may have several parts
  AverageOptions averages = {};
  bool exchange = true;  // false: every rank trains its own model
  // The number of ranks whose images batch normalisation combines; 1: each rank uses its own.
  std::size_t batch_norm_ranks = 1;
  std::optional<RoundOptions> rounds = {};  // set if epochs may have rounds
  // plan_exchange() fills in the fields that depend on the optimiser's settings.
  GradientSyncOptions sync = {};
  // Gets the training loop's slices: a step's parts and, on a CPU, the layers. On a GPU forward and
  // backward are one graph, in which the host cannot time layers. Null: no trace.
  TraceTrack* trace = nullptr;
};

// Whether an optimiser of this kind can leave its momentum to an exchange with this codec. The
// codec "dgc" applies SGD's momentum; codecs with velocity= can also compute Adam's steps.
[[nodiscard]] bool can_leave_momentum_to(const CodecSpec& codec, net::OptimizerKind kind);

class Replica {
 public:
  Replica(Device& device, net::Graph graph, const ReplicaOptions& options);
  ~Replica();
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  // ---- set-up
  // Allocates memory and makes plans for a batch size, unless they exist. If memory is short,
  // throws OutOfMemory, which says what would fit. On a GPU, if layers gather values of all ranks,
  // this function also executes a training step's operations once, on a batch of zeros
  // (expect_host_waits). In that case, do not call it after connect(), because the other ranks
  // would have to take part.
  void prepare(std::size_t samples, net::Mode mode);
  // Plans the buckets and, on a GPU, the path that gradients take to the exchange. If the path is
  // `automatic`, measurements decide.
  void plan_exchange();
  // Collective. From here on the reducer's thread owns the communicator.
  void connect(Communicator& comm) {
    policies_.parts().ranks = static_cast<std::size_t>(comm.size());
    sync_->connect(comm);
  }

  // Collective. Call it before the first step of an epoch, with that step's learning rate and the
  // number of steps in a round (SyncPolicies::begin_epoch).
  void begin_epoch(std::size_t epoch, double learning_rate = 1.0, std::size_t round_steps = 0);

  // Call it after the weights were set from outside: their averages begin again from these weights.
  void reset_averages() { averages_.reset(); }

  // ---- a step
  void load(const Batch& batch) { feed_.load(batch); }
  // In a step of several parts, call load() and compute() for each part, and the other functions
  // once. is_last_part: true only for the step's last part. When a gradient of the last part
  // becomes final, the gradients of the earlier parts are added to it. progress: the fraction of
  // the run that lies before this step; below 0: unknown.
  void compute(std::uint64_t step, bool is_last_part = true, double progress = -1.0);
  void await_loaded() { feed_.await_sent(); }
  struct UpdateNumbers {
    double learning_rate = 0.0;
    double progress = 0.0;  // the fraction of the run that is done, including this step
    bool operator==(const UpdateNumbers&) const = default;
  };
  // data_s: how long the loop waited for this step's batch. planned: the numbers of the update that
  // follows if policy().judge() returns true. With them a GPU may begin the update before this call
  // returns, so that it is not idle while this thread wakes up. Call update() with the same numbers
  // in any case.
  StepVerdict await_sums(double data_s, std::optional<UpdateNumbers> planned = std::nullopt);
  void update(double learning_rate, double progress = 0);
  // Call it instead of update() for a skipped step. It also undoes what the step has changed in the
  // running statistics, because a NaN would stay there for ever.
  void skip_update();
  // The policy of the running epoch.
  [[nodiscard]] SyncPolicy& policy() { return policies_.now(); }
  [[nodiscard]] SyncPolicies& policies() { return policies_; }

  // Forward and backward of the loaded batch, as in a step but without an exchange. It marks
  // kBegin, kBackwardEnd, and kFirstTensor + t when tensor t's gradient is final. A batch without
  // images marks all of them at once. Call it between steps, always with the same marks, which must
  // exist until end_rehearsals(). It waits for the device, and changes gradients and running
  // statistics.
  struct RehearsalMarks {
    static constexpr std::size_t kBegin = 0, kBackwardEnd = 1, kFirstTensor = 2;
  };
  void rehearse(TimeMarks& marks, std::uint64_t step);
  // Executes the optimiser's update with a learning rate of 0, so that only the optimiser's state
  // changes. It waits for the device.
  void rehearse_update();
  void end_rehearsals() { rehearsals_.clear(); }

  // Whether the update of this step was enqueued before await_sums() returned. For tests.
  [[nodiscard]] bool is_updated_early() const { return early_update_.is_enqueued; }

  // The loss of the step's batch over all its parts; call it after await_sums().
  [[nodiscard]] const LossSums& loss() const { return loss_sums_; }
  // Computes the loss of the loaded batch and counts the images that are classified correctly, with
  // the statistics for evaluation.
  LossSums evaluate();
  // Call it instead of evaluate() to get the logits, a row for each image.
  [[nodiscard]] std::vector<float> logits();

  // The clock of the steps' parts; every step ends with clock().updated().
  [[nodiscard]] StepClock& clock() { return clock_; }

  // The parameters as an exchange sees them.
  [[nodiscard]] std::vector<TensorSlot> tensor_slots();
  [[nodiscard]] net::Network& network() { return network_; }
  [[nodiscard]] Device& device() { return device_; }
  [[nodiscard]] GradientSync& sync() { return *sync_; }

  // Lists parameters, running statistics, the states of the optimiser and the exchange, and the
  // choices of algorithms. Call it between steps, after connect(), and not while an exchange is
  // under way: a checkpoint waits until the exchange's sum is taken.
  void list_state(StateVisitor& visitor);

 private:
  void enqueue_update(const UpdateNumbers& numbers);
  [[nodiscard]] bool is_gpu() const { return device_.kind() == DeviceKind::cuda; }
  // Null on a GPU, where layers run later than they are called.
  [[nodiscard]] TraceTrack* host_trace() const { return is_gpu() ? nullptr : options_.trace; }
  void run_once(std::size_t samples);
  // Device operations that compute the loss and its gradient. The gradient is divided by `divisor`.
  void compute_loss(const LoadedBatch& batch, const TensorView& logits, double divisor);
  void forward_and_backward(bool is_last_part);
  void finish_without_batch();
  void set_groups();

  Device& device_;
  ReplicaOptions options_;
  std::unique_ptr<GatherDesk> desk_;  // for layers that gather values of all ranks; null: none
  net::Network network_;
  std::unique_ptr<net::Optimizer> optimizer_;

  HostArray<LossSums> loss_;
  LossSums loss_sums_;
  std::size_t epoch_ = 0;  // the running epoch, which decides which layers are trained
  Averages averages_;
  EarlierParts earlier_;

  std::set<std::size_t> run_once_;  // the batch sizes for which run_once() has run
  BatchFeed feed_;
  LoadedBatch batch_;  // of the running step
  StepClock clock_;
  // The key: this rank's number of samples, the number of samples of all ranks, whether gradients
  // of earlier parts are added, and whether this is the last part.
  std::map<std::tuple<std::size_t, std::size_t, bool, bool>, std::unique_ptr<Recording>>
      recordings_;
  std::map<std::pair<std::size_t, std::size_t>, std::unique_ptr<Recording>> rehearsals_;

  // An update that the reducer's thread may enqueue during await_sums().
  struct EarlyUpdate {
    FollowUp::Action action;
    UpdateNumbers planned = {};
    bool is_enqueued = false;
  };
  EarlyUpdate early_update_;

  SyncPolicies policies_;
  std::unique_ptr<GradientSync> sync_;
};

}  // namespace dp
