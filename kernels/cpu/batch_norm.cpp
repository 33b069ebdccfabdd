// Batch normalisation in loops of ours: memory-bound, so what counts is how often each tensor is
// read. Forward: x once from memory for the statistics (a plane's second read hits the cache), once
// to normalise. Backward: x, dy (and y with an addend) for the sums, then x and dy again.
//
// Work is cut into planes: one image, one channel block, all pixels. Per-plane results are combined
// over images in a fixed order, so the bits do not depend on the number of threads.
#include <array>
#include <cmath>
#include <vector>

#include "kernels/base/error.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/twins.hpp"

namespace dp::cpu {

namespace {

// Channel blocks are handled in slices of at most this many channels, whose accumulators fit the
// registers (16) and which divide or end every block.
constexpr std::size_t kSlice = 16;

// One slice of a plane: `pixels` rows of `width` (<= kSlice) channels, `stride` elements apart.
struct Slice {
  std::size_t offset;   // of the first element in the tensor
  std::size_t channel;  // first channel
  std::size_t width, stride, pixels;
};

using Lane = std::array<float, kSlice>;

// Calls body(width) with the width as a compile-time constant for full slices.
template <class Body>
void with_width(std::size_t width, const Body& body) {
  if (width == kSlice) {
    body(std::integral_constant<std::size_t, kSlice>{});
  } else if (width == kSlice / 2) {
    body(std::integral_constant<std::size_t, kSlice / 2>{});
  } else {
    body(width);
  }
}

class CpuBatchNorm final : public BatchNorm {
 public:
  CpuBatchNorm(CpuDevice& device, const BatchNormDesc& desc)
      : device_(device),
        desc_(desc),
        channels_(desc.x.shape.c),
        images_(desc.x.shape.n),
        slices_per_block_((desc.x.channel_block + kSlice - 1) / kSlice),
        slices_(desc.x.shape.c / desc.x.channel_block * slices_per_block_),
        partial_a_(images_ * channels_),
        partial_b_(images_ * channels_),
        mean_(channels_),
        inverse_deviation_(channels_),
        scale_(channels_),
        shift_(channels_) {}

  void forward_training(const TensorView& x, const TensorView& addend, const Parameters& parameters,
                        const TensorView& y) override {
    with_type(desc_.x.type, [&](auto* tag) {
      using T = std::remove_pointer_t<decltype(tag)>;
      compute_statistics(x.as<const T>(), parameters);
      normalise(x.as<const T>(), addend.as<const T>(), y.as<T>());
    });
  }

  void forward_inference(const TensorView& x, const TensorView& addend,
                         const Parameters& parameters, const TensorView& y) override {
    for (std::size_t c = 0; c < channels_; ++c) {
      const float inverse =
          static_cast<float>(1.0 / std::sqrt(static_cast<double>(parameters.running_var[c]) +
                                             static_cast<double>(desc_.epsilon)));
      scale_[c] = parameters.gamma[c] * inverse;
      shift_[c] = parameters.beta[c] - parameters.running_mean[c] * scale_[c];
    }
    with_type(desc_.x.type, [&](auto* tag) {
      using T = std::remove_pointer_t<decltype(tag)>;
      normalise(x.as<const T>(), addend.as<const T>(), y.as<T>());
    });
  }

  void backward(const TensorView& x, const TensorView& y, const Parameters& parameters,
                const Gradients& gradients) override {
    with_type(desc_.x.type, [&](auto* tag) {
      using T = std::remove_pointer_t<decltype(tag)>;
      const Tensors<T> t{.x = x.as<const T>(),
                         .y = y.as<const T>(),
                         .dy = gradients.dy.as<const T>(),
                         .dy2 = gradients.dy2.as<const T>(),
                         .dx = gradients.dx.as<T>(),
                         .d_addend = gradients.d_addend.as<T>()};
      // The mask comes from y with an addend and from x without; two gradients or one.
      if (desc_.has_relu && desc_.has_addend) {
        backward_sums<T, Mask::from_y>(t);
      } else if (desc_.has_relu) {
        backward_sums<T, Mask::from_x>(t);
      } else {
        backward_sums<T, Mask::none>(t);
      }
      combine_sums(parameters, gradients);
      if (desc_.has_relu && !desc_.has_addend) {
        backward_inputs<T, Mask::from_x>(t);
      } else {
        backward_inputs<T, Mask::none>(t);
      }
    });
  }

 private:
  enum class Mask { none, from_x, from_y };

  template <class T>
  struct Tensors {
    const T *x, *y, *dy, *dy2;
    T *dx, *d_addend;
  };

  [[nodiscard]] Slice slice(std::size_t image, std::size_t index) const {
    const std::size_t block = desc_.x.channel_block, pixels = desc_.x.shape.pixels();
    const std::size_t block_index = index / slices_per_block_;
    const std::size_t first = index % slices_per_block_ * kSlice;
    return {.offset = image * channels_ * pixels + block_index * block * pixels + first,
            .channel = block_index * block + first,
            .width = std::min(kSlice, block - first),
            .stride = block,
            .pixels = pixels};
  }

