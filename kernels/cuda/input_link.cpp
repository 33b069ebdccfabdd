#include "kernels/input_link.hpp"

#include <array>

#include "kernels/base/error.hpp"
#include "kernels/cuda/device.hpp"
#include "kernels/cuda/twins.hpp"

namespace dp::cuda {

namespace {

class CudaInputLink final : public InputLink {
 public:
  CudaInputLink(CudaDevice& device, std::size_t largest_batch, const ImageShape& image,
                const PixelTable& table)
      : device_(device),
        image_(image),
        table_(device.allocate(sizeof table)),
        labels_(device.allocate(largest_batch * sizeof(std::int32_t))) {
    device_.upload(table_.get(), &table, sizeof table);
    for (Slot& slot : slots_) {
      slot.images = device.allocate(largest_batch * image.values());
      slot.crops = device.allocate(largest_batch * sizeof(ImageCrop));
      slot.labels = device.allocate(largest_batch * sizeof(std::int32_t));
    }
  }

  void send(std::span<const std::uint8_t> images, std::span<const ImageCrop> crops,
            std::span<const std::int32_t> labels) override {
    DP_ASSERT(sent_ - received_ < slots_.size(), "{} batches are already on their way to the GPU",
              sent_ - received_);
    DP_ASSERT(crops.size() == labels.size() && images.size() == labels.size() * image_.values(),
              "{} bytes, {} crops and {} labels do not fit each other", images.size(), crops.size(),
              labels.size());
    Slot& slot = slots_[sent_++ % slots_.size()];
    slot.samples = labels.size();
    // Copy only after the previous batch in this slot has been read.
    DP_CHECK_CUDA(cudaStreamWaitEvent(stream_.get(), slot.is_free.get(), 0));
    copy(slot.images.get(), images.data(), images.size_bytes());
    copy(slot.crops.get(), crops.data(), crops.size_bytes());
    copy(slot.labels.get(), labels.data(), labels.size_bytes());
    DP_CHECK_CUDA(cudaEventRecord(slot.is_there.get(), stream_.get()));
  }

  void await_sent() override {
    if (sent_ == 0) return;
    const Slot& last = slots_[(sent_ - 1) % slots_.size()];
    device_.wait_for(last.is_there.get(), "the copy of a batch");
  }

  void receive(const TensorView& y) override {
    DP_ASSERT(received_ < sent_, "no batch is on its way to the GPU");
    const Slot& slot = slots_[received_++ % slots_.size()];
    const Shape sent{slot.samples, image_.height, image_.width, image_.channels};
    DP_ASSERT(y.desc.shape == sent, "a batch of {} was sent, but {} is asked for",
              to_string(TensorDesc::nhwc(sent)), to_string(y.desc));
    DP_CHECK_CUDA(cudaStreamWaitEvent(device_.stream(), slot.is_there.get(), 0));
    augment_images(device_, reinterpret_cast<const std::uint8_t*>(slot.images.get()),
                   reinterpret_cast<const ImageCrop*>(slot.crops.get()),
                   reinterpret_cast<const PixelTable*>(table_.get()), y);
    DP_CHECK_CUDA(cudaMemcpyAsync(labels_.get(), slot.labels.get(),
                                  slot.samples * sizeof(std::int32_t), cudaMemcpyDeviceToDevice,
                                  device_.stream()));
    DP_CHECK_CUDA(cudaEventRecord(slot.is_free.get(), device_.stream()));
  }

  [[nodiscard]] const std::int32_t* labels() const override {
    return reinterpret_cast<const std::int32_t*>(labels_.get());
  }

 private:
  struct Slot {
    Device::Memory images, crops, labels;
    std::size_t samples = 0;
    Event is_there, is_free;  // waiting for an event that was never recorded does nothing
  };

  void copy(void* to, const void* from, std::size_t bytes) {
    if (bytes == 0) return;
    DP_CHECK_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_.get()));
  }

  CudaDevice& device_;
  ImageShape image_;
  Device::Memory table_, labels_;
  Stream stream_;
  std::array<Slot, 2> slots_;
  std::uint64_t sent_ = 0, received_ = 0;
};

}  // namespace

std::unique_ptr<InputLink> make_input_link(CudaDevice& device, std::size_t largest_batch,
                                           const ImageShape& image, const PixelTable& table) {
  return std::make_unique<CudaInputLink>(device, largest_batch, image, table);
}

}  // namespace dp::cuda
