// Batch normalisation in our own loops. They are memory-bound, so their time depends on how often
// each tensor is read:
//   forward    x for the statistics (a second sweep over each slice reads from the cache), then x
//              again to normalise
//   backward   x and dy (also y if there is an addend) for the sums, then x and dy again for dx
//
// Work is cut into slices: one image, a few channels, all pixels (channel_slices.hpp). Each slice
// leaves partial results per image and channel. Images are then combined in a fixed order in
// double, so the bits do not depend on the number of threads. With a RankGather, ranks are combined
// after that.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/base/error.hpp"
#include "kernels/batch_moments.hpp"
#include "kernels/cpu/channel_slices.hpp"
#include "kernels/cpu/twins.hpp"

namespace dp::cpu {

namespace {

// gamma is null if the layer has no scale. The factor is then 1.
[[nodiscard]] float gamma_of(const BatchNorm::Parameters& parameters, std::size_t channel) {
  return parameters.gamma == nullptr ? 1.0f : parameters.gamma[channel];
}

class CpuBatchNorm final : public BatchNorm {
 public:
  CpuBatchNorm(CpuDevice& device, const BatchNormDesc& desc)
      : device_(device),
        desc_(desc),
        channels_(desc.x.shape.c),
        images_(desc.x.shape.n),
        partial_a_(images_ * channels_),
        partial_b_(images_ * channels_),
        mean_(channels_),
        inverse_deviation_(channels_),
        scale_(channels_),
        shift_(channels_) {
    if (desc.gather == nullptr) return;
    mine_.resize(moments_floats(channels_));
    all_.resize(mine_.size() * desc.gather->ranks());
    desc.gather->reserve(mine_.size());
  }

  void forward_training(const TensorView& x, const TensorView& addend, const Parameters& parameters,
                        const TensorView& y) override {
    with_type_and_width(desc_.x, [&](auto* tag, auto width) {
      using T = std::remove_pointer_t<decltype(tag)>;
      compute_statistics<T, width>(x.as<const T>());
    });
    combine_statistics(parameters);
    normalise(x, addend, y);
  }

  void forward_inference(const TensorView& x, const TensorView& addend,
                         const Parameters& parameters, const TensorView& y) override {
    for (std::size_t c = 0; c < channels_; ++c) {
      const float inverse =
          static_cast<float>(1.0 / std::sqrt(static_cast<double>(parameters.running_var[c]) +
                                             static_cast<double>(desc_.epsilon)));
      scale_[c] = gamma_of(parameters, c) * inverse;
      shift_[c] = parameters.beta[c] - parameters.running_mean[c] * scale_[c];
    }
    normalise(x, addend, y);
  }

  void backward(const TensorView& x, const TensorView& y, const Parameters& parameters,
                const Gradients& gradients) override {
    DP_ASSERT(static_cast<bool>(gradients.d_addend) == desc_.has_addend, "addend's gradient: {}",
              static_cast<bool>(gradients.d_addend));
    with_type_and_width(desc_.x, [&](auto* tag, auto width) {
      using T = std::remove_pointer_t<decltype(tag)>;
      const Tensors<T> t{.x = x.as<const T>(),
                         .y = y.as<const T>(),
                         .dy = gradients.dy.as<const T>(),
                         .dy2 = gradients.dy2.as<const T>(),
                         .dx = gradients.dx.as<T>(),
                         .d_addend = gradients.d_addend.as<T>()};
      if (t.dy2 != nullptr) {
        backward_with<T, width, true>(t, parameters, gradients);
      } else {
        backward_with<T, width, false>(t, parameters, gradients);
      }
    });
  }

  void forward_without_images(const Parameters& parameters) override {
    std::fill(mine_.begin(), mine_.end(), 0.0f);
    gather_statistics(parameters);
  }

  void backward_without_images() override {
    std::fill(mine_.begin(), mine_.end(), 0.0f);
    desc_.gather->gather(Pass::backward, mine_, all_);
  }

 private:
  // The tensor from which the ReLU's mask is computed: y if there is an addend, else x, which is
  // normalised again.
  enum class Mask { none, from_x, from_y };

