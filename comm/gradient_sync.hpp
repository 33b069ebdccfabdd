// The interface of the exchange for a training loop: GradientSync replaces the gradient of every
// rank by the sum over all ranks.
//
// It is constructed from the gradient's named tensors, a codec, a topology and the device that
// computes. It plans the buckets, their codecs and the warm-up, connects a GPU with the thread that
// exchanges, and owns that thread (reducer.hpp). If a codec has a rate (a number of bits a
// value that may change at each step), a RateGovernor chooses it (rate_governor.hpp).
//
// Set-up: construct, connect(); begin_epoch() before the first step of each epoch. A step:
//     begin_step(step)     the gradient may now be written
//     tensor_final(t)      tensor t's gradient is final; call it once a step for every tensor, in
//                          any order. A bucket is sent as soon as all its tensors are final
//     finish_step()        waits until the sums are in place on all ranks
//
// On a GPU, tensor_final() may be called while operations are recorded (CUDA graph): it only
// enqueues, and each replay repeats it. After finish_step() later operations on the GPU see the
// sums.
//
// All ranks make the same calls. For errors see reducer.hpp; in addition, a wrong combination of
// options throws Error(usage).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/exchange_path.hpp"
#include "comm/rate/rate_control.hpp"
#include "comm/rate/rate_governor.hpp"
#include "comm/reducer/bucket_tracker.hpp"
#include "comm/reducer/delivery_gaps.hpp"
#include "comm/reducer/follow_up.hpp"
#include "comm/reducer/reducer.hpp"
#include "comm/topologies/buckets.hpp"
#include "kernels/base/state.hpp"
#include "kernels/bucket_link.hpp"
#include "kernels/device.hpp"

namespace dp {

struct GradientSyncOptions {
  CompressChoice compress = {};
  std::size_t ranks = 1;  // the bits of `auto` and `fewest` depend on it
  // For `auto`: bandwidth and latency of this rank's link, as measured; 0 if not known.
  double link_bytes_per_s = 0.0, link_latency_s = 0.0;
  // For `auto`: the bits a value in each training step of an earlier run. `auto` uses them instead
  // of its measurements, so that this run repeats the earlier one. A step without an exchange of
  // its own has the entry 0 and uses the next entry above 0. Steps after the last entry use the
  // last entry above 0.
  std::vector<double> planned_bits = {};
  // The number of epochs at the start that use other codecs: codecs with ratio= begin with a larger
  // ratio, which falls to their own from epoch to epoch; all other codecs are replaced by fp32.
  std::size_t compress_warmup = 0;
  // Codecs for the tensors whose names match a pattern (with * and ?). If several patterns match,
  // the last one applies. Allowed are codecs without momentum, without a rate and without a
  // topology of their own, such as `none`, `bf16` and `q8`.
  std::vector<std::pair<std::string, CodecSpec>> tensor_codecs = {};
  bool is_one_host = false;  // all ranks are on one host
  bool is_on_gpus = false;   // segments of ecq are longer; the same on all ranks
  std::size_t bucket_bytes = BucketOptions{}.bucket_bytes;
  // If set, the constructor calls it once with the tensors and the codec (for `auto` and `fewest`:
  // the codec chosen for this model), and its result replaces bucket_bytes. dptrain passes
  // choose_bucket_bytes (link_probe.hpp), which uses the measured link.
  std::function<std::size_t(std::span<const TensorSlot>, const CodecSpec&)> choose_bucket_bytes =
      {};
  bool overlap = true;  // false: nothing leaves before the last tensor is final
  ExchangePath path = ExchangePath::automatic;
  // SGD's momentum, for codecs that apply it before the sum (dgc, velocity=). Not set if the
  // optimiser's step cannot be computed before the sum.
  std::optional<float> momentum = std::nullopt;
  bool has_nesterov = false;
  // For velocity= with Adam: every rank computes Adam's step before the exchange, and the optimiser
  // adds the sum of these steps unchanged.
  std::optional<AdamVelocityOptions> adam = std::nullopt;
  ReducerOptions reducer = {};  // set topology, timeout, seed, trace; GradientSync sets the rest
};

// A part of a tensor, with this rank's residual of it.
struct UndeliveredPart {
  std::size_t tensor = 0;
  std::size_t offset = 0;  // in the flat gradient
  std::span<const float> residual = {};
  // `times` * `residual` estimates what the exchange still owes the parameters. `times` is the
  // number of ranks, on the assumption that their residuals are alike. In the chunk that this rank
  // owns, `times` is 1: the residual there already is the error of the sum over all ranks.
  float times = 1.0f;
};

class GradientSync {
 public:
  // Plans the buckets and, on a GPU, chooses the path. `gradient` is device memory, or host memory
  // if `device` is null. Gradient and device outlive this object. The tensors cover the whole
  // gradient without gaps (plan_buckets). Without tensors nothing is exchanged.
  GradientSync(Device* device, std::span<float> gradient, std::vector<TensorSlot> tensors,
               GradientSyncOptions options);
  ~GradientSync();
  GradientSync(const GradientSync&) = delete;
  GradientSync& operator=(const GradientSync&) = delete;

  // Collective. From here on the reducer's thread owns the communicator.
  void connect(Communicator& communicator);
  // Collective. Sets the codecs of that epoch; they change from epoch to epoch during a warm-up.
  void begin_epoch(std::size_t epoch);

