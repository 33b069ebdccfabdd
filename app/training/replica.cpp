#include "app/training/replica.hpp"

#include <algorithm>

#include "kernels/base/error.hpp"
#include "kernels/mix.hpp"
#include "kernels/sgd.hpp"

namespace dp {

namespace {

float* floats(const Device::Memory& memory) { return reinterpret_cast<float*>(memory.get()); }

}  // namespace

void Replica::begin_epoch(std::size_t epoch, double learning_rate) {
  sync_->begin_epoch(epoch);
  begin_rounds(epoch, learning_rate);
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
                     .global_samples = batch.global_samples,
                     .part = batch.part,
                     .first_image = batch.first_image,
                     .image_stride = batch.image_stride});
  if (input_ && batch.samples > 0) input_->send(batch.bytes, batch.crops, batch.labels);
}

void Replica::compute(std::uint64_t step, bool is_last_part, double progress) {
  batch_ = take_loaded();
  if (batch_.part == 0) {
    if (!is_in_rounds_) sync_->begin_step(step, progress);
    if (options_.trace != nullptr) options_.trace->begin_step(step);
    clock_.step_begins(step);
    has_earlier_ = false;
    earlier_loss_ = {};
    network_.parameters().keep_statistics();
  } else {
    clock_.part_begins();  // the part before it has been computed
    earlier_loss_ += *loss_;
  }
  *loss_ = {};
  *squares_ = 0.0;
  network_.position() = {.seed = options_.seed,
                         .step = step,
                         .first_image = batch_.first_image,
                         .image_stride = batch_.image_stride};
  if (batch_.samples == 0 && desk_) network_.take_part_without_images();
  if (batch_.samples > 0) {
    bring_in(batch_);
    // Recorded when the first batch of this size comes, and replayed from then on.
    std::unique_ptr<Recording>& passes =
        recordings_[{batch_.samples, batch_.global_samples, has_earlier_, is_last_part}];
    if (!passes)
      passes = device_.record([this, is_last_part] { forward_and_backward(is_last_part); });
    passes->replay();
    has_earlier_ = true;
  } else if (is_last_part) {
    // A rank without samples in the last, smaller step still takes part in the exchange.
    finish_without_batch();
  } else {
    clock_.nothing_computed();
  }
}

void Replica::rehearse(TimeMarks& marks, std::uint64_t step) {
  using Marks = RehearsalMarks;
  batch_ = take_loaded();
  network_.position() = {.seed = options_.seed,
                         .step = step,
                         .first_image = batch_.first_image,
                         .image_stride = batch_.image_stride};
  const std::size_t tensors = network_.parameters().tensors().size();
  if (batch_.samples == 0) {
    for (std::size_t i = 0; i < Marks::kFirstTensor + tensors; ++i) marks.mark(i);
    return;
  }
  bring_in(batch_);
  std::unique_ptr<Recording>& passes = rehearsals_[{batch_.samples, batch_.global_samples}];
  const auto operations = [this, &marks] {
    marks.mark(Marks::kBegin);
    const TensorView images = images_of(batch_);
    const TensorView logits = network_.forward(images, net::Mode::training);
    softmax_cross_entropy(device_, logits, input_ ? input_->labels() : batch_.labels,
                          static_cast<float>(options_.label_smoothing),
                          static_cast<double>(batch_.global_samples), network_.logit_gradient(),
                          loss_);
    network_.backward(images,
                      [&marks](std::size_t tensor) { marks.mark(Marks::kFirstTensor + tensor); });
    marks.mark(Marks::kBackwardEnd);
  };
  if (!passes) passes = device_.record(operations);
  passes->replay();
  device_.synchronize();
}

void Replica::rehearse_update() {
  optimizer_->step(0.0);
  if (lookahead_) lookahead_->update(0.0);
  if (ema_) ema_->update(0.0);
  device_.synchronize();
}

void Replica::await_loaded() {
  if (input_) input_->await_sent();
}

StepVerdict Replica::await_sums(double data_s) {
  StepVerdict verdict;
  if (is_in_rounds_) {
    device_.synchronize();
  } else {
    verdict = sync_->finish_step();
    if (exchange_memory_) {
      blend_values(device_, exchanged_, network_.parameters().gradients(), 1.0f);
    }
  }
  const GatherDesk::Waits waits = desk_ ? desk_->take_waits() : GatherDesk::Waits{};
  clock_.exchanged(data_s, waits.forward_s, waits.backward_s);
  // Only here the device has certainly ended the step's computation, because without an exchange
  // nothing has waited for it before.
  loss_sums_ = earlier_loss_;
  loss_sums_ += *loss_;
  gradient_squares_ = *squares_;
  return verdict;
}