  template <class T>
  struct Tensors {
    const T *x, *y, *dy, *dy2;
    T *dx, *d_addend;
  };

  template <std::size_t W>
  [[nodiscard]] static Vector<W> lanes(const std::vector<float>& values, const Slice& s) {
    return load_vector<W>(values.data() + s.channel);
  }
  // The partial results of a slice for one image.
  [[nodiscard]] float* partial(std::vector<float>& values, std::size_t image, const Slice& s) {
    return values.data() + image * channels_ + s.channel;
  }

  template <class Body>
  void for_each_slice(const Body& body) {
    cpu::for_each_slice(device_, desc_.x, body);
  }

  // The mean and the sum of squared deviations from the mean, per slice and image. Two sweeps avoid
  // cancellation; the second one reads from the cache.
  template <class T, std::size_t W>
  void compute_statistics(const T* x) {
    for_each_slice([&](std::size_t image, const Slice& s) {
      const T* in = x + s.offset;
      Vector<W> sum{}, squares{};
      for (std::size_t p = 0; p < s.pixels; ++p) sum += load_vector<W>(in + p * s.stride);
      const Vector<W> mean = sum * (1.0f / static_cast<float>(s.pixels));
      for (std::size_t p = 0; p < s.pixels; ++p) {
        const Vector<W> d = load_vector<W>(in + p * s.stride) - mean;
        squares += d * d;
      }
      store_vector<W>(partial(partial_a_, image, s), mean);
      store_vector<W>(partial(partial_b_, image, s), squares);
    });
  }

  // Merges the statistics of the images in double, in order (Chan, Golub, LeVeque 1983, eq. 2.1),
  // and then those of the ranks.
  void combine_statistics(const Parameters& parameters) {
    const auto per_plane = static_cast<double>(desc_.x.shape.pixels());
    const double count = per_plane * static_cast<double>(images_);
    for (std::size_t c = 0; c < channels_; ++c) {
      double mean = 0, squares = 0;
      for (std::size_t n = 0; n < images_; ++n) {
        mean += static_cast<double>(partial_a_[n * channels_ + c]);
      }
      mean /= static_cast<double>(images_);
      for (std::size_t n = 0; n < images_; ++n) {
        const double d = static_cast<double>(partial_a_[n * channels_ + c]) - mean;
        squares += static_cast<double>(partial_b_[n * channels_ + c]) + per_plane * d * d;
      }
      if (desc_.gather == nullptr) {
        finish_channel(c, {.count = count, .mean = mean, .squares = squares}, parameters);
      } else {
        mine_[1 + c] = static_cast<float>(mean);
        mine_[1 + channels_ + c] = static_cast<float>(squares);
      }
    }
    if (desc_.gather == nullptr) return;
    mine_[0] = static_cast<float>(count);
    gather_statistics(parameters);
  }

  void gather_statistics(const Parameters& parameters) {
    desc_.gather->gather(Pass::forward, mine_, all_);
    for (std::size_t c = 0; c < channels_; ++c) {
      finish_channel(c, merge_moments(all_.data(), desc_.gather->ranks(), channels_, c),
                     parameters);
    }
  }

  void finish_channel(std::size_t c, const BatchMoments& batch, const Parameters& parameters) {
    const auto momentum = static_cast<double>(desc_.momentum);
    const double variance = batch.squares / batch.count;
    const double unbiased = batch.count > 1 ? batch.squares / (batch.count - 1) : variance;
    mean_[c] = static_cast<float>(batch.mean);
    inverse_deviation_[c] =
        static_cast<float>(1.0 / std::sqrt(variance + static_cast<double>(desc_.epsilon)));
    scale_[c] = gamma_of(parameters, c) * inverse_deviation_[c];
    shift_[c] = parameters.beta[c] - mean_[c] * scale_[c];
    // If a batch is not finite, its training step is skipped, so it must not change the running
    // statistics.
    if (!std::isfinite(batch.mean) || !std::isfinite(unbiased)) return;
    const auto update = [&](float& running, double value) {
      running =
          static_cast<float>((1 - momentum) * static_cast<double>(running) + momentum * value);
    };
    update(parameters.running_mean[c], batch.mean);
    update(parameters.running_var[c], unbiased);
  }

