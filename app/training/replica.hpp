// A rank's copy of the model: batch -> gradients -> their sum over all ranks -> update.
//
// A step, in this order (evaluation: load, evaluate):
//     load(batch)      the batch of the next step; a GPU begins to copy it
//     compute(step)    gradients of the batch: forward, loss, backward (forward_and_backward()
//                      in replica.cpp calls the network); buckets leave as they become final
//     await_loaded()   the loader may have the batch's memory back
//     await_sums()     waits until the sums of all ranks are in place
//     update(rate)     the optimiser (net/optimizer.hpp) and the averages of the weights
//     exchange_round() in rounds (app/training/round_sync.hpp), after the last step of one
//     end_step()
// A batch may come in parts (--accumulate): load() and compute() are then called for each of them.
// On a GPU compute() and update() return before the device has done its work. load() of the next
// batch may be called between compute() and await_sums(). Forward and backward of a batch size run
// as one recording (on a GPU a CUDA graph), the update as another.
//
// With rounds, the steps exchange nothing: await_sums() does not wait, and each rank trains alone
// until exchange_round() makes all of them equal.
//
// Set-up: construct, prepare() every batch size, plan_exchange(), connect(); begin_epoch() before
// the first step of each epoch.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "app/training/round_sync.hpp"
#include "app/training/step_clock.hpp"
#include "comm/gradient_sync.hpp"
#include "comm/mpi/communicator.hpp"
#include "comm/mpi/prompt_gather.hpp"
#include "io/images/augment.hpp"
#include "io/images/loader.hpp"
#include "kernels/device.hpp"
#include "kernels/input_link.hpp"
#include "kernels/softmax_cross_entropy.hpp"
#include "net/network.hpp"
#include "net/optimizer.hpp"
#include "net/parameter_groups.hpp"
#include "net/weight_average.hpp"

namespace dp {

// Rounds instead of the exchange of gradients at every step.
struct RoundOptions {
  std::size_t first_epoch = 0;  // before it, gradients are exchanged at every step
  std::size_t ranks = 1;        // that exchange
  OuterOptions outer = {};
  // The steps of the next round behind which an exchange runs; 0: all ranks wait for it.
  std::size_t delay = 0;
};

struct ReplicaOptions {
  DataType activation_type = DataType::f32;
  Normalization normalization = {};  // of the images: a GPU applies it, on a CPU the loader does
  std::uint64_t seed = 1;
  double label_smoothing = 0;
  net::OptimizerOptions optimizer = {};
  net::GroupOptions groups = {};
  bool accumulates = false;           // steps may have several parts
  double ema_decay = 0;               // 0: no exponential average
  std::uint64_t lookahead_every = 0;  // 0: no Lookahead
  double lookahead_share = 0.5;       // 0: falling (net/weight_average.hpp)
  bool exchange = true;               // false: every rank trains its own model
  // Of all ranks, if batch normalisation works on the images of all; 1: on each rank's own.
  std::size_t batch_norm_ranks = 1;
  std::optional<RoundOptions> rounds = {};
  // Fields that depend on the optimiser's settings are filled in here.
  GradientSyncOptions sync = {};
  // Gets the training loop's slices: a step's parts and, on a CPU, the layers. On a GPU forward and
  // backward are one graph, in which the host cannot time layers. Null: no trace.
  TraceTrack* trace = nullptr;
};

class Replica {
 public:
  Replica(Device& device, net::Graph graph, const ReplicaOptions& options);
  ~Replica();
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  // ---- set-up
  // Makes memory and plans for a batch size. An OutOfMemory says what would fit. On a GPU, if
  // layers gather values of all ranks, it also computes one batch of zeros in training
  // (expect_host_waits).
  void prepare(std::size_t samples, net::Mode mode);
  // Plans the buckets and, on a GPU, the path, which is chosen by measurement if it is `automatic`.
  void plan_exchange();
  // Collective. From here on the reducer's thread owns the communicator.
  void connect(Communicator& comm) {
    ranks_ = static_cast<std::size_t>(comm.size());
    sync_->connect(comm);
  }

  // Collective. Call it before the first step of an epoch, with that step's learning rate, which
  // counts where rounds begin.
  void begin_epoch(std::size_t epoch, double learning_rate = 1.0);