void Replica::update(double learning_rate, double progress) {
  optimizer_->step(learning_rate);
  if (lookahead_) lookahead_->update(progress);
  if (ema_ && !is_in_rounds_) ema_->update(progress);
}

void Replica::skip_update() { network_.parameters().bring_back_statistics(); }

void Replica::reset_averages() {
  for (const auto& average : {lookahead_.get(), ema_.get()}) {
    if (average != nullptr) average->reset();
  }
}

void Replica::swap_averages() {
  if (ema_) {
    ema_->swap();
  } else if (is_in_rounds_) {
    rounds_->swap_common();
  } else if (lookahead_) {
    lookahead_->swap();
  }
}

Replica::LoadedBatch Replica::take_loaded() {
  DP_ASSERT(!loaded_.empty(), "no batch is loaded");
  const LoadedBatch batch = loaded_.front();
  loaded_.erase(loaded_.begin());
  return batch;
}

std::vector<float> Replica::logits() {
  const LoadedBatch batch = take_loaded();
  if (batch.samples == 0) return {};
  bring_in(batch);
  const TensorView logits = network_.forward(images_of(batch), net::Mode::evaluation);
  device_.synchronize();
  return to_host(device_,
                 {static_cast<const float*>(logits.data), batch.samples * network_.classes()});
}

LossSums Replica::evaluate() {
  const LoadedBatch batch = take_loaded();
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

// The operations of a step or of a part of it. On a GPU they are recorded, so they may only depend
// on what recordings_ are found by.
void Replica::forward_and_backward(bool is_last_part) {
  const TensorView images = images_of(batch_);
  const TensorView logits = network_.forward(images, net::Mode::training);
  // The gradient is divided by the samples of all ranks here, so the exchange only adds. In rounds
  // it is divided by a rank's part of them, so that the mean of the ranks' gradients is the same.
  {
    const TraceSlice slice(host_trace(), TraceKind::loss);
    const auto samples = static_cast<double>(batch_.global_samples);
    softmax_cross_entropy(
        device_, logits, input_ ? input_->labels() : batch_.labels,
        static_cast<float>(options_.label_smoothing),
        is_in_rounds_ ? samples / static_cast<double>(options_.rounds->ranks) : samples,
        network_.logit_gradient(), loss_);
  }
  clock_.forward_ended();
  const std::span<float> gradients = network_.parameters().gradients();
  if (is_last_part) {
    network_.backward(images, tensor_final_);
    if (!tensor_final_) add_earlier(gradients);
  } else {
    network_.backward(images, {});
    const std::span<float> earlier(floats(earlier_gradients_), gradients.size());
    if (has_earlier_) {
      add_values(device_, gradients, earlier);
    } else {
      blend_values(device_, gradients, earlier, 1.0f);
    }
  }
  // An exchange looks at every value; without one nobody else does. The squares of finite floats do
  // not overflow a double.
  if (!exchanges_gradients() && is_last_part) sum_of_squares(device_, gradients, squares_);
  clock_.backward_ended();
}

// This rank's part of the weight decay of a tensor whose momentum comes before the exchange.
void Replica::add_decay(std::size_t tensor) {
  if (exchanged_decays_[tensor] == 0.0f) return;
  const net::Parameter& place = network_.parameters().tensors()[tensor];
  add_values(device_, network_.parameters().values().subspan(place.offset, place.elements),
             network_.parameters().gradients().subspan(place.offset, place.elements),
             exchanged_decays_[tensor] / static_cast<float>(ranks_));
}

// To a slice of the gradients, or all: those of the step's earlier parts.
void Replica::add_earlier(std::span<float> gradients) {
  if (!has_earlier_) return;
  const auto offset =
      static_cast<std::size_t>(gradients.data() - network_.parameters().gradients().data());
  const std::span<const float> earlier(floats(earlier_gradients_) + offset, gradients.size());
  add_values(device_, earlier, gradients);
}

void Replica::finish_without_batch() {
  const std::span<float> gradients = network_.parameters().gradients();
  device_.fill_zero(gradients.data(), gradients.size_bytes());
  add_earlier(gradients);
  for (std::size_t t = 0; t < exchanged_decays_.size(); ++t) add_decay(t);
  if (!exchanges_gradients()) sum_of_squares(device_, gradients, squares_);
  if (!is_in_rounds_) {
    if (exchange_memory_) blend_values(device_, gradients, exchanged_, 1.0f);
    sync_->all_final();
  }
  clock_.nothing_computed();
}

}  // namespace dp
