#include "comm/topologies/powersgd_factors.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace dp::powersgd {
namespace {

// Eight floats, or four doubles, in one value; the compiler maps it to the registers that the
// processor has. These lanes fix the order of all additions.
using Lanes [[gnu::vector_size(32)]] = float;
using WideLanes [[gnu::vector_size(32)]] = double;
constexpr std::size_t kLanes = 8, kWideLanes = 4;
// The number of columns of a factor that are processed at once: as many as the registers hold.
constexpr std::size_t kMostColumns = 4;

template <class L = Lanes, class T>
inline L load(const T* from) {
  L lanes;
  std::memcpy(&lanes, from, sizeof lanes);
  return lanes;
}
template <class L, class T>
inline void store(const L& lanes, T* to) {
  std::memcpy(to, &lanes, sizeof lanes);
}

// The values [at, at + 8) of M.
template <bool kHasResidual>
inline Lanes load_sum(const float* gradient, const float* residual, std::size_t at) {
  if constexpr (kHasResidual) return load(gradient + at) + load(residual + at);
  return load(gradient + at);
}
template <bool kHasResidual>
inline float value_of(const float* gradient, const float* residual, std::size_t at) {
  if constexpr (kHasResidual) return gradient[at] + residual[at];
  return gradient[at];
}

inline float sum_of(const Lanes& v) {
  return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
}

// Divides r columns into groups of k <= kMostColumns and calls run<k>(j) for each, where j is the
// group's first column.
template <class Run>
void for_column_groups(std::size_t r, Run run) {
  for (std::size_t j = 0; j < r; j += kMostColumns) {
    switch (std::min(r - j, kMostColumns)) {
      case 1:
        run.template operator()<1>(j);
        break;
      case 2:
        run.template operator()<2>(j);
        break;
      case 3:
        run.template operator()<3>(j);
        break;
      default:
        run.template operator()<4>(j);
        break;
    }
  }
}

// Computes kRows rows of P, from `row` on, in kColumns columns. `q` and `p` point to the first of
// these columns.
template <std::size_t kRows, std::size_t kColumns, bool kHasResidual>
void multiply_rows(const Matrix& shape, const float* gradient, const float* residual,
                   const float* q, std::size_t row, float* p) {
  const std::size_t n = shape.columns, whole = n / kLanes * kLanes;
  Lanes sums[kRows][kColumns] = {};
  for (std::size_t c = 0; c < whole; c += kLanes) {
    Lanes m[kRows];
    for (std::size_t i = 0; i < kRows; ++i) {
      m[i] = load_sum<kHasResidual>(gradient, residual, (row + i) * n + c);
    }
    for (std::size_t j = 0; j < kColumns; ++j) {
      const Lanes factor = load(q + j * n + c);
      for (std::size_t i = 0; i < kRows; ++i) sums[i][j] += m[i] * factor;
    }
  }
  for (std::size_t i = 0; i < kRows; ++i) {
    for (std::size_t j = 0; j < kColumns; ++j) {
      Lanes& lanes = sums[i][j];
      for (std::size_t c = whole; c < n; ++c) {
        lanes[c - whole] +=
            value_of<kHasResidual>(gradient, residual, (row + i) * n + c) * q[j * n + c];
      }
      p[j * shape.rows + row + i] = sum_of(lanes);
    }
  }
}

template <bool kHasResidual>
void multiply_any(const Matrix& shape, const float* gradient, const float* residual, const float* q,
                  std::size_t r, float* p) {
  const auto rows = [&]<std::size_t kRows>(std::size_t row) {
    for_column_groups(r, [&]<std::size_t kColumns>(std::size_t j) {
      multiply_rows<kRows, kColumns, kHasResidual>(shape, gradient, residual, q + j * shape.columns,
                                                   row, p + j * shape.rows);
    });
  };
  std::size_t row = 0;
  for (; row + 2 <= shape.rows; row += 2) rows.template operator()<2>(row);
  for (; row < shape.rows; ++row) rows.template operator()<1>(row);
}

// Adds the contribution of kRows rows of M to kColumns columns of Q: to column j, each of these
// rows times the value of P in that row and column j.
template <std::size_t kRows, std::size_t kColumns, bool kHasResidual>
void add_rows(const Matrix& shape, const float* gradient, const float* residual, const float* p,
              std::size_t row, float* q) {
  const std::size_t n = shape.columns, whole = n / kLanes * kLanes;
  float factor[kColumns][kRows];
  for (std::size_t j = 0; j < kColumns; ++j) {
    for (std::size_t i = 0; i < kRows; ++i) factor[j][i] = p[j * shape.rows + row + i];
  }
  for (std::size_t c = 0; c < whole; c += kLanes) {
    Lanes m[kRows];
    for (std::size_t i = 0; i < kRows; ++i) {
      m[i] = load_sum<kHasResidual>(gradient, residual, (row + i) * n + c);
    }
    for (std::size_t j = 0; j < kColumns; ++j) {
      Lanes sum = load(q + j * n + c);
      for (std::size_t i = 0; i < kRows; ++i) sum += m[i] * factor[j][i];
      store(sum, q + j * n + c);
    }
  }
  for (std::size_t c = whole; c < n; ++c) {
    for (std::size_t j = 0; j < kColumns; ++j) {
      float sum = q[j * n + c];
      for (std::size_t i = 0; i < kRows; ++i) {
        sum += value_of<kHasResidual>(gradient, residual, (row + i) * n + c) * factor[j][i];
      }
      q[j * n + c] = sum;
    }
  }
}

template <bool kHasResidual>
void multiply_transposed_any(const Matrix& shape, const float* gradient, const float* residual,
                             const float* p, std::size_t r, float* q) {
  std::fill_n(q, r * shape.columns, 0.0f);
  const auto rows = [&]<std::size_t kRows>(std::size_t row) {
    for_column_groups(r, [&]<std::size_t kColumns>(std::size_t j) {
      add_rows<kRows, kColumns, kHasResidual>(shape, gradient, residual, p + j * shape.rows, row,
                                              q + j * shape.columns);
    });
  };
  std::size_t row = 0;
  for (; row + 4 <= shape.rows; row += 4) rows.template operator()<4>(row);
  for (; row < shape.rows; ++row) rows.template operator()<1>(row);
}

// Computes kRows rows x 8 columns of both products at once, so that each loaded value of a factor
// is used often.
template <std::size_t kRows, bool kHasResidual>
inline void deliver_tile(const Matrix& shape, float* gradient, float* residual, const float* p,
                         const float* own_q, const float* sum_q, std::size_t r, std::size_t row,
                         std::size_t c) {
  const std::size_t n = shape.columns;
  Lanes own[kRows] = {}, sum[kRows] = {};
  const auto add_column = [&](std::size_t j) {
    const Lanes of_sum = load(sum_q + j * n + c);
    Lanes of_own = {};
    if constexpr (kHasResidual) of_own = load(own_q + j * n + c);
    for (std::size_t i = 0; i < kRows; ++i) {
      const float factor = p[j * shape.rows + row + i];
      sum[i] += of_sum * factor;
      if constexpr (kHasResidual) own[i] += of_own * factor;
    }
  };
  std::size_t j = 0;
  for (; j + kMostColumns <= r; j += kMostColumns) {
#pragma GCC unroll 4
    for (std::size_t k = 0; k < kMostColumns; ++k) add_column(j + k);
  }
  for (; j < r; ++j) add_column(j);
#pragma GCC unroll 4
  for (std::size_t i = 0; i < kRows; ++i) {
    const std::size_t at = (row + i) * n + c;
    if constexpr (kHasResidual) {
      store(load_sum<true>(gradient, residual, at) - own[i], residual + at);
    }
    store(sum[i], gradient + at);
  }
}

template <std::size_t kRows, bool kHasResidual>
void deliver_rows(const Matrix& shape, float* gradient, float* residual, const float* p,
                  const float* own_q, const float* sum_q, std::size_t r, std::size_t row) {
  const std::size_t n = shape.columns;
  std::size_t c = 0;
  for (; c + kLanes <= n; c += kLanes) {
    deliver_tile<kRows, kHasResidual>(shape, gradient, residual, p, own_q, sum_q, r, row, c);
  }
  for (; c < n; ++c) {
    for (std::size_t i = row; i < row + kRows; ++i) {
      float own = 0.0f, sum = 0.0f;
      for (std::size_t j = 0; j < r; ++j) {
        const float factor = p[j * shape.rows + i];
        sum += sum_q[j * n + c] * factor;
        own += own_q[j * n + c] * factor;
      }
      if constexpr (kHasResidual) {
        residual[i * n + c] = (gradient[i * n + c] + residual[i * n + c]) - own;
      }
      gradient[i * n + c] = sum;
    }
  }
}

template <bool kHasResidual>
void deliver_any(const Matrix& shape, float* gradient, float* residual, const float* p,
                 const float* own_q, const float* sum_q, std::size_t r) {
  std::size_t row = 0;
  for (; row + 4 <= shape.rows; row += 4) {
    deliver_rows<4, kHasResidual>(shape, gradient, residual, p, own_q, sum_q, r, row);
  }
  for (; row < shape.rows; ++row) {
    deliver_rows<1, kHasResidual>(shape, gradient, residual, p, own_q, sum_q, r, row);
  }
}

double dot(const double* a, const double* b, std::size_t n) {
  const std::size_t whole = n / kLanes * kLanes;
  WideLanes even = {}, odd = {};
  for (std::size_t i = 0; i < whole; i += kLanes) {
    even += load<WideLanes>(a + i) * load<WideLanes>(b + i);
    odd += load<WideLanes>(a + i + kWideLanes) * load<WideLanes>(b + i + kWideLanes);
  }
  double rest = 0.0;
  for (std::size_t i = whole; i < n; ++i) rest += a[i] * b[i];
  even += odd;
  return ((even[0] + even[1]) + (even[2] + even[3])) + rest;
}

// y += factor * x
void add_scaled(const double* x, double factor, std::size_t n, double* y) {
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) y[i] += factor * x[i];
}

}  // namespace

