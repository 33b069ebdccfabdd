#include "kernels/channel_bias.hpp"

#include <vector>

#include "kernels/cpu/channel_slices.hpp"
#include "kernels/cpu/twins.hpp"

namespace dp::cpu {

namespace {

class CpuChannelBias final : public ChannelBias {
 public:
  CpuChannelBias(CpuDevice& device, const TensorDesc& y)
      : device_(device), desc_(y), partial_(y.shape.n * y.shape.c) {}

  void add(const TensorView& y, const float* bias) override {
    with_type_and_width(desc_, [&](auto* tag, auto width) {
      using T = std::remove_pointer_t<decltype(tag)>;
      T* values = y.as<T>();
      for_each_slice(device_, desc_, [&](std::size_t, const Slice& s) {
        const Vector<width> added = load_vector<width>(bias + s.channel);
        for (std::size_t p = 0; p < s.pixels; ++p) {
          T* at = values + s.offset + p * s.stride;
          store_vector<width>(at, load_vector<width>(at) + added);
        }
      });
    });
  }

  // Sums each image in fp32, then adds the images' sums in double, in order.
  void backward(const TensorView& dy, float* bias_gradient) override {
    const std::size_t channels = desc_.shape.c;
    with_type_and_width(desc_, [&](auto* tag, auto width) {
      using T = std::remove_pointer_t<decltype(tag)>;
      const T* values = dy.as<const T>();
      for_each_slice(device_, desc_, [&](std::size_t image, const Slice& s) {
        Vector<width> sum{};
        for (std::size_t p = 0; p < s.pixels; ++p) {
          sum += load_vector<width>(values + s.offset + p * s.stride);
        }
        store_vector<width>(partial_.data() + image * channels + s.channel, sum);
      });
    });
    for (std::size_t c = 0; c < channels; ++c) {
      double sum = 0;
      for (std::size_t n = 0; n < desc_.shape.n; ++n) {
        sum += static_cast<double>(partial_[n * channels + c]);
      }
      bias_gradient[c] = static_cast<float>(sum);
    }
  }

 private:
  CpuDevice& device_;
  TensorDesc desc_;
  std::vector<float> partial_;  // images x C
};

}  // namespace

std::unique_ptr<ChannelBias> make_channel_bias(CpuDevice& device, const TensorDesc& y) {
  return std::make_unique<CpuChannelBias>(device, y);
}

}  // namespace dp::cpu
