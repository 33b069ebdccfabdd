#include "comm/topologies/adam_velocity.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/base/error.hpp"
#include "kernels/codecs/segment_memory.hpp"

namespace dp {
namespace {

// 1 or -1, the same on all ranks: a multiplicative hash of the value's place (Knuth).
float sign_of(std::uint32_t place) {
  return (place * 2654435769u + 0x9E3779B9u) * 2246822519u & 0x80000000u ? -1.0f : 1.0f;
}

}  // namespace

AdamVelocity::AdamVelocity(std::size_t elements, std::span<const TensorSlot> tensors,
                           const AdamVelocityOptions& options)
    : LocalMomentum(elements),
      options_(options),
      square_(elements),
      steps_(tensors.size()),
      sketches_(kLanes * tensors.size()),
      sum_squares_(tensors.size()),
      own_squares_(tensors.size()) {
  for (const TensorSlot& slot : tensors) {
    DP_ASSERT(slot.offset + slot.elements() <= elements, "tensor {} ends behind the gradient",
              slot.name);
    tensors_.push_back({.begin = slot.offset, .size = slot.elements()});
  }
}

void AdamVelocity::prepare(std::size_t begin, std::span<float> gradient) {
  const std::size_t end = begin + gradient.size();
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    const Tensor& tensor = tensors_[t];
    if (tensor.begin < begin || tensor.begin >= end) continue;
    DP_ASSERT(tensor.begin + tensor.size <= end, "a bucket ends within tensor {}", t);
    float* const values = gradient.data() + (tensor.begin - begin);
    if (host_memory().is_finite(values, tensor.size)) step(t, values);
  }
}

void AdamVelocity::step(std::size_t t, float* gradient) {
  const Tensor& tensor = tensors_[t];
  steps_[t] += 1.0f;
  const auto count = static_cast<double>(steps_[t]);
  float* const m = velocity_.data() + tensor.begin;
  float* const v = square_.data() + tensor.begin;
  const auto beta1 = static_cast<float>(options_.beta1), beta2 = static_cast<float>(options_.beta2);
  const float rest1 = static_cast<float>(1.0 - options_.beta1);
  const float rest2 = static_cast<float>(1.0 - options_.beta2);
  const auto size = static_cast<float>(1.0 / (1.0 - std::pow(options_.beta1, count)));
  const auto square_size = static_cast<float>(ratio(t) / (1.0 - std::pow(options_.beta2, count)));
  const auto epsilon = static_cast<float>(options_.epsilon);
  std::array<double, kLanes> sketch{};
  constexpr std::size_t kTile = 2048;
  for (std::size_t begin = 0; begin < tensor.size; begin += kTile) {
    const std::size_t end = std::min(begin + kTile, tensor.size);
    std::array<float, kLanes> sums{};
    std::size_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
#pragma omp simd
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        sums[lane] += sign_of(static_cast<std::uint32_t>(i + lane)) * gradient[i + lane];
      }
    }
    for (std::size_t lane = 0; i < end; ++i, ++lane) {
      sums[lane] += sign_of(static_cast<std::uint32_t>(i)) * gradient[i];
    }
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      sketch[lane] += static_cast<double>(sums[lane]);
    }
#pragma omp simd
    for (std::size_t j = begin; j < end; ++j) {
      const float g = gradient[j];
      m[j] = beta1 * m[j] + rest1 * g;
      v[j] = beta2 * v[j] + rest2 * (g * g);
      gradient[j] = m[j] * size / (std::sqrt(v[j] * square_size) + epsilon);
    }
  }
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    sketches_[kLanes * t + lane] = static_cast<float>(sketch[lane]);
  }
}

double AdamVelocity::ratio(std::size_t t) const {
  const auto ranks = static_cast<double>(options_.ranks);
  // Before the first comparison: ranks begin with about the same gradient.
  const auto own = static_cast<double>(own_squares_[t]);
  return own > 0.0 ? static_cast<double>(sum_squares_[t]) / own : ranks * ranks;
}

bool AdamVelocity::compares_before(std::uint64_t step) {
  return step > 0 && (step <= kFirstSteps || step % kLaterEvery == 0);
}

void AdamVelocity::compare(std::span<const double> sums, std::uint64_t steps) {
  DP_ASSERT(sums.size() == sketches_.size(), "{} sums of sketches", sums.size());
  const double kept = std::pow(options_.beta2, static_cast<double>(steps));
  const auto squares = [](auto lanes) {
    double sum = 0.0;
    for (const auto lane : lanes) sum += static_cast<double>(lane) * static_cast<double>(lane);
    return sum;
  };
  const auto renew = [kept](float& mean, double value) {
    mean = static_cast<float>(kept * static_cast<double>(mean) + (1.0 - kept) * value);
  };
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    renew(sum_squares_[t], squares(sums.subspan(kLanes * t, kLanes)));
    renew(own_squares_[t], squares(sketches().subspan(kLanes * t, kLanes)));
  }
}

void AdamVelocity::scale(float factor) {
  DP_ASSERT(factor == 1.0f, "a loss scale that changes, and steps of Adam before the exchange");
}

void AdamVelocity::list_state(StateVisitor& visitor) {
  LocalMomentum::list_state(visitor);
  const auto own = [&](const char* name, auto& values) {
    visitor.values(name, std::span(values), StateShare::own, StatePlace::host, StateMerge::mean);
  };
  own("exchange/square", square_);
  own("exchange/square_steps", steps_);
  own("exchange/sketches", sketches_);
  own("exchange/sum_squares", sum_squares_);
  own("exchange/own_squares", own_squares_);
}

}  // namespace dp
