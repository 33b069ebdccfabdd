// PowerSGD's arithmetic on one matrix against plain loops in double and against Eigen's QR.
#include "comm/topologies/powersgd_factors.hpp"

#include <gtest/gtest.h>

#include <Eigen/QR>
#include <chrono>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/base/random.hpp"

namespace dp::powersgd {
namespace {

constexpr Matrix kShapes[] = {{1, 1},  {1, 40}, {40, 1},  {2, 16},  {3, 7},
                              {5, 17}, {4, 31}, {64, 27}, {33, 65}, {70, 90}};
constexpr std::size_t kRanks[] = {1, 2, 3, 4, 5, 7, 8, 64};

std::vector<float> normals(std::size_t n, std::uint64_t seed) {
  const CounterRng rng(seed, RandomStream::test);
  std::vector<float> values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = static_cast<float>(normal(rng, i));
  return values;
}

// Gradient, residual and factors of a shape, and M in double.
struct Case {
  Case(const Matrix& matrix, std::size_t factors)
      : shape(matrix),
        r(factors),
        gradient(normals(shape.rows * shape.columns, 1)),
        residual(normals(shape.rows * shape.columns, 2)),
        p(normals(r * shape.rows, 3)),
        q(normals(r * shape.columns, 4)) {}

  [[nodiscard]] double m(std::size_t i, std::size_t c, bool has_residual) const {
    const std::size_t at = i * shape.columns + c;
    return static_cast<double>(gradient[at]) +
           (has_residual ? static_cast<double>(residual[at]) : 0.0);
  }
  [[nodiscard]] double p_at(std::size_t i, std::size_t j) const {
    return static_cast<double>(p[j * shape.rows + i]);
  }
  [[nodiscard]] double q_at(std::size_t c, std::size_t j) const {
    return static_cast<double>(q[j * shape.columns + c]);
  }

