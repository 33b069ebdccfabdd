#include "app/training/replica/replica.hpp"

#include <algorithm>

#include "kernels/base/error.hpp"
#include "kernels/mix.hpp"
#include "kernels/sgd.hpp"

namespace dp {

void Replica::begin_epoch(std::size_t epoch, double learning_rate, std::size_t round_steps) {
  sync_->begin_epoch(epoch);
  // Recordings contain the policy's operations, so they are made anew.
  if (policies_.begin_epoch(round_steps, learning_rate)) recordings_.clear();
  const bool changes = std::ranges::any_of(network_.parameters().tensors(), [&](const auto& t) {
    return t.is_trained_in(epoch) != t.is_trained_in(epoch_);
  });
  epoch_ = epoch;
  if (changes) set_groups();
}

// ---- a step -------------------------------------------------------------------------------------

void Replica::compute(std::uint64_t step, bool is_last_part, double progress) {
  batch_ = feed_.take();
  if (batch_.part == 0) {
    policy().begin_step(step, progress);
    if (options_.trace != nullptr) options_.trace->begin_step(step);
    clock_.step_begins(step);
    earlier_.begin_step();
    network_.parameters().keep_statistics();
  } else {
    clock_.part_begins();  // the part before it has been computed
    earlier_.loss() += loss_[0];
  }
  loss_[0] = {};
  network_.position() = {.seed = options_.seed,
                         .step = step,
                         .first_image = batch_.first_image,
                         .image_stride = batch_.image_stride};
  if (batch_.samples == 0 && desk_) network_.take_part_without_images();
  if (batch_.samples > 0) {
    feed_.bring_in(batch_);
    // The passes are recorded when the first batch of this size comes, and replayed from then on.
    std::unique_ptr<Recording>& passes = recordings_[{batch_.samples, batch_.global_samples,
                                                      earlier_.has_gradients(), is_last_part}];
    if (!passes)
      passes = device_.record([this, is_last_part] { forward_and_backward(is_last_part); });
    passes->replay();
    earlier_.note_gradients();
  } else if (is_last_part) {
    // A rank without samples in the last, smaller step still takes part in the exchange.
    finish_without_batch();
  } else {
    clock_.nothing_computed();
  }
}

void Replica::rehearse(TimeMarks& marks, std::uint64_t step) {
  using Marks = RehearsalMarks;
  batch_ = feed_.take();
  network_.position() = {.seed = options_.seed,
                         .step = step,
                         .first_image = batch_.first_image,
                         .image_stride = batch_.image_stride};
  const std::size_t tensors = network_.parameters().tensors().size();
  if (batch_.samples == 0) {
    for (std::size_t i = 0; i < Marks::kFirstTensor + tensors; ++i) marks.mark(i);
    return;
  }
  feed_.bring_in(batch_);
  std::unique_ptr<Recording>& passes = rehearsals_[{batch_.samples, batch_.global_samples}];
  const auto operations = [this, &marks] {
    marks.mark(Marks::kBegin);
    const TensorView images = feed_.images_of(batch_);
    const TensorView logits = network_.forward(images, net::Mode::training);
    compute_loss(batch_, logits, static_cast<double>(batch_.global_samples));
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
  averages_.update_lookahead(0.0);
  averages_.update_ema(0.0);
  device_.synchronize();
}

StepVerdict Replica::await_sums(double data_s, std::optional<UpdateNumbers> planned) {
  early_update_.is_enqueued = false;
  // The reducer's thread enqueues the update only if that is no more than a launch: other ranks
  // expect its answers, so it must not wait for the device to load kernels or capture a graph.
  const bool may_update = planned && is_gpu() && optimizer_->is_captured();
  if (may_update) {
    early_update_.planned = *planned;
    clock_.expect_early_update();
  }
  const StepVerdict verdict = policy().await_sums(may_update ? &early_update_.action : nullptr);
  const GatherDesk::Waits waits = desk_ ? desk_->take_waits() : GatherDesk::Waits{};
  clock_.exchanged(data_s, waits.forward_s, waits.backward_s);
  // Only here is it certain that the device has finished the step's computation: in a step without
  // an exchange, nothing has waited for it before.
  loss_sums_ = earlier_.loss();
  loss_sums_ += loss_[0];
  return verdict;
}

void Replica::update(double learning_rate, double progress) {
  const UpdateNumbers numbers = {.learning_rate = learning_rate, .progress = progress};
  if (!early_update_.is_enqueued) return enqueue_update(numbers);
  DP_ASSERT(numbers == early_update_.planned, "the update was planned with other numbers");
}

void Replica::enqueue_update(const UpdateNumbers& numbers) {
  optimizer_->step(numbers.learning_rate);
  policy().update_averages(numbers.progress);
}

void Replica::skip_update() { network_.parameters().bring_back_statistics(); }

std::vector<float> Replica::logits() {
  const LoadedBatch batch = feed_.take();
  if (batch.samples == 0) return {};
  feed_.bring_in(batch);
  const TensorView logits = network_.forward(feed_.images_of(batch), net::Mode::evaluation);
  device_.synchronize();
  return to_host(device_,
                 {static_cast<const float*>(logits.data), batch.samples * network_.classes()});
}

LossSums Replica::evaluate() {
  const LoadedBatch batch = feed_.take();
  if (batch.samples == 0) return {};
  feed_.bring_in(batch);
  const TensorView logits = network_.forward(feed_.images_of(batch), net::Mode::evaluation);
  softmax_cross_entropy(device_, logits, feed_.labels_of(batch), 0.0f, 1.0, {}, loss_.at(0));
  device_.synchronize();
  return loss_[0];
}

void Replica::compute_loss(const LoadedBatch& batch, const TensorView& logits, double divisor) {
  softmax_cross_entropy(device_, logits, feed_.labels_of(batch),
                        static_cast<float>(options_.label_smoothing), divisor,
                        network_.logit_gradient(), loss_.at(0));
}

// The operations of a step or of a part of it. On a GPU they are recorded, so they may depend only
// on the key of recordings_.
void Replica::forward_and_backward(bool is_last_part) {
  const TensorView images = feed_.images_of(batch_);
  const TensorView logits = network_.forward(images, net::Mode::training);
  {
    const TraceSlice slice(host_trace(), TraceKind::loss);
    compute_loss(batch_, logits, policy().loss_divisor(batch_.global_samples));
  }
  clock_.forward_ended();
  if (is_last_part) {
    policy().backward(images);
  } else {
    network_.backward(images, {});
    earlier_.keep();
  }
  clock_.backward_ended();
}

void Replica::finish_without_batch() {
  const std::span<float> gradients = network_.parameters().gradients();
  device_.fill_zero(gradients.data(), gradients.size_bytes());
  earlier_.add_to(gradients);
  policy().finish_without_batch();
  clock_.nothing_computed();
}

}  // namespace dp