  // Calls body(image, slice) for all slices in parallel.
  template <class Body>
  void for_each_slice(const Body& body) {
    parallel_for(device_, images_ * slices_, [&](std::size_t i) {
      const std::size_t image = i / slices_;
      body(image, slice(image, i % slices_));
    });
  }

  // Per plane: mean and sum of squared deviations from it (two sweeps, so nothing cancels); planes
  // are then merged in double (Chan, Golub, LeVeque 1983, eq. 2.1).
  template <class T>
  void compute_statistics(const T* x, const Parameters& parameters) {
    for_each_slice([&](std::size_t image, const Slice& s) {
      with_width(s.width, [&](auto width) {
        const T* in = x + s.offset;
        Lane sum{}, squares{}, mean{};
        for (std::size_t p = 0; p < s.pixels; ++p) {
#pragma omp simd
          for (std::size_t j = 0; j < width; ++j) sum[j] += load(in[p * s.stride + j]);
        }
        const float inverse = 1.0f / static_cast<float>(s.pixels);
        for (std::size_t j = 0; j < width; ++j) mean[j] = sum[j] * inverse;
        for (std::size_t p = 0; p < s.pixels; ++p) {
#pragma omp simd
          for (std::size_t j = 0; j < width; ++j) {
            const float d = load(in[p * s.stride + j]) - mean[j];
            squares[j] += d * d;
          }
        }
        for (std::size_t j = 0; j < width; ++j) {
          partial_a_[image * channels_ + s.channel + j] = mean[j];
          partial_b_[image * channels_ + s.channel + j] = squares[j];
        }
      });
    });
    const auto per_plane = static_cast<double>(desc_.x.shape.pixels());
    const double count = per_plane * static_cast<double>(images_);
    const double momentum = static_cast<double>(desc_.momentum);
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
      const double variance = squares / count;
      const double unbiased = count > 1 ? squares / (count - 1) : variance;
      mean_[c] = static_cast<float>(mean);
      inverse_deviation_[c] =
          static_cast<float>(1.0 / std::sqrt(variance + static_cast<double>(desc_.epsilon)));
      scale_[c] = parameters.gamma[c] * inverse_deviation_[c];
      shift_[c] = parameters.beta[c] - mean_[c] * scale_[c];
      const auto update = [&](float& running, double batch) {
        running =
            static_cast<float>((1 - momentum) * static_cast<double>(running) + momentum * batch);
      };
      update(parameters.running_mean[c], mean);
      update(parameters.running_var[c], unbiased);
    }
  }

  template <class T>
  void normalise(const T* x, const T* addend, T* y) {
    DP_ASSERT((addend != nullptr) == desc_.has_addend, "addend given: {}", addend != nullptr);
    if (desc_.has_addend && desc_.has_relu) return normalise_as<T, true, true>(x, addend, y);
    if (desc_.has_addend) return normalise_as<T, true, false>(x, addend, y);
    if (desc_.has_relu) return normalise_as<T, false, true>(x, addend, y);
    normalise_as<T, false, false>(x, addend, y);
  }

  template <class T, bool has_addend, bool has_relu>
  void normalise_as(const T* x, const T* addend, T* y) {
    for_each_slice([&](std::size_t, const Slice& s) {
      with_width(s.width, [&](auto width) {
        Lane scale{}, shift{};
        for (std::size_t j = 0; j < width; ++j) {
          scale[j] = scale_[s.channel + j];
          shift[j] = shift_[s.channel + j];
        }
        for (std::size_t p = 0; p < s.pixels; ++p) {
          const std::size_t at = s.offset + p * s.stride;
#pragma omp simd
          for (std::size_t j = 0; j < width; ++j) {
            float value = load(x[at + j]) * scale[j] + shift[j];
            if constexpr (has_addend) value += load(addend[at + j]);
            if constexpr (has_relu) value = value > 0.0f ? value : 0.0f;
            y[at + j] = store<T>(value);
          }
        }
      });
    });
  }

