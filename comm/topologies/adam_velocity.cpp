// Outline: prepare() calls step() for each tensor of a bucket. step() updates m_r, v_r, s_r and the
// rows' means, replaces the gradient by u_r, and computes the sketch. comparison() collects this
// rank's sketches and rows; compare() takes their sums over ranks. others() and ratio_of() compute
// c_r from these sums. The symbols are those of adam_velocity.hpp.
#include "comm/topologies/adam_velocity.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "kernels/base/error.hpp"
#include "kernels/codecs/segment_memory.hpp"

namespace dp {
namespace {

// A random sign for each place, the same on all ranks, from the last mixing steps of MurmurHash3
// (Appleby). Multiplication alone does not suffice, because the product's upper bit is periodic in
// the place.
float sign_of(std::uint32_t place) {
  std::uint32_t bits = place + 0x9E3779B9u;
  bits = (bits ^ bits >> 16) * 0x85EBCA6Bu;
  bits = (bits ^ bits >> 13) * 0xC2B2AE35u;
  return bits & 0x80000000u ? -1.0f : 1.0f;
}

constexpr std::size_t kLanes = AdamVelocity::kLanes;
// The largest ratio O / R that is used. The ratio times a squared value must fit into a float.
constexpr double kMostOfRows = 1e30;

struct RowSums {
  // Entry i is the sum over the columns j with j mod kLanes = i. step() rotates the entries by the
  // row's place in the tensor, so that rows of few columns use all lanes.
  std::array<float, kLanes> sketch{};
  float squares = 0.0f;
};

// Adds in an order that does not depend on the processor. `first` is the place of the first value
// in its tensor.
RowSums sum_row(std::size_t first, std::span<const float> values) {
  RowSums sums;
  std::array<float, kLanes> squares{};
  std::size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
#pragma omp simd
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const float value = values[i + lane];
      sums.sketch[lane] += sign_of(static_cast<std::uint32_t>(first + i + lane)) * value;
      squares[lane] += value * value;
    }
  }
  for (std::size_t lane = 0; i < values.size(); ++i, ++lane) {
    sums.sketch[lane] += sign_of(static_cast<std::uint32_t>(first + i)) * values[i];
    squares[lane] += values[i] * values[i];
  }
  for (const float square : squares) sums.squares += square;
  return sums;
}

double square_sum(std::span<const float> values) {
  double sum = 0.0;
  for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return sum;
}

}  // namespace

AdamVelocity::AdamVelocity(std::size_t elements, std::span<const TensorSlot> tensors,
                           const AdamVelocityOptions& options)
    : LocalMomentum(elements),
      options_(options),
      square_(elements),
      long_square_(elements),
      steps_(tensors.size()),
      sketches_(kLanes * tensors.size()),
      sum_squares_(tensors.size()),
      own_squares_(tensors.size()),
      compared_steps_(tensors.size()) {
  std::size_t rows = 0;
  for (const TensorSlot& slot : tensors) {
    DP_ASSERT(slot.offset + slot.elements() <= elements,
              "tensor {} reaches beyond the end of the gradient", slot.name);
    tensors_.push_back(
        {.begin = slot.offset, .rows = slot.rows, .columns = slot.columns, .first_row = rows});
    rows += slot.rows;
  }
  row_norms_.resize(rows);
  row_squares_.resize(rows);
  row_others_.resize(rows);
}

void AdamVelocity::prepare(std::size_t begin, std::span<float> gradient) {
  const std::size_t end = begin + gradient.size();
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    const Tensor& tensor = tensors_[t];
    if (tensor.begin < begin || tensor.begin >= end) continue;
    const std::size_t size = tensor.rows * tensor.columns;
    DP_ASSERT(tensor.begin + size <= end, "a bucket ends within tensor {}", t);
    float* const values = gradient.data() + (tensor.begin - begin);
    // A tensor without a gradient, such as a frozen one, keeps its moments.
    const bool is_zero = std::all_of(values, values + size, [](float v) { return v == 0.0f; });
    if (!is_zero && host_memory().is_finite(values, size)) step(t, values);
  }
}

