// Adam and AdamW, as torch.optim.Adam and torch.optim.AdamW define them (amsgrad and maximize off):
// Adam after Kingma and Ba 2015, AdamW's decoupled weight decay after Loshchilov and Hutter 2019. t
// counts the updates from 1.
//
//   parameter *= 1 - learning_rate * weight_decay                       (AdamW only)
//   g = gradient * scale + weight_decay * parameter                     (AdamW omits the last term)
//   mean += (1 - beta1) * (g - mean)
//   square = beta2 * square + (1 - beta2) * g * g
//   root = sqrt(square) / sqrt(1 - beta2^t) + epsilon
//   parameter -= learning_rate / (1 - beta1^t) * mean / root
//
// scale is the clipping factor (kernels/sgd.hpp). No fused multiply-adds are used, so every device
// computes the same bits.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/device.hpp"

namespace dp {

struct AdamSettings {
  double learning_rate = 1e-3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.0;
  bool is_decoupled = false;  // AdamW
  double clip_norm = 0.0;     // 0: no clipping
};

// The coefficients of one update, as the operation reads them.
struct AdamStep {
  float keep = 1.0f;   // factor of the parameter
  float decay = 0.0f;  // factor of the parameter in the gradient (weight decay)
  float one_minus_beta1 = 0.1f, beta2 = 0.999f, one_minus_beta2 = 0.001f;
  float size = 1e-3f;            // learning_rate / (1 - beta1^t)
  float square_root_end = 1.0f;  // sqrt(1 - beta2^t)
  float epsilon = 1e-8f;
  double clip_norm = 0.0;
};

[[nodiscard]] inline AdamStep adam_step(const AdamSettings& settings, std::uint64_t t) {
  const auto count = static_cast<double>(t);
  const double decay = settings.weight_decay, rate = settings.learning_rate;
  return {.keep = static_cast<float>(settings.is_decoupled ? 1.0 - rate * decay : 1.0),
          .decay = static_cast<float>(settings.is_decoupled ? 0.0 : decay),
          .one_minus_beta1 = static_cast<float>(1.0 - settings.beta1),
          .beta2 = static_cast<float>(settings.beta2),
          .one_minus_beta2 = static_cast<float>(1.0 - settings.beta2),
          .size = static_cast<float>(rate / (1.0 - std::pow(settings.beta1, count))),
          .square_root_end = static_cast<float>(std::sqrt(1.0 - std::pow(settings.beta2, count))),
          .epsilon = static_cast<float>(settings.epsilon),
          .clip_norm = settings.clip_norm};
}

// parameters, mean and square are updated in place. All four spans have the same size. `squares` is
// the gradient's sum of squares, or null for no clipping. `step` and `squares` are read when the
// operation runs, so both must be in memory from Device::allocate_host.
void adam_update(Device& device, std::span<float> parameters, std::span<const float> gradients,
                 std::span<float> mean, std::span<float> square, const AdamStep* step,
                 const double* squares);

}  // namespace dp
