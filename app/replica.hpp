// A rank's copy of the model at work: batch -> gradients -> their sum over all ranks -> update.
//
// A step, in this order (evaluation: load, evaluate):
//     load(batch)      the batch of the next step; a GPU begins to copy it
//     compute(step)    gradients of the batch; buckets leave as they become final
//     await_loaded()   the loader may have the batch's memory back
//     exchange()       waits until the sums are in place on all ranks
//     update(rate)     the optimiser
// On a GPU compute() and update() return before the device has done its work; load() of the next
// batch may come between compute() and exchange(). Forward and backward run as one recording (on a
// GPU: a CUDA graph) for each batch size, the update as another.
//
// Set-up: construct, prepare() every batch size, plan_exchange(), connect(); begin_epoch() before
// the first step of each epoch.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/bucket_tracker.hpp"
#include "app/step_clock.hpp"
#include "comm/dgc.hpp"
#include "comm/reducer.hpp"
#include "io/augment.hpp"
#include "io/loader.hpp"
#include "kernels/bucket_link.hpp"
#include "kernels/device.hpp"
#include "kernels/input_link.hpp"
#include "kernels/sgd.hpp"
#include "kernels/softmax_cross_entropy.hpp"
#include "net/network.hpp"

namespace dp {

// Where a GPU's gradients are encoded and added (kernels/bucket_link.hpp).
enum class ExchangePath { automatic, host, device };

struct ReplicaOptions {
  DataType activation_type = DataType::f32;
  std::uint64_t seed = 1;
  double label_smoothing = 0;
  SgdStep sgd = {};  // its learning rate is given with every update
  std::string compress = "none";
  std::size_t compress_warmup = 0;              // epochs in fp32, or on the way down to the ratio
  std::vector<std::string> exact_tensors = {};  // names with * and ?: sent in fp32
  bool is_one_host = false;                     // all ranks are on the same one
  std::size_t bucket_bytes = 4'000'000;
  bool exchange = true;  // false: no buckets, every rank trains its own model
  bool overlap = true;
  ExchangePath path = ExchangePath::automatic;
  // Takes the training loop's slices: a step's parts and, on a CPU, the layers. On a GPU forward
  // and backward are one graph, in which layers have no times of the host. Null: no trace.
  TraceTrack* trace = nullptr;
  ReducerOptions reducer = {};  // topology, time-out, seed, trace; the rest is filled in here
};

class Replica {
 public:
  Replica(Device& device, net::Graph graph, const ReplicaOptions& options);
  ~Replica();
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  // ---- set-up
  // Memory and plans for a batch size; OutOfMemory says what would fit.
  void prepare(std::size_t samples, net::Mode mode);
  // Buckets, and on a GPU the path, chosen by measurement where it is left open.
  void plan_exchange();
  // Collective. From here on the reducer's thread owns the communicator.
  void connect(Communicator& comm);

  // Collective, before the first step of an epoch: the codecs of the warm-up.
  void begin_epoch(std::size_t epoch);

  // ---- a step
  void load(const Batch& batch);
  void compute(std::uint64_t step);
  void await_loaded();
  // data_s: how long the loop waited for this step's batch (for take_times).
  StepVerdict exchange(double data_s);
  void update(double learning_rate);
  // Instead of an update: the step is skipped.
  void skip_update();

  // Of the batch that compute() or evaluate() had, after exchange().
  [[nodiscard]] const LossSums& loss() const { return loss_sums_; }
  // Loss and hits of the loaded batch, with the statistics for evaluation.
  LossSums evaluate();

  // Time up to here belongs to no step.
  void begin_times() { clock_.begin(); }
  // See StepClock::take.
  LoopTimes take_times(bool all) { return clock_.take(all); }

  [[nodiscard]] net::Network& network() { return network_; }
  [[nodiscard]] Device& device() { return device_; }
  [[nodiscard]] Reducer& reducer() { return *reducer_; }
  [[nodiscard]] const std::vector<Bucket>& buckets() const { return buckets_; }
  // "device", "host", or "" on a CPU, where there is no choice.
  [[nodiscard]] std::string path() const;

 private:
  struct LoadedBatch {
    const float* images = nullptr;         // CPU: the loader's memory
    const std::int32_t* labels = nullptr;  // likewise
    std::size_t samples = 0, global_samples = 0;
  };

  [[nodiscard]] bool is_gpu() const { return device_.kind() == DeviceKind::cuda; }
  // Of what runs when it is called.
  [[nodiscard]] TraceTrack* host_trace() const { return is_gpu() ? nullptr : options_.trace; }
  [[nodiscard]] TensorView images_of(const LoadedBatch& batch);
  void bring_in(const LoadedBatch& batch);
  void forward_and_backward();
  void zero_gradients();
  void bucket_final(std::size_t bucket);
  void all_buckets_final();
  void choose_path();
  void check_dgc() const;
  void connect_dgc(ReducerOptions& options);
  void update_operations();
  [[nodiscard]] double seconds_of_path(bool on_device);
  [[nodiscard]] Recording& recording(const LoadedBatch& batch);

  Device& device_;
  ReplicaOptions options_;
  net::Network network_;
  Device::Memory velocity_;

  // Shared with operations: read or written when they run.
  Device::Memory loss_memory_, step_memory_, squares_memory_;
  LossSums* loss_;
  SgdStep* sgd_;
  double* squares_;
  LossSums loss_sums_;

  // A GPU's input.
  std::size_t largest_batch_ = 0;
  std::unique_ptr<InputLink> input_;
  Device::Memory image_memory_;

  std::vector<LoadedBatch> loaded_;  // at most two, in order
  LoadedBatch batch_;                // of the running step
  StepClock clock_;
  // By samples of this rank and of all.
  std::map<std::pair<std::size_t, std::size_t>, std::unique_ptr<Recording>> recordings_;
  std::unique_ptr<Recording> update_;

  std::vector<Bucket> buckets_;
  std::optional<BucketTracker> tracker_;
  net::TensorCallback tensor_final_;
  // dgc: momentum before the exchange instead of after it.
  std::unique_ptr<DgcMomentum> dgc_;
  Device::Memory dgc_step_memory_;
  SgdStep* dgc_sgd_ = nullptr;
  std::vector<bool> is_dgc_;  // by bucket
  std::size_t reducer_ranks_ = 1;
  bool is_on_device_ = false;  // the exchange's path
  Device::Memory host_gradient_;
  std::unique_ptr<BucketLink> link_;
  std::unique_ptr<Reducer> reducer_;
};

}  // namespace dp