void AdamVelocity::step(std::size_t t, float* gradient) {
  const Tensor& tensor = tensors_[t];
  steps_[t] += 1.0f;
  const auto count = static_cast<double>(steps_[t]);
  const auto beta1 = static_cast<float>(options_.beta1), beta2 = static_cast<float>(options_.beta2);
  const float rest1 = static_cast<float>(1.0 - options_.beta1);
  const float rest2 = static_cast<float>(1.0 - options_.beta2);
  const auto size = static_cast<float>(1.0 / (1.0 - std::pow(options_.beta1, count)));
  const auto square_size = static_cast<float>(1.0 / (1.0 - std::pow(options_.beta2, count)));
  const auto epsilon = static_cast<float>(options_.epsilon);
  const auto long_rest = static_cast<float>(long_share(count));
  const Others of_tensor = others(t);
  std::array<double, kLanes> sketch{};
  for (std::size_t row = 0; row < tensor.rows; ++row) {
    const std::size_t first = row * tensor.columns;
    float* const g = gradient + first;
    const RowSums sums = sum_row(first, {g, tensor.columns});
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      sketch[(first + lane) % kLanes] += static_cast<double>(sums.sketch[lane]);
    }
    const std::size_t place = tensor.first_row + row;
    row_norms_[place] += long_rest * (std::sqrt(sums.squares) - row_norms_[place]);
    row_squares_[place] += long_rest * (sums.squares - row_squares_[place]);
    const auto ratio = static_cast<float>(ratio_of(of_tensor, place));
    float* const m = velocity().data() + tensor.begin + first;
    float* const v = square_.data() + tensor.begin + first;
    float* const s = long_square_.data() + tensor.begin + first;
#pragma omp simd
    for (std::size_t j = 0; j < tensor.columns; ++j) {
      const float square = g[j] * g[j];
      m[j] = beta1 * m[j] + rest1 * g[j];
      v[j] = beta2 * v[j] + rest2 * square;
      s[j] += long_rest * (square - s[j]);
      g[j] = m[j] * size / (std::sqrt(v[j] * square_size + s[j] * ratio) + epsilon);
    }
  }
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    sketches_[kLanes * t + lane] = static_cast<float>(sketch[lane]);
  }
}

double AdamVelocity::ratio(std::size_t t, std::size_t row) const {
  return ratio_of(others(t), tensors_[t].first_row + row);
}

double AdamVelocity::ratio_of(const Others& of_tensor, std::size_t row) const {
  const auto own = static_cast<double>(row_squares_[row]);
  const auto others = static_cast<double>(row_others_[row]);
  // If this rank has had no gradient for this row for a long time, `own` is close to 0. The limit
  // keeps the ratio finite.
  const double of_rows =
      own > 0.0 && std::isfinite(others) ? std::min(others / own, kMostOfRows) : 0.0;
  return of_tensor.of_rows * of_rows + of_tensor.of_active * activity(row);
}

double AdamVelocity::activity(std::size_t row) const {
  const auto norm = static_cast<double>(row_norms_[row]);
  const auto squares = static_cast<double>(row_squares_[row]);
  return squares > 0.0 ? std::min(1.0, norm * norm / squares) : 1.0;
}

AdamVelocity::Others AdamVelocity::others(std::size_t t) const {
  const auto ranks = static_cast<double>(options_.ranks);
  // Before the first comparison, assume that all ranks have equal gradients. This is approximately
  // true at the start of a run.
  if (compared_steps_[t] == 0.0f) return {.of_active = ranks * ranks - 1.0};
  const Tensor& tensor = tensors_[t];
  double noise = 0.0, active = 0.0;
  for (std::size_t row = tensor.first_row; row < tensor.first_row + tensor.rows; ++row) {
    noise += static_cast<double>(row_others_[row]);
    active += activity(row) * static_cast<double>(row_squares_[row]);
  }
  const double rest = 1.0 - std::pow(options_.beta2, static_cast<double>(compared_steps_[t]));
  const double all = std::max(0.0, static_cast<double>(sum_squares_[t] - own_squares_[t])) / rest;
  if (all < noise) return {.of_rows = all / noise};
  return {.of_rows = 1.0, .of_active = active > 0.0 ? (all - noise) / active : 0.0};
}