  Matrix shape;
  std::size_t r;
  std::vector<float> gradient, residual, p, q;
};

// Sums of n products of normal numbers, in fp32: 2^-24 of each partial sum, of about sqrt(n).
double tolerance(std::size_t n) { return 0x1p-21 * (static_cast<double>(n) + 4.0); }

TEST(PowerSgdFactors, MultiplyIsTheProduct) {
  for (const Matrix& shape : kShapes) {
    for (const std::size_t r : kRanks) {
      for (const bool has_residual : {false, true}) {
        Case c(shape, r);
        std::vector<float> p(r * shape.rows, std::numeric_limits<float>::quiet_NaN());
        multiply(shape, c.gradient.data(), has_residual ? c.residual.data() : nullptr, c.q.data(),
                 r, p.data());
        for (std::size_t i = 0; i < shape.rows; ++i) {
          for (std::size_t j = 0; j < r; ++j) {
            double want = 0.0;
            for (std::size_t k = 0; k < shape.columns; ++k) {
              want += c.m(i, k, has_residual) * c.q_at(k, j);
            }
            ASSERT_NEAR(static_cast<double>(p[j * shape.rows + i]), want, tolerance(shape.columns))
                << shape.rows << " x " << shape.columns << ", r " << r;
          }
        }
      }
    }
  }
}

TEST(PowerSgdFactors, MultiplyTransposedIsTheProduct) {
  for (const Matrix& shape : kShapes) {
    for (const std::size_t r : kRanks) {
      for (const bool has_residual : {false, true}) {
        Case c(shape, r);
        std::vector<float> q(r * shape.columns, std::numeric_limits<float>::quiet_NaN());
        multiply_transposed(shape, c.gradient.data(), has_residual ? c.residual.data() : nullptr,
                            c.p.data(), r, q.data());
        for (std::size_t k = 0; k < shape.columns; ++k) {
          for (std::size_t j = 0; j < r; ++j) {
            double want = 0.0;
            for (std::size_t i = 0; i < shape.rows; ++i) {
              want += c.m(i, k, has_residual) * c.p_at(i, j);
            }
            ASSERT_NEAR(static_cast<double>(q[j * shape.columns + k]), want, tolerance(shape.rows))
                << shape.rows << " x " << shape.columns << ", r " << r;
          }
        }
      }
    }
  }
}

TEST(PowerSgdFactors, DeliverWritesTheSumAndWhatIsLeft) {
  for (const Matrix& shape : kShapes) {
    for (const std::size_t r : kRanks) {
      for (const bool has_residual : {false, true}) {
        const Case c(shape, r);
        const auto sum_q = normals(r * shape.columns, 5);
        auto gradient = c.gradient, residual = c.residual;
        deliver(shape, gradient.data(), has_residual ? residual.data() : nullptr, c.p.data(),
                c.q.data(), sum_q.data(), r);
        auto put_back = residual;
        add_product(shape, c.p.data(), c.q.data(), r, put_back.data());
        for (std::size_t i = 0; i < shape.rows; ++i) {
          for (std::size_t k = 0; k < shape.columns; ++k) {
            double own = 0.0, sum = 0.0;
            for (std::size_t j = 0; j < r; ++j) {
              own += c.p_at(i, j) * c.q_at(k, j);
              sum += c.p_at(i, j) * static_cast<double>(sum_q[j * shape.columns + k]);
            }
            const std::size_t at = i * shape.columns + k;
            const double m = c.m(i, k, true);
            ASSERT_NEAR(static_cast<double>(gradient[at]), sum, tolerance(r));
            if (has_residual) {
              ASSERT_NEAR(static_cast<double>(residual[at]), m - own, tolerance(r));
              ASSERT_NEAR(static_cast<double>(put_back[at]), m, tolerance(r));
            } else {
              ASSERT_EQ(residual[at], c.residual[at]);
            }
          }
        }
      }
    }
  }
}

// NaN and infinities reach the factors, where the exchange sees them, even beside zeros.
TEST(PowerSgdFactors, InputThatIsNotFiniteShows) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const Matrix& shape : kShapes) {
      Case c(shape, 2);
      c.gradient.back() = bad;
      multiply(shape, c.gradient.data(), c.residual.data(), c.q.data(), 2, c.p.data());
      EXPECT_FALSE(std::isfinite(c.p[shape.rows - 1]));
    }
  }
}