  void normalise(const TensorView& x, const TensorView& addend, const TensorView& y) {
    DP_ASSERT(static_cast<bool>(addend) == desc_.has_addend, "addend given: {}",
              static_cast<bool>(addend));
    with_type_and_width(desc_.x, [&](auto* tag, auto width) {
      using T = std::remove_pointer_t<decltype(tag)>;
      const T *in = x.as<const T>(), *added = addend.as<const T>();
      T* out = y.as<T>();
      if (desc_.has_addend && desc_.has_relu) {
        normalise_as<T, width, true, true>(in, added, out);
      } else if (desc_.has_addend) {
        normalise_as<T, width, true, false>(in, added, out);
      } else if (desc_.has_relu) {
        normalise_as<T, width, false, true>(in, added, out);
      } else {
        normalise_as<T, width, false, false>(in, added, out);
      }
    });
  }

  template <class T, std::size_t W, bool has_addend, bool has_relu>
  void normalise_as(const T* x, const T* addend, T* y) {
    for_each_slice([&](std::size_t, const Slice& s) {
      const Vector<W> scale = lanes<W>(scale_, s), shift = lanes<W>(shift_, s);
      for (std::size_t p = 0; p < s.pixels; ++p) {
        const std::size_t at = s.offset + p * s.stride;
        Vector<W> value = load_vector<W>(x + at) * scale + shift;
        if constexpr (has_addend) value += load_vector<W>(addend + at);
        if constexpr (has_relu) value = relu(value);
        store_vector<W>(y + at, value);
      }
    });
  }

  template <class T, std::size_t W, bool has_two>
  void backward_with(const Tensors<T>& t, const Parameters& parameters,
                     const Gradients& gradients) {
    if (desc_.has_relu && desc_.has_addend) {
      backward_sums<T, W, has_two, Mask::from_y, true>(t);
    } else if (desc_.has_relu) {
      backward_sums<T, W, has_two, Mask::from_x, false>(t);
    } else if (desc_.has_addend) {
      backward_sums<T, W, has_two, Mask::none, true>(t);
    } else {
      backward_sums<T, W, has_two, Mask::none, false>(t);
    }
    combine_sums(parameters, gradients);
    if (desc_.has_addend) {
      // The first sweep has stored the masked sum of dy and dy2 in d_addend, so dy and dy2 are not
      // read again.
      backward_input<T, W, false, Mask::none>(t, t.d_addend);
    } else if (desc_.has_relu) {
      backward_input<T, W, has_two, Mask::from_x>(t, t.dy);
    } else {
      backward_input<T, W, has_two, Mask::none>(t, t.dy);
    }
  }

  // Sums of g and of g * (x - mean), per slice and image, where g is dy + dy2 with the ReLU's mask
  // applied. With an addend, g is also the addend's gradient.
  template <class T, std::size_t W, bool has_two, Mask mask, bool stores_gradient>
  void backward_sums(const Tensors<T>& t) {
    for_each_slice([&](std::size_t image, const Slice& s) {
      const Vector<W> mean = lanes<W>(mean_, s), scale = lanes<W>(scale_, s),
                      shift = lanes<W>(shift_, s);
      Vector<W> sum{}, product{};
      for (std::size_t p = 0; p < s.pixels; ++p) {
        const std::size_t at = s.offset + p * s.stride;
        const Vector<W> x = load_vector<W>(t.x + at);
        Vector<W> g = load_vector<W>(t.dy + at);
        if constexpr (has_two) g += load_vector<W>(t.dy2 + at);
        if constexpr (mask == Mask::from_x) g = where_positive(x * scale + shift, g);
        if constexpr (mask == Mask::from_y) g = where_positive(load_vector<W>(t.y + at), g);
        sum += g;
        product += g * (x - mean);
        if constexpr (stores_gradient) store_vector<W>(t.d_addend + at, g);
      }
      store_vector<W>(partial(partial_a_, image, s), sum);
      store_vector<W>(partial(partial_b_, image, s), product);
    });
  }

