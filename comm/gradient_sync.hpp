// All that a training loop needs of the exchange: it takes the gradients of every rank and gives
// back their sum.
//
// It is made from the gradient's named tensors, a codec, a topology and the device that computes.
// It plans the buckets, their codecs and the warm-up, connects a GPU with the thread that
// exchanges, and owns that thread (reducer.hpp). The rate of codecs that have one is the governor's
// (rate_governor.hpp).
//
// Set-up: construct, connect(); begin_epoch() before the first step of each epoch. A step:
//     begin_step(step)     the gradient may now be written
//     tensor_final(t)      tensor t's gradient is final; every tensor once a step, in any order.
//                          Buckets leave as they become final
//     finish_step()        waits until the sums are in place on all ranks
//
// On a GPU tensor_final() may be called while operations are recorded: it enqueues, and replays
// repeat it. finish_step() then makes later operations see the sums.
//
// All ranks make the same calls. Failures are thrown as in reducer.hpp; a wrong combination of
// options is Error(usage).
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
#include "comm/reducer/reducer.hpp"
#include "comm/topologies/buckets.hpp"
#include "kernels/base/state.hpp"
#include "kernels/bucket_link.hpp"
#include "kernels/device.hpp"

namespace dp {

struct GradientSyncOptions {
  CompressChoice compress = {};
  std::size_t ranks = 1;  // for compress that depends on their number
  // The measured link of this rank, for auto; zeros: not known.
  double link_bytes_per_s = 0.0, link_latency_s = 0.0;
  // For auto: the bits of each step, which are then taken instead of what is measured, so that a
  // run repeats an earlier one. 0: the step had no exchange, or one that was applied later; then
  // the next bits count, and behind the last ones these.
  std::vector<double> planned_bits = {};
  std::size_t compress_warmup = 0;  // epochs in fp32, or on the way down to the ratio
  // Codecs of tensors by their names, with * and ?; later ones win. Any that keeps no momentum, has
  // no rate and needs no topology of its own, such as none, bf16, q8.
  std::vector<std::pair<std::string, CodecSpec>> tensor_codecs = {};
  bool is_one_host = false;  // all ranks are on the same one
  std::size_t bucket_bytes = BucketOptions{}.bucket_bytes;
  // If set, it is called once with the tensors and the codec (of auto and fewest, the one chosen
  // for this network), and its result replaces bucket_bytes. dptrain chooses the size by the
  // measured network in this way (choose_bucket_bytes in link_probe.hpp).
  std::function<std::size_t(std::span<const TensorSlot>, const CodecSpec&)> choose_bucket_bytes =
      {};
  bool overlap = true;  // false: nothing leaves before the last tensor is final
  ExchangePath path = ExchangePath::automatic;
  // For codecs with momentum before the sum (dgc, velocity=): what SGD would do with the gradient;
  // nothing if that cannot be done before the sum.
  std::optional<float> momentum = std::nullopt;
  bool has_nesterov = false;
  // Instead, for velocity=: Adam's step, which the optimiser then adds as it is.
  std::optional<AdamVelocityOptions> adam = std::nullopt;
  ReducerOptions reducer = {};  // topology, time-out, seed, trace; the rest is filled in here
};

// A part of a tensor, and what waits there in this rank's residual.
struct UndeliveredPart {
  std::size_t tensor = 0;
  std::size_t offset = 0;  // of the flat gradient
  std::span<const float> residual = {};
  // times * residual is this rank's estimate of what all ranks have not delivered. times is the
  // number of ranks, as if the others' residuals were like its own, and 1 in the chunk that this
  // rank owns: its residual there is what the sum of all ranks has lost.
  float times = 1.0f;
};

class GradientSync {
 public:
  // Plans the buckets and, on a GPU, the path. `gradient` is memory of the device, or of the host
  // if the device is null. Gradient and device outlive this object. The tensors follow each other
  // without gaps and are the whole gradient (plan_buckets). Without tensors nothing is exchanged.
  GradientSync(Device* device, std::span<float> gradient, std::vector<TensorSlot> tensors,
               GradientSyncOptions options);
  ~GradientSync();
  GradientSync(const GradientSync&) = delete;
  GradientSync& operator=(const GradientSync&) = delete;