void multiply(const Matrix& shape, const float* gradient, const float* residual, const float* q,
              std::size_t r, float* p) {
  if (residual != nullptr) {
    multiply_any<true>(shape, gradient, residual, q, r, p);
  } else {
    multiply_any<false>(shape, gradient, nullptr, q, r, p);
  }
}

void multiply_transposed(const Matrix& shape, const float* gradient, const float* residual,
                         const float* p, std::size_t r, float* q) {
  if (residual != nullptr) {
    multiply_transposed_any<true>(shape, gradient, residual, p, r, q);
  } else {
    multiply_transposed_any<false>(shape, gradient, nullptr, p, r, q);
  }
}

void deliver(const Matrix& shape, float* gradient, float* residual, const float* p,
             const float* own_q, const float* sum_q, std::size_t r) {
  if (residual != nullptr) {
    deliver_any<true>(shape, gradient, residual, p, own_q, sum_q, r);
  } else {
    deliver_any<false>(shape, gradient, nullptr, p, own_q, sum_q, r);
  }
}

void add_product(const Matrix& shape, const float* p, const float* q, std::size_t r,
                 float* target) {
  for (std::size_t i = 0; i < shape.rows; ++i) {
    float* row = target + i * shape.columns;
    for (std::size_t j = 0; j < r; ++j) {
      const float factor = p[j * shape.rows + i];
      const float* from = q + j * shape.columns;
#pragma omp simd
      for (std::size_t c = 0; c < shape.columns; ++c) row[c] += factor * from[c];
    }
  }
}