double dot(const float* a, const float* b, std::size_t n) {
  double sum = 0.0;
  for (std::size_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

void expect_orthonormal(const std::vector<float>& p, std::size_t rows, std::size_t r) {
  for (std::size_t j = 0; j < r; ++j) {
    for (std::size_t k = 0; k <= j; ++k) {
      // Each value was rounded to fp32 once.
      EXPECT_NEAR(dot(&p[j * rows], &p[k * rows], rows), j == k ? 1.0 : 0.0, 0x1p-22)
          << rows << " rows, columns " << j << " and " << k << " of " << r;
    }
  }
}

std::vector<float> orthonormalised(std::vector<float> p, std::size_t rows, std::size_t r) {
  std::vector<double> work(orthonormalise_work(rows, r));
  orthonormalise(rows, r, p.data(), work.data());
  return p;
}

TEST(PowerSgdFactors, OrthonormaliseIsTheQOfEigensQr) {
  for (const std::size_t rows : {1, 2, 5, 16, 64, 513}) {
    for (const std::size_t r : kRanks) {
      if (r > rows) continue;
      const auto input = normals(rows * r, 6);
      const auto p = orthonormalised(input, rows, r);
      expect_orthonormal(p, rows, r);
      Eigen::MatrixXd a(static_cast<Eigen::Index>(rows), static_cast<Eigen::Index>(r));
      for (std::size_t i = 0; i < rows * r; ++i) a.data()[i] = static_cast<double>(input[i]);
      const Eigen::MatrixXd q =
          a.householderQr().householderQ() * Eigen::MatrixXd::Identity(a.rows(), a.cols());
      for (std::size_t j = 0; j < r; ++j) {
        // The sign of a column is free.
        const double* want = q.data() + j * rows;
        const float* got = &p[j * rows];
        double sign = 0.0;
        for (std::size_t i = 0; i < rows; ++i) sign += want[i] * static_cast<double>(got[i]);
        EXPECT_NEAR(std::abs(sign), 1.0, 1e-6) << rows << " rows, column " << j << " of " << r;
      }
    }
  }
}

TEST(PowerSgdFactors, OrthonormaliseOfDependentColumns) {
  const std::size_t rows = 37, r = 6;
  expect_orthonormal(orthonormalised(std::vector<float>(rows * r, 0.0f), rows, r), rows, r);
  expect_orthonormal(orthonormalised(std::vector<float>(rows * r, -0.0f), rows, r), rows, r);
  auto p = normals(rows * r, 7);
  for (std::size_t i = 0; i < rows; ++i) {
    p[2 * rows + i] = p[i];                // a copy
    p[3 * rows + i] = 0.0f;                // zero
    p[4 * rows + i] = 2.0f * p[rows + i];  // a multiple
    p[5 * rows + i] = p[i] - p[rows + i];  // a sum, but for rounding
  }
  expect_orthonormal(orthonormalised(p, rows, r), rows, r);
  for (const float scale : {1e-38f, 1e-44f, 1e37f}) {
    auto scaled = normals(rows * r, 8);
    for (float& v : scaled) v *= scale;
    expect_orthonormal(orthonormalised(scaled, rows, r), rows, r);
  }
}

// ResNet-18's largest layer, five times: as many values as the whole model. What one rank alone
// delivers and what it keeps is what it had, round after round; prints how long the passes take.
TEST(PowerSgdFactors, LargeLayersConserveTheirSum) {
  constexpr std::size_t kRank = 4, kLayers = 5;
  constexpr Matrix kLayer{512, 4608};
  const auto input = normals(kLayer.rows * kLayer.columns, 1);
  std::vector<std::vector<float>> gradients(kLayers, input), residuals(kLayers, input);
  std::vector<float> p(kRank * kLayer.rows), q = normals(kRank * kLayer.columns, 2);
  std::vector<double> work(orthonormalise_work(kLayer.rows, kRank));
  double best_ms[4] = {1e9, 1e9, 1e9, 1e9};
  for (int round = 0; round < 5; ++round) {
    const auto timed = [&](int pass, auto f) {
      const auto begin = std::chrono::steady_clock::now();
      f();
      const std::chrono::duration<double, std::milli> ms = std::chrono::steady_clock::now() - begin;
      best_ms[pass] = std::min(best_ms[pass], ms.count() * kLayers);
    };
    for (std::size_t t = 0; t < kLayers; ++t) {
      float *g = gradients[t].data(), *z = residuals[t].data();
      timed(0, [&] { multiply(kLayer, g, z, q.data(), kRank, p.data()); });
      timed(1, [&] { orthonormalise(kLayer.rows, kRank, p.data(), work.data()); });
      timed(2, [&] { multiply_transposed(kLayer, g, z, p.data(), kRank, q.data()); });
      timed(3, [&] { deliver(kLayer, g, z, p.data(), q.data(), q.data(), kRank); });
    }
  }
  std::printf(
      "11.8 million values: M Q %.1f ms, orthonormal %.2f ms, M^T P %.1f ms, deliver %.1f ms\n",
      best_ms[0], best_ms[1], best_ms[2], best_ms[3]);
  for (std::size_t t = 0; t < kLayers; ++t) {
    float largest = 0.0f;
    for (std::size_t i = 0; i < input.size(); ++i) {
      largest = std::max(largest, std::abs(gradients[t][i] + residuals[t][i] - 2.0f * input[i]));
    }
    // Values of up to 11, rounded a few times in each of five rounds.
    EXPECT_LT(largest, 5 * 6 * 0x1p-24f * 16.0f) << t;
  }
}

}  // namespace
}  // namespace dp::powersgd
