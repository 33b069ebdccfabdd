// The readable twin of kernels/muon.hpp: one update of one matrix.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include "kernels/muon.hpp"

namespace dp::reference {

// x (rows x columns) by five iterations; any shape, since it works on the shorter side.
template <class T>
void muon_orthogonalise(std::size_t rows, std::size_t columns, T* x) {
  const bool is_tall = rows > columns;
  const std::size_t n = is_tall ? columns : rows, length = is_tall ? rows : columns;
  // The matrix with its shorter side first.
  const auto at = [&](std::size_t i, std::size_t j) -> T& {
    return is_tall ? x[j * columns + i] : x[i * columns + j];
  };
  for (int iteration = 0; iteration < kMuonIterations; ++iteration) {
    std::vector<T> a(n * n, 0), b(n * n), y(n * length);
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n; ++j) {
        for (std::size_t k = 0; k < length; ++k) a[i * n + j] += at(i, k) * at(j, k);
      }
    }
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n; ++j) {
        T product = 0;
        for (std::size_t k = 0; k < n; ++k) product += a[i * n + k] * a[k * n + j];
        b[i * n + j] = T(kMuonB) * a[i * n + j] + T(kMuonC) * product;
      }
    }
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < length; ++j) {
        T sum = T(kMuonA) * at(i, j);
        for (std::size_t k = 0; k < n; ++k) sum += b[i * n + k] * at(k, j);
        y[i * length + j] = sum;
      }
    }
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < length; ++j) at(i, j) = y[i * length + j];
    }
  }
}

template <class T>
void muon_update(std::size_t rows, std::size_t columns, T* parameters, const T* gradients,
                 T* velocity, const MuonStep& step, bool normalises, double squares = 0.0) {
  const std::size_t count = rows * columns;
  const T rate = step.learning_rate, momentum = step.momentum;
  const T scale = clip_scale(step.clip_norm, squares);
  std::vector<T> x(count);
  T norm = 0, weights = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const T g = gradients[i] * scale;
    velocity[i] = momentum * velocity[i] + g;
    x[i] = step.has_nesterov ? g + momentum * velocity[i] : velocity[i];
    norm += x[i] * x[i];
    weights += parameters[i] * parameters[i];
  }
  for (T& value : x) value /= std::sqrt(norm) + T(1e-7);
  muon_orthogonalise(rows, columns, x.data());
  const T factor = normalises && weights > 0 ? std::sqrt(static_cast<T>(rows) / weights)
                                             : 1 - rate * T(step.weight_decay);
  for (std::size_t i = 0; i < count; ++i) parameters[i] = parameters[i] * factor - rate * x[i];
}

}  // namespace dp::reference