  // progress: the fraction of the run before this step; negative if it is not known. Codecs with a
  // variable number of bits per value plan this number from `progress` (planned_bits). The call is
  // collective if the governor has a RatedRound with hidden_share 0.
  void begin_step(std::uint64_t step, double progress = -1.0);
  void tensor_final(std::size_t tensor);
  // Reports all tensors as final at once, for example on a rank that had no samples and contributes
  // zeros.
  void all_final();
  // when_finite: if given, the reducer's thread may call it before finish_step() returns, once the
  // sums are in place and finite (Reducer::wait_step). The operations that it enqueues on a GPU see
  // the sums. Meanwhile the caller's thread does not use the GPU.
  [[nodiscard]] StepVerdict finish_step(const FollowUp::Action* when_finite = nullptr);
  // The planned and sent bits per value in the last step. NaN before the first step, and if no
  // codec has a rate (a variable number of bits per value).
  [[nodiscard]] const RateReport& rate_report() const;
  // The tensors that at least one exchange since the last call has left out entirely, numbered in
  // the order of buckets(). Empty if the sums stay on a GPU.
  [[nodiscard]] std::vector<DeliveryGaps::Gap> take_delivery_gaps() { return gaps_.take(); }
  // Null if no bucket's codec has a rate.
  [[nodiscard]] RateGovernor* governor() { return governor_ ? &*governor_ : nullptr; }
  // Sets a new mean number of bits per value for the codec ecq:bits=. Call it between steps, with
  // the same value on all ranks. The quantiser's step sizes adapt within a few exchanges. Throws
  // Error(usage) for a codec without bits= and for a number that bits= does not allow.
  void set_mean_bits(double bits);

  // Collective, between steps, with the same factor on all ranks: from the next step on gradients
  // are `factor` times as large, because the loss has a new scale. Residuals, velocities, quantiser
  // step sizes and thresholds are multiplied by it, so that the exchange delivers what it would
  // have delivered with a constant scale. Throws Error(usage) if the factor is not a finite float
  // above 0. If Adam's steps are exchanged, which do not depend on the scale, it also throws for
  // any factor but 1.
  void change_loss_scale(double factor);
  // The product of all factors so far. list_state() does not include it: a caller that changes the
  // scale must save this product, and must pass it to set_loss_scale() (collective) after loading a
  // state.
  [[nodiscard]] double loss_scale() const { return loss_scale_; }
  void set_loss_scale(double scale);

  // Call it after connect(). The reducer also runs other communication between ranks, and counts
  // the exchange's costs.
  [[nodiscard]] Reducer& reducer() { return *reducer_; }
  // options.compress, with the bits that follow from the size of the model and the number of ranks.
  [[nodiscard]] const CompressChoice& compress() const { return options_.compress; }
  // The buckets as planned. During a warm-up reducer().buckets() has the codecs in use.
  [[nodiscard]] const std::vector<Bucket>& buckets() const { return buckets_; }
  [[nodiscard]] std::size_t bucket_bytes() const { return options_.bucket_bytes; }
  // "device" or "host"; empty without a GPU.
  [[nodiscard]] std::string path() const;
  // Whether the exchange applies momentum to that tensor's gradient. If so, the optimiser must not
  // apply momentum again, and the caller must add weight decay to the gradient before
  // tensor_final(): 1/P of the decay on each of the P ranks.
  [[nodiscard]] bool has_momentum(std::size_t tensor) const;
  // Call it between steps. Returns the residuals of all buckets that meet three conditions: they
  // send SGD's masked velocities (velocity=masked), they plan fewer than 0.1 bits a value, and in
  // their topology each rank owns a chunk (direct). Empty if there are no such buckets. The
  // residuals are in host memory if path() is "host" or empty, otherwise in device memory.
  [[nodiscard]] std::vector<UndeliveredPart> undelivered_parts() const;
  // Call it between steps. Lists residuals, velocities and everything else that the exchanges keep
  // from step to step.
  void list_state(StateVisitor& visitor);

 private:
  [[nodiscard]] bool is_gpu() const {
    return device_ != nullptr && device_->kind() == DeviceKind::cuda;
  }
  void choose_tensor_codecs(std::vector<TensorSlot>& tensors) const;
  void lengthen_segments();
  [[nodiscard]] double take_velocities();
  void check_momentum() const;
  void compare_gradients(std::uint64_t step);
  void order_rate(std::uint64_t step, double progress);
  [[nodiscard]] StepWatch* watch() { return governor_ ? governor_->watch() : nullptr; }
  void bucket_final(std::size_t bucket);
  void end_of_gradients();

  Device* device_;
  std::span<float> gradient_;
  GradientSyncOptions options_;
  std::vector<Bucket> buckets_;
  std::vector<std::size_t> bucket_of_tensor_;
  BucketTracker tracker_;
  bool is_on_device_ = false;     // the exchange's path
  Device::Memory host_gradient_;  // used on the host path
  std::span<const float> sums_;   // in host memory; empty if the sums stay on a GPU
  DeliveryGaps gaps_;
  std::unique_ptr<BucketLink> link_;
  // Takes the sums through the link, and calls when_finite_ of the running finish_step().
  FollowUp::Action take_sums_;
  const FollowUp::Action* when_finite_ = nullptr;
  bool has_taken_sums_ = false;           // by take_sums_, in this step
  double loss_scale_ = 1.0;               // relative to the start of the run
  std::optional<RateGovernor> governor_;  // if some bucket's codec has a rate
  std::unique_ptr<Reducer> reducer_;
};

}  // namespace dp
