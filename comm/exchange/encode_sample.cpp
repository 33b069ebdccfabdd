#include "comm/exchange/encode_sample.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace dp {

EncodeSample::Sums& EncodeSample::Sums::operator+=(const Sums& more) {
  error_squares += more.error_squares;
  value_squares += more.value_squares;
  gradient_squares += more.gradient_squares;
  delivered_squares += more.delivered_squares;
  waiting_squares += more.waiting_squares;
  values += more.values;
  saturated += more.saturated;
  return *this;
}

double EncodeSample::Sums::residual_growth() const {
  return gradient_squares > 0.0 ? std::sqrt(waiting_squares / gradient_squares) : std::nan("");
}

double EncodeSample::Sums::residual_age() const {
  return delivered_squares > 0.0 ? waiting_squares / delivered_squares : std::nan("");
}

EncodeSample::EncodeSample(const Codec& codec, std::size_t encodes_per_step, std::size_t longest)
    : codec_(codec), encodes_per_step_(codec.is_lossless() ? 0 : encodes_per_step) {
  if (encodes_per_step_ == 0) return;
  decoded_ = codec.memory().allocate(longest);
  values_.resize(std::min(longest, kMostValues));
  their_rest_.resize(values_.size());
}

void EncodeSample::begin_step(std::uint64_t step) {
  encode_ = 0;
  if (encodes_per_step_ == 0) return;
  chosen_ = step % encodes_per_step_;
  wants_residual_ = step / encodes_per_step_ % 2 == 0;
}

bool EncodeSample::is_next() { return encodes_per_step_ > 0 && encode_++ == chosen_; }

void EncodeSample::before(std::span<const float> sum, const float* residual) {
  value_squares_ = codec_.memory().squares_of_sum(sum.data(), residual, sum.size());
  if (wants_residual_ && residual != nullptr) {
    gradient_squares_ = codec_.memory().squares_of_sum(sum.data(), nullptr, sum.size());
  }
}

void EncodeSample::after(std::span<const float> sum, const float* residual,
                         std::span<const std::byte> payload, Sums& sums) {
  if (!std::isfinite(value_squares_)) return;
  const SegmentMemory& memory = codec_.memory();
  const std::size_t n = sum.size();
  const bool must_count = std::exchange(wants_saturation_, false);
  const bool is_thorough = wants_residual_ && residual != nullptr;
  if (residual == nullptr || must_count || is_thorough) {
    codec_.decode(payload, {decoded_.get(), n});
  }
  const double dropped = residual != nullptr
                             ? memory.squares_of_sum(residual, nullptr, n)
                             : memory.squares_of_difference(decoded_.get(), sum.data(), n);
  sums.value_squares += value_squares_;
  sums.error_squares += dropped;
  if (is_thorough) {
    sums.gradient_squares += gradient_squares_;
    sums.delivered_squares += memory.squares_of_sum(decoded_.get(), nullptr, n);
    sums.waiting_squares += dropped;
  }
  if (must_count) look_at_values(sum, residual, sums);
}

void EncodeSample::look_at_values(std::span<const float> sum, const float* residual, Sums& sums) {
  const std::size_t n = std::min(sum.size(), values_.size());
  const SegmentMemory& memory = codec_.memory();
  const std::span<float> values = std::span(values_).first(n);
  const std::span<float> rest = std::span(their_rest_).first(n);
  memory.to_host(decoded_.get(), values.data(), n);
  memory.to_host(residual != nullptr ? residual : sum.data(), rest.data(), n);
  if (residual == nullptr) {
    for (std::size_t i = 0; i < n; ++i) rest[i] -= values[i];
  }
  sums.values += n;
  sums.saturated += count_saturated(values, rest, codec_.block());
}

std::size_t count_saturated(std::span<const float> decoded, std::span<const float> rest,
                            std::size_t block) {
  const std::size_t n = decoded.size(), length = block > 1 ? block : n;
  std::size_t count = 0;
  for (std::size_t begin = 0; begin < n; begin += length) {
    const std::size_t end = std::min(begin + length, n);
    float largest = 0.0f;
    for (std::size_t i = begin; i < end; ++i) largest = std::max(largest, std::fabs(decoded[i]));
    for (std::size_t i = begin; i < end; ++i) {
      const bool is_largest = std::fabs(decoded[i]) == largest && largest > 0.0f;
      count += is_largest && std::copysign(1.0f, decoded[i]) * rest[i] > 0x1p-7f * largest ? 1 : 0;
    }
  }
  return count;
}

}  // namespace dp