  // Before begin_epoch(): rounds begin with that epoch, and not when the options say.
  void set_first_epoch_of_rounds(std::size_t epoch) { options_.rounds->first_epoch = epoch; }

  // The weights were set from outside: averages of them begin there.
  void reset_averages();

  // ---- a step
  void load(const Batch& batch);
  // A step of several parts calls load() and compute() for each, is_last_part with the last one,
  // and the rest once. The gradients of earlier parts are added to the last one's as these become
  // final. progress: the share of the run that lies before this step; below 0: not known.
  void compute(std::uint64_t step, bool is_last_part = true, double progress = -1.0);
  void await_loaded();
  // data_s is how long the loop waited for this step's batch (for take_times).
  StepVerdict await_sums(double data_s);
  // progress: the share of the run that is done, with this step.
  void update(double learning_rate, double progress = 0);
  // Instead of update(), for a step that is skipped: its images leave no trace in the running
  // statistics either. One that is not a number would stay in them for ever.
  void skip_update();
  // Whether the steps of this epoch exchange gradients: there is an exchange, and there are no
  // rounds. If not, update() or nothing follows from this rank's own gradient alone.
  [[nodiscard]] bool exchanges_gradients() const { return options_.exchange && !is_in_rounds_; }
  [[nodiscard]] bool is_in_rounds() const { return is_in_rounds_; }
  // After an update, or a step without one: whether a round ends here (RoundSync::ends_round).
  // False without rounds.
  [[nodiscard]] bool ends_round(std::size_t length, bool must_end, double learning_rate);
  // The steps of the running round so far, and those of them that a lost sum has not taken back.
  [[nodiscard]] std::size_t steps_of_round() const { return rounds_ ? rounds_->steps() : 0; }
  [[nodiscard]] std::size_t kept_steps_of_round() const {
    return rounds_ ? rounds_->kept_steps() : 0;
  }
  // Collective: then all ranks have the same parameters. If the verdict is not finite, these are
  // those with which the round began, and residuals are what they were before the exchange, faded.
  StepVerdict exchange_round(std::uint64_t step, double progress = -1.0);
  // With a delay, instead: the exchange begins, and the next round does. From then on until
  // take_round() a call of reducer().run() waits for the exchange.
  void send_round(std::uint64_t step, double progress = -1.0);
  [[nodiscard]] bool is_round_under_way() const { return is_round_under_way_; }
  // After ends_round(): whether take_round() comes now. It comes after a fixed step, so that bits
  // do not depend on times; or before the next exchange.
  [[nodiscard]] bool is_sum_due(bool ends_round) const {
    return is_round_under_way_ && (ends_round || rounds_->steps() >= options_.rounds->delay);
  }
  // Waits for the sum, if it is late, and applies it to the parameters of now (round_sync.hpp). If
  // the verdict is not finite, all ranks go back to the common parameters, and what they have done
  // since is lost, too.
  StepVerdict take_round(double progress);
  // How many such steps the round had whose exchange take_round() has taken or will take.
  [[nodiscard]] std::size_t steps_of_sent_round() const { return sent_steps_; }
  // Collective, between steps, after a checkpoint in the middle of a round was read by other ranks:
  // ends that round without codecs. This rank counts for so many of the earlier ones.
  void end_round_of_others(Communicator& comm, std::size_t counts_for);
  // Every step ends with it.
  void end_step() { clock_.updated(); }

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
  // Whether this rank's gradient is finite; call it after await_sums(). It is for runs without an
  // exchange: with one, the verdict of await_sums() says it for all ranks.
  [[nodiscard]] bool gradient_is_finite() const { return std::isfinite(gradient_squares_); }
  // Call it before and after an evaluation or an export of weights, which then is one of the
  // averaged weights, if there are any: the exponential average or, without it, Lookahead's slow
  // weights. In rounds these are a rank's own; the common parameters take their place.
  void swap_averages();
  // Computes loss and hits of the loaded batch, with the statistics for evaluation.
  LossSums evaluate();
  // Instead of evaluate(): the logits, a row for each image.
  [[nodiscard]] std::vector<float> logits();

  // The time until now belongs to no step.
  void begin_times() { clock_.begin(); }
  // See StepClock::take.
  LoopTimes take_times(bool all) { return clock_.take(all); }

