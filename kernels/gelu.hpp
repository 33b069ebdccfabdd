// GELU in its exact form, torch's default (Hendrycks and Gimpel 2016):
//
//   y = x * Phi(x)          dy/dx = Phi(x) + x * phi(x)
//
// where Phi is the distribution function of the standard normal distribution and phi its density.
//
// Phi(-a) = exp(-a^2 / 2) * r(a) for a >= 0. The factor r is smooth: r = t * p(t) with
// t = 1 / (1 + 0.35 a) and a polynomial p of degree 8. The polynomial is fitted for the least
// relative error (3e-8) on [0, 13.5]; beyond 13.5, y is 0 or x in fp32. Phi and phi share one
// exponential. In fp32 the relative error of Phi is 4e-7 near 0. It grows with the rounding error
// of a^2, to 5e-6 at a = 12.
//
// Every device executes the same operations in the same order, so the bits are the same everywhere.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/base/hd.hpp"
#include "kernels/device.hpp"
#include "kernels/tensor.hpp"

namespace dp {

// Both overwrite their outputs, which may alias inputs. All tensors must have the same data type
// and the same channel block.
void gelu_forward(Device& device, const TensorView& x, const TensorView& y);
// dx = dy * dy/dx at x
void gelu_backward(Device& device, const TensorView& x, const TensorView& dy, const TensorView& dx);

// ---- the arithmetic -----------------------------------------------------------------------------
// `Float` is float and `Bits` is std::uint32_t, or they are g++ vector types of floats and of
// unsigned integers with the same number of elements.

template <class Float>
struct NormalParts {
  Float exponential;   // exp(-x^2 / 2), at least exp(-87): slopes are right up to |x| = 1e30
  Float distribution;  // Phi(x)
};

// A NaN stays a NaN.
template <class Float, class Bits>
DP_HD inline NormalParts<Float> normal_parts(Float x) {
  const Float a = x < 0.0f ? -x : x;
  const Float square = x * x * -0.5f;
  const Float z = square < -87.0f ? Float{} - 87.0f : square;
  // exp(z) = 2^n * exp(r) with |r| <= ln(2) / 2. Adding 1.5 * 2^23 rounds z / ln(2) to the whole
  // number n and leaves n in the lowest bits.
  const Float shifted = z * 1.44269504f + 12582912.0f;
  const Float n = shifted - 12582912.0f;
  const Float r = (z - n * 0.693145752f) - n * 1.42860677e-6f;
  Float series = r * 1.98412698e-4f + 1.38888889e-3f;
  series = series * r + 8.33333333e-3f;
  series = series * r + 4.16666667e-2f;
  series = series * r + 1.66666667e-1f;
  series = series * r + 0.5f;
  series = series * r + 1.0f;
  series = series * r + 1.0f;
  const Bits power = (std::bit_cast<Bits>(shifted) + 127u) << 23;
  const Float exponential = series * std::bit_cast<Float>(power);

  const Float t = 1.0f / (a * 0.35f + 1.0f);
  Float p = t * -0.0291258986f + 0.143872393f;
  p = p * t - 0.25550488f;
  p = p * t + 0.158929637f;
  p = p * t - 0.0229373663f;
  p = p * t + 0.105433028f;
  p = p * t + 0.119852416f;
  p = p * t + 0.139859085f;
  p = p * t + 0.13962157f;
  const Float tail = exponential * (p * t);
  return {exponential, x < 0.0f ? tail : 1.0f - tail};
}

template <class Float = float, class Bits = std::uint32_t>
DP_HD inline Float gelu(Float x) {
  return x * normal_parts<Float, Bits>(x).distribution;
}

template <class Float = float, class Bits = std::uint32_t>
DP_HD inline Float gelu_slope(Float x) {
  const NormalParts<Float> parts = normal_parts<Float, Bits>(x);
  return parts.distribution + x * (parts.exponential * 0.398942280f);
}

}  // namespace dp