  // Computes d_beta = sum g, d_gamma = sum g * xhat, and the two coefficients of
  //   dx = gamma / deviation * (g - mean(g) - xhat * mean(g * xhat))
  void combine_sums(const Parameters& parameters, const Gradients& gradients) {
    const double count = static_cast<double>(images_) * static_cast<double>(desc_.x.shape.pixels());
    for (std::size_t c = 0; c < channels_; ++c) {
      GradientSums mine = {.count = count};
      for (std::size_t n = 0; n < images_; ++n) {
        mine.sum += static_cast<double>(partial_a_[n * channels_ + c]);
        mine.product += static_cast<double>(partial_b_[n * channels_ + c]);
      }
      gradients.d_beta[c] = static_cast<float>(mine.sum);
      if (gradients.d_gamma != nullptr) {
        gradients.d_gamma[c] =
            static_cast<float>(mine.product * static_cast<double>(inverse_deviation_[c]));
      }
      if (desc_.gather == nullptr) {
        set_coefficients(c, mine, parameters);
      } else {
        mine_[1 + c] = static_cast<float>(mine.sum);
        mine_[1 + channels_ + c] = static_cast<float>(mine.product);
      }
    }
    if (desc_.gather == nullptr) return;
    mine_[0] = static_cast<float>(count);
    desc_.gather->gather(Pass::backward, mine_, all_);
    for (std::size_t c = 0; c < channels_; ++c) {
      set_coefficients(c, merge_sums(all_.data(), desc_.gather->ranks(), channels_, c), parameters);
    }
  }

  // Computes the coefficients of dx = factor * g - slope * (x - mean) - offset. Stores `offset` in
  // partial_a_ and `slope` in partial_b_.
  void set_coefficients(std::size_t c, const GradientSums& sums, const Parameters& parameters) {
    const auto inverse = static_cast<double>(inverse_deviation_[c]);
    const double factor = static_cast<double>(gamma_of(parameters, c)) * inverse;
    partial_a_[c] = static_cast<float>(factor * sums.sum / sums.count);
    partial_b_[c] = static_cast<float>(factor * sums.product * inverse * inverse / sums.count);
  }

  template <class T, std::size_t W, bool has_two, Mask mask>
  void backward_input(const Tensors<T>& t, const T* dy) {
    for_each_slice([&](std::size_t, const Slice& s) {
      const Vector<W> mean = lanes<W>(mean_, s), scale = lanes<W>(scale_, s),
                      shift = lanes<W>(shift_, s), offset = lanes<W>(partial_a_, s),
                      slope = lanes<W>(partial_b_, s);
      for (std::size_t p = 0; p < s.pixels; ++p) {
        const std::size_t at = s.offset + p * s.stride;
        const Vector<W> x = load_vector<W>(t.x + at);
        Vector<W> g = load_vector<W>(dy + at);
        if constexpr (has_two) g += load_vector<W>(t.dy2 + at);
        if constexpr (mask == Mask::from_x) g = where_positive(x * scale + shift, g);
        store_vector<W>(t.dx + at, scale * g - slope * (x - mean) - offset);
      }
    });
  }

  CpuDevice& device_;
  BatchNormDesc desc_;
  std::size_t channels_, images_;
  std::vector<float> partial_a_, partial_b_;  // images x C
  std::vector<float> mine_, all_;  // this rank's message and all ranks' (batch_moments.hpp)
  // From the last forward pass: batch mean, 1 / sqrt(var + epsilon), and y = x * scale + shift.
  std::vector<float> mean_, inverse_deviation_, scale_, shift_;
};

}  // namespace

std::unique_ptr<BatchNorm> make_batch_norm(CpuDevice& device, const BatchNormDesc& desc) {
  return std::make_unique<CpuBatchNorm>(device, desc);
}

}  // namespace dp::cpu