void orthonormalise(std::size_t rows, std::size_t r, float* p, double* work) {
  double* tau = work + r * rows;
  const auto column = [&](std::size_t j) { return work + j * rows; };
  for (std::size_t i = 0; i < r * rows; ++i) work[i] = static_cast<double>(p[i]);
  // Reflection k is I - tau_k v v^T, where v = (1, ...) begins at row k. It turns the rest of
  // column k into a multiple of a unit vector; v is stored in the column's place.
  for (std::size_t k = 0; k < r; ++k) {
    double* v = column(k) + k;
    const std::size_t n = rows - k;
    const double norm = std::sqrt(dot(v, v, n));
    const double beta = v[0] > 0.0 ? -norm : norm;
    tau[k] = 0.0;
    if (norm > 0.0) {
      tau[k] = (beta - v[0]) / beta;
      const double scale = 1.0 / (v[0] - beta);
      for (std::size_t i = 1; i < n; ++i) v[i] *= scale;
    }
    v[0] = 1.0;
    for (std::size_t j = k + 1; j < r; ++j) {
      double* other = column(j) + k;
      add_scaled(v, -tau[k] * dot(v, other, n), n, other);
    }
  }
  // Computes the first r columns of the reflections' product, beginning with the last reflection.
  for (std::size_t k = r; k-- > 0;) {
    double* v = column(k) + k;
    const std::size_t n = rows - k;
    for (std::size_t j = k + 1; j < r; ++j) {
      double* other = column(j) + k;
      add_scaled(v, -tau[k] * dot(v, other, n), n, other);
    }
    for (std::size_t i = 1; i < n; ++i) v[i] *= -tau[k];
    v[0] = 1.0 - tau[k];
    std::fill_n(column(k), k, 0.0);
  }
  for (std::size_t i = 0; i < r * rows; ++i) p[i] = static_cast<float>(work[i]);
}

}  // namespace dp::powersgd