  // Per plane: sum of g and sum of g * (x - mean), where g is dy + dy2 behind the ReLU's mask.
  // With an addend g is also its gradient, and is stored for the second sweep.
  template <class T, Mask mask>
  void backward_sums(const Tensors<T>& t) {
    if (t.dy2 != nullptr) {
      backward_sums_as<T, mask, true>(t);
    } else {
      backward_sums_as<T, mask, false>(t);
    }
  }
  template <class T, Mask mask, bool has_two>
  void backward_sums_as(const Tensors<T>& t) {
    for_each_slice([&](std::size_t image, const Slice& s) {
      with_width(s.width, [&](auto width) {
        const Lanes lanes = lanes_of(s, width);
        Lane sum{}, product{};
        for (std::size_t p = 0; p < s.pixels; ++p) {
          const std::size_t at = s.offset + p * s.stride;
#pragma omp simd
          for (std::size_t j = 0; j < width; ++j) {
            const float x = load(t.x[at + j]);
            float g = load(t.dy[at + j]);
            if constexpr (has_two) g += load(t.dy2[at + j]);
            if constexpr (mask == Mask::from_x) {
              g = x * lanes.scale[j] + lanes.shift[j] > 0.0f ? g : 0.0f;
            } else if constexpr (mask == Mask::from_y) {
              g = load(t.y[at + j]) > 0.0f ? g : 0.0f;
            }
            sum[j] += g;
            product[j] += g * (x - lanes.mean[j]);
          }
        }
        for (std::size_t j = 0; j < width; ++j) {
          partial_a_[image * channels_ + s.channel + j] = sum[j];
          partial_b_[image * channels_ + s.channel + j] = product[j];
        }
        if (t.d_addend == nullptr) return;
        // The plane is in the cache now.
        for (std::size_t p = 0; p < s.pixels; ++p) {
          const std::size_t at = s.offset + p * s.stride;
#pragma omp simd
          for (std::size_t j = 0; j < width; ++j) {
            float g = load(t.dy[at + j]);
            if constexpr (has_two) g += load(t.dy2[at + j]);
            if constexpr (mask == Mask::from_y) g = load(t.y[at + j]) > 0.0f ? g : 0.0f;
            t.d_addend[at + j] = store<T>(g);
          }
        }
      });
    });
  }

  // d_beta = sum g, d_gamma = sum g * xhat, and the two coefficients of
  // dx = gamma / deviation * (g - mean(g) - xhat * mean(g * xhat)).
  void combine_sums(const Parameters& parameters, const Gradients& gradients) {
    const double count = static_cast<double>(images_) * static_cast<double>(desc_.x.shape.pixels());
    for (std::size_t c = 0; c < channels_; ++c) {
      double sum = 0, product = 0;
      for (std::size_t n = 0; n < images_; ++n) {
        sum += static_cast<double>(partial_a_[n * channels_ + c]);
        product += static_cast<double>(partial_b_[n * channels_ + c]);
      }
      const auto inverse = static_cast<double>(inverse_deviation_[c]);
      gradients.d_beta[c] = static_cast<float>(sum);
      gradients.d_gamma[c] = static_cast<float>(product * inverse);
      // dx = factor * g - slope * (x - mean) - offset
      const double factor = static_cast<double>(parameters.gamma[c]) * inverse;
      partial_a_[c] = static_cast<float>(factor * sum / count);
      partial_b_[c] = static_cast<float>(factor * product * inverse * inverse / count);
    }
  }

  template <class T, Mask mask>
  void backward_inputs(const Tensors<T>& t) {
    // With an addend g was stored, masked and summed, in its gradient.
    if (t.d_addend != nullptr) {
      backward_inputs_as<T, Mask::none, false>(t, t.d_addend);
    } else if (t.dy2 != nullptr) {
      backward_inputs_as<T, mask, true>(t, t.dy);
    } else {
      backward_inputs_as<T, mask, false>(t, t.dy);
    }
  }
  template <class T, Mask mask, bool has_two>
  void backward_inputs_as(const Tensors<T>& t, const T* dy) {
    for_each_slice([&](std::size_t, const Slice& s) {
      with_width(s.width, [&](auto width) {
        const Lanes lanes = lanes_of(s, width);
        Lane offset{}, slope{};
        for (std::size_t j = 0; j < width; ++j) {
          offset[j] = partial_a_[s.channel + j];
          slope[j] = partial_b_[s.channel + j];
        }
        for (std::size_t p = 0; p < s.pixels; ++p) {
          const std::size_t at = s.offset + p * s.stride;
#pragma omp simd
          for (std::size_t j = 0; j < width; ++j) {
            const float x = load(t.x[at + j]);
            float g = load(dy[at + j]);
            if constexpr (has_two) g += load(t.dy2[at + j]);
            if constexpr (mask == Mask::from_x) {
              g = x * lanes.scale[j] + lanes.shift[j] > 0.0f ? g : 0.0f;
            }
            t.dx[at + j] =
                store<T>(lanes.scale[j] * g - slope[j] * (x - lanes.mean[j]) - offset[j]);
          }
        }
      });
    });
  }

  struct Lanes {
    Lane mean{}, scale{}, shift{};
  };
  template <class Width>
  [[nodiscard]] Lanes lanes_of(const Slice& s, Width width) const {
    Lanes lanes;
    for (std::size_t j = 0; j < width; ++j) {
      lanes.mean[j] = mean_[s.channel + j];
      lanes.scale[j] = scale_[s.channel + j];
      lanes.shift[j] = shift_[s.channel + j];
    }
    return lanes;
  }

  CpuDevice& device_;
  BatchNormDesc desc_;
  std::size_t channels_, images_, slices_per_block_, slices_;
  std::vector<float> partial_a_, partial_b_;  // images x C
  // Of the last forward pass: batch mean, 1 / sqrt(var + epsilon), and y = x * scale + shift.
  std::vector<float> mean_, inverse_deviation_, scale_, shift_;
};

}  // namespace

std::unique_ptr<BatchNorm> make_batch_norm(CpuDevice& device, const BatchNormDesc& desc) {
  return std::make_unique<CpuBatchNorm>(device, desc);
}

}  // namespace dp::cpu
