// The readable twin of kernels/batch_norm.hpp: plain loops over M = N H W rows of C channels.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

namespace dp::reference {

template <class T>
struct BatchNorm {
  std::size_t rows, channels;
  bool has_relu = false, has_addend = false;
  T epsilon = T(1e-5f), momentum = T(0.1f);

  // Kept by forward_training for backward.
  std::vector<T> mean{}, variance{};

  // addend may be null without has_addend.
  void forward_training(const T* x, const T* addend, const T* gamma, const T* beta, T* running_mean,
                        T* running_var, T* y) {
    mean.assign(channels, 0);
    variance.assign(channels, 0);
    const T count = static_cast<T>(rows);
    for (std::size_t m = 0; m < rows; ++m)
      for (std::size_t c = 0; c < channels; ++c) mean[c] += x[m * channels + c] / count;
    for (std::size_t m = 0; m < rows; ++m)
      for (std::size_t c = 0; c < channels; ++c) {
        const T d = x[m * channels + c] - mean[c];
        variance[c] += d * d / count;
      }
    for (std::size_t c = 0; c < channels; ++c) {
      const T unbiased = rows > 1 ? variance[c] * count / (count - 1) : variance[c];
      running_mean[c] = (1 - momentum) * running_mean[c] + momentum * mean[c];
      running_var[c] = (1 - momentum) * running_var[c] + momentum * unbiased;
    }
    normalise(x, addend, gamma, beta, mean.data(), variance.data(), y);
  }

  void forward_inference(const T* x, const T* addend, const T* gamma, const T* beta,
                         const T* running_mean, const T* running_var, T* y) const {
    normalise(x, addend, gamma, beta, running_mean, running_var, y);
  }

  // d_addend is not touched without has_addend; y decides the ReLU's mask.
  void backward(const T* x, const T* y, const T* dy, const T* gamma, T* dx, T* d_addend, T* d_gamma,
                T* d_beta) const {
    const T count = static_cast<T>(rows);
    for (std::size_t c = 0; c < channels; ++c) {
      const T deviation = std::sqrt(variance[c] + epsilon);
      T sum = 0, product = 0;
      const auto g = [&](std::size_t i) { return has_relu && !(y[i] > 0) ? T(0) : dy[i]; };
      const auto normal = [&](std::size_t i) { return (x[i] - mean[c]) / deviation; };
      for (std::size_t m = 0; m < rows; ++m) {
        const std::size_t i = m * channels + c;
        sum += g(i);
        product += g(i) * normal(i);
      }
      d_beta[c] = sum;
      d_gamma[c] = product;
      for (std::size_t m = 0; m < rows; ++m) {
        const std::size_t i = m * channels + c;
        if (has_addend) d_addend[i] = g(i);
        dx[i] = gamma[c] / deviation * (g(i) - sum / count - normal(i) * product / count);
      }
    }
  }

 private:
  void normalise(const T* x, const T* addend, const T* gamma, const T* beta, const T* center,
                 const T* spread, T* y) const {
    for (std::size_t m = 0; m < rows; ++m)
      for (std::size_t c = 0; c < channels; ++c) {
        const std::size_t i = m * channels + c;
        T value = gamma[c] * (x[i] - center[c]) / std::sqrt(spread[c] + epsilon) + beta[c];
        if (has_addend) value += addend[i];
        y[i] = has_relu && value < 0 ? T(0) : value;
      }
  }
};

}  // namespace dp::reference
