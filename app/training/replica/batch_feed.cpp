#include "app/training/replica/batch_feed.hpp"

#include "kernels/base/error.hpp"

namespace dp {

BatchFeed::BatchFeed(Device& device, net::Network& network, const Normalization& normalization)
    : device_(device), network_(network), normalization_(normalization) {
  loaded_.reserve(2);
}

void BatchFeed::prepare(std::size_t samples) {
  if (device_.kind() == DeviceKind::cpu || samples <= largest_batch_) return;
  const ImageShape& image = network_.image();
  input_ = make_input_link(device_, samples, image, Normalizer(image, normalization_).table());
  image_memory_ = device_.allocate(network_.images_desc(samples).bytes());
  // This is set last. If memory runs out above, the old value stays, so that the next call
  // allocates again, even for a smaller batch.
  largest_batch_ = samples;
}

void BatchFeed::load(const Batch& batch) {
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

void BatchFeed::await_sent() {
  if (input_) input_->await_sent();
}

LoadedBatch BatchFeed::take() {
  DP_ASSERT(!loaded_.empty(), "no batch is loaded");
  const LoadedBatch batch = loaded_.front();
  loaded_.erase(loaded_.begin());
  return batch;
}

void BatchFeed::bring_in(const LoadedBatch& batch) {
  if (input_) input_->receive(images_of(batch));
}

TensorView BatchFeed::images_of(const LoadedBatch& batch) {
  // The cast is needed because operations use one view type for what they read and what they write.
  return {network_.images_desc(batch.samples), input_
                                                   ? reinterpret_cast<float*>(image_memory_.get())
                                                   : const_cast<float*>(batch.images)};
}

}  // namespace dp
