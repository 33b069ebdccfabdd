#include "kernels/codecs/ecq.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/base/error.hpp"
#include "kernels/codecs/code_layout.hpp"
#include "kernels/codecs/cpu_driver.hpp"
#include "kernels/codecs/entropy_coder.hpp"
#include "kernels/codecs/lane_sum.hpp"
#include "kernels/codecs/payload_errors.hpp"
#include "kernels/codecs/scaled_blocks.hpp"

namespace dp {

namespace {

constexpr float kMostCode = 127.0f;
constexpr float kLeastStep = 0x1p-100f, kMostStep = 0x1p119f;
constexpr std::size_t kHeadBytes = sizeof(float) + 1;
enum class Form : std::uint8_t { plain = 0, coded = 1 };

}  // namespace

Ecq::Ecq(const CodecSpec& codec_spec)
    : Codec(codec_spec), step_(static_cast<float>(codec_spec.number("step"))) {}

// The payload, the codes, and what the entropy coder needs.
std::size_t Ecq::max_payload_bytes(std::size_t n) const {
  return kHeadBytes + 2 * n + entropy::scratch_bytes(n);
}

std::size_t Ecq::expected_payload_bytes(std::size_t n) const {
  // Steps of 2, 3, 4 and 5 took 0.79, 0.35, 0.12 and 0.061 bits; fine ones take what a Gaussian's
  // do.
  const double step = spec().number("step");
  const double bits =
      std::min(2.05 - std::log2(std::min(step, 4.0)), 0.35 * std::exp(-0.87 * (step - 3.0)));
  return kHeadBytes + static_cast<std::size_t>(std::ceil(static_cast<double>(n) * bits / 8.0));
}

double Ecq::contraction() const { return std::sqrt(1.0 - 0.75 / static_cast<double>(kMostFloats)); }

float Ecq::own_step(const float* partial, const float* residual, std::size_t n,
                    float largest) const {
  const float inverse = 1.0f / largest;
  constexpr std::size_t kTile = 2048;
  double sum = 0;
  for (std::size_t begin = 0; begin < n; begin += kTile) {
    const float* p = partial + begin;
    const float* r = residual == nullptr ? nullptr : residual + begin;
    const std::size_t m = std::min(kTile, n - begin);
    sum += r == nullptr ? lane_sum<float>(m,
                                          [=](std::size_t i) {
                                            const float x = p[i] * inverse;
                                            return x * x;
                                          })
                        : lane_sum<float>(m, [=](std::size_t i) {
                            const float x = (p[i] + r[i]) * inverse;
                            return x * x;
                          });
  }
  const auto share = static_cast<float>(std::sqrt(sum / static_cast<double>(n)));  // of `largest`
  return std::clamp(step_ * share, 1.0f / kMostCode, 1.0f) * largest;
}

EncodeResult Ecq::encode(std::span<const float> partial, float* residual,
                         std::span<std::byte> payload, const EncodeContext& context) const {
  const std::size_t n = partial.size();
  DP_ASSERT(n <= kMostFloats, "a segment of {} floats", n);
  DP_ASSERT(payload.size() >= max_payload_bytes(n), "{} bytes for a payload of up to {}",
            payload.size(), max_payload_bytes(n));
  const std::uint32_t largest_bits = largest_magnitude_bits(partial.data(), residual, n);
  const bool is_finite = largest_bits < BlockScales::kNonFiniteFrom;
  float step = 0.0f;
  if (is_finite && largest_bits >= BlockScales::kTiny) {
    const float largest = std::bit_cast<float>(largest_bits);
    step = context.quantiser_step > 0.0f ? std::max(context.quantiser_step, largest / kMostCode)
                                         : own_step(partial.data(), residual, n, largest);
    step = std::clamp(step, kLeastStep, kMostStep);
  }
  const auto write_step = [&](float value) {
    std::memcpy(payload.data(), &value, sizeof value);
    return EncodeResult{.payload_bytes = sizeof value, .finite = is_finite};
  };
  if (step == 0.0f) {
    // What is too small to be sent stays in the residual.
    if (is_finite && residual != nullptr) {
#pragma omp simd
      for (std::size_t i = 0; i < n; ++i) residual[i] += partial[i];
    }
    return write_step(0.0f);
  }

  std::byte* const body = payload.data() + kHeadBytes;
  std::byte* const codes = body + n;
  const float inverse = 1.0f / step;
  code_layout::encode<8, 0>(codes, partial.data(), residual, n, [=](float v, std::size_t) {
    const float q = std::nearbyintf(v * inverse);
    const float code = q > kMostCode ? kMostCode : q < -kMostCode ? -kMostCode : q;
    return code_layout::Coded{static_cast<std::uint32_t>(static_cast<int>(code)), code * step};
  });
  const std::span signed_codes(reinterpret_cast<const std::int8_t*>(codes), n);
  const auto coded = entropy::encode(signed_codes, body, codes + n);
  if (!coded) std::memcpy(body, codes, n);
  static_cast<void>(write_step(step));
  payload[sizeof step] = std::byte{static_cast<std::uint8_t>(coded ? Form::coded : Form::plain)};
  return {.payload_bytes = kHeadBytes + coded.value_or(n), .finite = true};
}

void Ecq::decode(std::span<const std::byte> payload, std::span<float> out) const {
  std::fill(out.begin(), out.end(), 0.0f);
  decode_add(payload, out);
}

void Ecq::decode_add(std::span<const std::byte> payload, std::span<float> out) const {
  float step = 0.0f;
  if (payload.size() < sizeof step) throw_payload_content(spec());
  std::memcpy(&step, payload.data(), sizeof step);
  if (std::bit_cast<std::uint32_t>(step) == 0 && payload.size() == sizeof step) return;
  // Written so that NaN is refused.
  if (!(step >= kLeastStep && step <= kMostStep) || payload.size() < kHeadBytes) {
    throw_payload_content(spec());
  }
  const auto form = std::to_integer<std::uint8_t>(payload[sizeof step]);
  const std::span<const std::byte> body = payload.subspan(kHeadBytes);
  if (form == static_cast<std::uint8_t>(Form::plain)) {
    if (body.size() != out.size()) throw_payload_content(spec());
    code_layout::decode<8, true>(body.data(), out.size(), out.data(), [=](std::uint32_t code) {
      return static_cast<float>(static_cast<std::int8_t>(code)) * step;
    });
    return;
  }
  if (form != static_cast<std::uint8_t>(Form::coded) || body.size() > out.size() ||
      !entropy::decode_add(body, step, out)) {
    throw_payload_content(spec());
  }
}

}  // namespace dp