  // The parameters as an exchange sees them.
  [[nodiscard]] std::vector<TensorSlot> tensor_slots();
  [[nodiscard]] net::Network& network() { return network_; }
  [[nodiscard]] Device& device() { return device_; }
  [[nodiscard]] GradientSync& sync() { return *sync_; }

  // Call it between steps, after connect(), and not while a round is under way: a checkpoint waits
  // until its sum is taken. Lists parameters, running statistics, the states of the
  // optimiser and the exchange, and the choices of algorithms.
  void list_state(StateVisitor& visitor);

 private:
  struct LoadedBatch {
    const float* images = nullptr;         // CPU: the loader's memory
    const std::int32_t* labels = nullptr;  // on a CPU, the loader's memory
    std::size_t samples = 0, global_samples = 0;
    std::size_t part = 0, first_image = 0, image_stride = 1;
  };

  [[nodiscard]] bool is_gpu() const { return device_.kind() == DeviceKind::cuda; }
  // Null on a GPU, where layers run later than they are called.
  [[nodiscard]] TraceTrack* host_trace() const { return is_gpu() ? nullptr : options_.trace; }
  void make_input(std::size_t samples);
  void run_once(std::size_t samples);
  [[nodiscard]] TensorView images_of(const LoadedBatch& batch);
  void bring_in(const LoadedBatch& batch);
  [[nodiscard]] LoadedBatch take_loaded();
  void forward_and_backward(bool is_last_part);
  void finish_without_batch();
  void add_earlier(std::span<float> gradients);
  void add_decay(std::size_t tensor);
  void set_groups();
  void choose_tensor_final();
  // These are in replica_rounds.cpp, like the methods for rounds and list_state(). Set-up is in
  // replica_setup.cpp.
  void begin_rounds(std::size_t epoch, double learning_rate);
  void begin_exchange_of_round(std::uint64_t step, double progress);
  void after_round(std::size_t steps, double progress, bool is_late);
  void after_lost_round();

  Device& device_;
  ReplicaOptions options_;
  std::unique_ptr<GatherDesk> desk_;  // where layers of the network gather; null: none do
  net::Network network_;
  std::unique_ptr<net::Optimizer> optimizer_;

  Device::Memory loss_memory_;
  LossSums* loss_;  // an operation writes it when it runs
  LossSums loss_sums_;
  std::size_t epoch_ = 0;  // the running one, which decides what is trained
  // Without an exchange: the sum of the gradient's squares, which is finite if the gradient is.
  Device::Memory squares_memory_;
  double* squares_;  // an operation writes it when it runs
  double gradient_squares_ = 0.0;

  std::size_t ranks_ = 1;
  // By tensor: weight decay that is part of the gradient, as the exchange adds the momentum; 0: the
  // optimiser does both.
  std::vector<float> exchanged_decays_;

  // The input of a GPU.
  std::size_t largest_batch_ = 0;
  std::set<std::size_t> run_once_;  // batch sizes
  std::unique_ptr<InputLink> input_;
  Device::Memory image_memory_;

  std::vector<LoadedBatch> loaded_;  // at most two, in order
  LoadedBatch batch_;                // of the running step
  StepClock clock_;
  // By the number of samples of this rank and of all ranks, whether gradients of earlier parts are
  // added, and whether this is the last part.
  std::map<std::tuple<std::size_t, std::size_t, bool, bool>, std::unique_ptr<Recording>>
      recordings_;
  std::map<std::pair<std::size_t, std::size_t>, std::unique_ptr<Recording>> rehearsals_;

  // The sums over the parts of a step that come before the running one.
  Device::Memory earlier_gradients_;
  bool has_earlier_ = false;
  LossSums earlier_loss_;

  std::unique_ptr<net::WeightAverage> lookahead_, ema_;

  std::unique_ptr<RoundSync> rounds_;  // with rounds, in any epoch
  bool is_in_rounds_ = false;          // in the running one
  bool is_round_under_way_ = false;
  std::size_t sent_steps_ = 0;
  // What is exchanged: the gradient or, where rounds have a delay, memory of its own, since the
  // next round's gradients are computed meanwhile.
  Device::Memory exchange_memory_;
  std::span<float> exchanged_;

  net::TensorCallback tensor_final_;  // empty if no gradients are exchanged
  std::unique_ptr<GradientSync> sync_;
};

}  // namespace dp