  // Collective. From here on the reducer's thread owns the communicator.
  void connect(Communicator& communicator);
  // Collective. Sets the codecs of that epoch, which a warm-up changes.
  void begin_epoch(std::size_t epoch);

  // progress: the share of the run that lies before this step, for codecs with a rate
  // (planned_bits); below 0: not known. Collective in a RatedRound without a hidden share.
  void begin_step(std::uint64_t step, double progress = -1.0);
  void tensor_final(std::size_t tensor);
  // Reports all tensors as final, for example the zeros of a rank without samples.
  void all_final();
  [[nodiscard]] StepVerdict finish_step();
  // What codecs with a rate do; NaN where no bucket has one, and before the first step.
  [[nodiscard]] const RateReport& rate_report() const;
  // Which tensors have waited for how many exchanges since the last call (tensors in the order of
  // buckets()); empty where sums are on a GPU alone.
  [[nodiscard]] std::vector<DeliveryGaps::Gap> take_delivery_gaps() { return gaps_.take(); }
  // Null if no bucket's codec has a rate.
  [[nodiscard]] RateGovernor* governor() { return governor_ ? &*governor_ : nullptr; }
  // Between steps, the same on all ranks: another mean for ecq:bits=. Steps of the quantiser follow
  // within some exchanges. Throws Error(usage) for a codec without bits=, and for a number that the
  // key does not allow.
  void set_mean_bits(double bits);

  // Collective, between steps, the same on all ranks: the gradients of later steps are this many
  // times as large, because the loss has another scale. Residuals, velocities, quantiser steps and
  // thresholds follow, so that the exchange delivers what it would have delivered with a constant
  // scale. Throws Error(usage) unless the factor is a float above 0, and where Adam's steps are
  // exchanged, which do not depend on the scale.
  void change_loss_scale(double factor);
  // All factors so far, multiplied. list_state() does not have it: whoever changes the scale saves
  // it, and sets it after a state was loaded. Collective.
  [[nodiscard]] double loss_scale() const { return loss_scale_; }
  void set_loss_scale(double scale);

  // After connect(): for other communication between ranks, and for the costs of the exchange.
  [[nodiscard]] Reducer& reducer() { return *reducer_; }
  // options.compress, completed by the size of the network and the number of ranks.
  [[nodiscard]] const CompressChoice& compress() const { return options_.compress; }
  // The buckets as planned. During a warm-up reducer().buckets() has the codecs in use.
  [[nodiscard]] const std::vector<Bucket>& buckets() const { return buckets_; }
  [[nodiscard]] std::size_t bucket_bytes() const { return options_.bucket_bytes; }
  // "device" or "host"; empty without a GPU.
  [[nodiscard]] std::string path() const;
  // Whether the exchange adds momentum to that tensor's gradient, so that the optimiser must not.
  // The caller adds weight decay before tensor_final(), each rank its part of it.
  [[nodiscard]] bool has_momentum(std::size_t tensor) const;
  // Call it between steps. The values that wait in the residual, for buckets that send SGD's masked
  // velocities (velocity=masked) at fewer than 0.1 planned bits over a topology in which each rank
  // owns a chunk (direct); empty otherwise. They are host memory if path() is "host",
  // otherwise the device's.
  [[nodiscard]] std::vector<UndeliveredPart> undelivered_parts() const;
  // Call it between steps. Lists residuals and what exchanges keep from step to step.
  void list_state(StateVisitor& visitor);

 private:
  [[nodiscard]] bool is_gpu() const {
    return device_ != nullptr && device_->kind() == DeviceKind::cuda;
  }
  void choose_tensor_codecs(std::vector<TensorSlot>& tensors) const;
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
  Device::Memory host_gradient_;  // of the host path
  std::span<const float> sums_;   // in host memory; empty where they are on a GPU alone
  DeliveryGaps gaps_;
  std::unique_ptr<BucketLink> link_;
  double loss_scale_ = 1.0;               // relative to the start's
  std::optional<RateGovernor> governor_;  // if some bucket's codec has a rate
  std::unique_ptr<Reducer> reducer_;
};

}  // namespace dp