// The weight of the newest value in a long mean of `steps` values. As long as there are few values,
// the mean is a plain average.
double AdamVelocity::long_share(double steps) const {
  return std::max(1.0 / steps, (1.0 - options_.beta2) / kTimesAsLong);
}

bool AdamVelocity::compares_before(std::uint64_t step) {
  return step > 0 && (step <= kFirstSteps || step % kLaterEvery == 0);
}

bool AdamVelocity::compares_rows_before(std::uint64_t step) const {
  const std::uint64_t every = std::max(kRowsEvery, kRowsEveryARank * options_.ranks);
  return step > 0 && (step <= kFirstSteps ? std::has_single_bit(step) : step % every == 0);
}

std::vector<float> AdamVelocity::comparison(std::uint64_t step) const {
  std::vector<float> values;
  if (!compares_before(step)) return values;
  values.assign(sketches_.begin(), sketches_.end());
  if (compares_rows_before(step)) {
    values.insert(values.end(), row_squares_.begin(), row_squares_.end());
  }
  return values;
}

void AdamVelocity::compare(std::span<const float> sums, std::uint64_t step) {
  const bool has_rows = compares_rows_before(step);
  DP_ASSERT(sums.size() == sketches_.size() + (has_rows ? row_others_.size() : 0),
            "{} sums before step {}", sums.size(), step);
  const auto steps = static_cast<double>(step <= kFirstSteps ? 1 : kLaterEvery);
  const double kept = std::pow(options_.beta2, steps);
  const auto renew = [kept](float& mean, double value) {
    mean = static_cast<float>(kept * static_cast<double>(mean) + (1.0 - kept) * value);
  };
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    if (steps_[t] == 0.0f) continue;  // no gradient yet
    compared_steps_[t] += static_cast<float>(steps);
    renew(sum_squares_[t], square_sum(sums.subspan(kLanes * t, kLanes)));
    renew(own_squares_[t], square_sum(sketches().subspan(kLanes * t, kLanes)));
  }
  if (!has_rows) return;
  for (std::size_t row = 0; row < row_others_.size(); ++row) {
    row_others_[row] = std::max(0.0f, sums[sketches_.size() + row] - row_squares_[row]);
  }
}

void AdamVelocity::scale(float factor) {
  DP_ASSERT(factor == 1.0f,
            "the loss scale must not change, because the ranks apply Adam before the exchange");
}

void AdamVelocity::list_state(StateVisitor& visitor) {
  LocalMomentum::list_state(visitor);
  const auto own = [&](const char* name, auto& values, StateMerge merge, StateGrain grain) {
    visitor.values(name, std::span(values), StateShare::own, StatePlace::host, merge, grain);
  };
  own("exchange/square", square_, StateMerge::spread, StateGrain::value);
  own("exchange/square_steps", steps_, StateMerge::mean, StateGrain::tensor);
  own("exchange/sketches", sketches_, StateMerge::sum, StateGrain::tensor);
  own("exchange/sum_squares", sum_squares_, StateMerge::mean, StateGrain::tensor);
  own("exchange/own_squares", own_squares_, StateMerge::spread, StateGrain::tensor);
  own("exchange/long_square", long_square_, StateMerge::spread, StateGrain::value);
  // The values of each row are merged in the same way as the squares of single gradient values,
  // since they are computed from sums of such squares.
  own("exchange/row_norms", row_norms_, StateMerge::spread, StateGrain::row);
  own("exchange/row_squares", row_squares_, StateMerge::spread, StateGrain::row);
  own("exchange/row_others", row_others_, StateMerge::mean, StateGrain::row);
  own("exchange/tensor_compared_steps", compared_steps_, StateMerge::mean, StateGrain::tensor);
}

}  // namespace dp
