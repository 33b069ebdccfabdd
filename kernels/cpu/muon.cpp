// The matrix products are Eigen's, in panels of a fixed number of rows or columns, so that the bits
// do not depend on the number of threads. They may depend on the processor model, because Eigen
// splits long sums by cache size. Ranks that use Muon need processors of one kind.
#include "kernels/muon.hpp"

#include <Eigen/Core>
#include <algorithm>

#include "kernels/base/error.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/twins.hpp"

namespace dp::cpu {

namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using MatrixMap = Eigen::Map<Matrix>;

constexpr Eigen::Index kPanel = 128;

Eigen::Index eigen_index(std::size_t value) { return static_cast<Eigen::Index>(value); }

// Calls body(first, count) for each panel of `size` rows or columns.
template <class Body>
void for_each_panel(const CpuDevice& device, Eigen::Index size, const Body& body) {
  parallel_for(device, static_cast<std::size_t>((size + kPanel - 1) / kPanel), [&](std::size_t p) {
    const Eigen::Index first = eigen_index(p) * kPanel;
    body(first, std::min(kPanel, size - first));
  });
}

}  // namespace

void muon_direction(CpuDevice& device, std::span<const float> gradients, std::span<float> velocity,
                    std::span<float> x, const MuonStep* step, const double* squares) {
  const float* d = gradients.data();
  float* v = velocity.data();
  float* out = x.data();
  const MuonStep s = *step;
  const float scale = squares == nullptr ? 1.0f : clip_scale(s.clip_norm, *squares);
  parallel_pieces(device, x.size(), [=](std::size_t, std::size_t i, std::size_t end) {
#pragma omp simd
    for (std::size_t j = i; j < end; ++j) {
      const float g = d[j] * scale;
      v[j] = s.momentum * v[j] + g;
      out[j] = s.has_nesterov ? g + s.momentum * v[j] : v[j];
    }
  });
}

void muon_normalise(CpuDevice& device, std::span<float> x, const double* squares) {
  float* values = x.data();
  const float factor = muon_inverse_norm(*squares);
  parallel_pieces(device, x.size(), [=](std::size_t, std::size_t i, std::size_t end) {
#pragma omp simd
    for (std::size_t j = i; j < end; ++j) values[j] *= factor;
  });
}

void muon_orthogonalise(CpuDevice& device, std::span<float> values, std::size_t rows,
                        std::size_t columns, std::span<float> workspace) {
  DP_ASSERT(workspace.size() >= muon_workspace(rows, columns), "a workspace of {} floats",
            workspace.size());
  const bool is_tall = rows > columns;
  const Eigen::Index n = eigen_index(std::min(rows, columns)),
                     length = eigen_index(std::max(rows, columns));
  MatrixMap x(values.data(), eigen_index(rows), eigen_index(columns));
  MatrixMap a(workspace.data(), n, n), b(a.data() + n * n, n, n);
  MatrixMap y(b.data() + n * n, x.rows(), x.cols());
  for (int iteration = 0; iteration < kMuonIterations; ++iteration) {
    for_each_panel(device, n, [&](Eigen::Index first, Eigen::Index count) {
      if (is_tall) {
        a.middleRows(first, count).noalias() = x.middleCols(first, count).transpose() * x;
      } else {
        a.middleRows(first, count).noalias() = x.middleRows(first, count) * x.transpose();
      }
    });
    for_each_panel(device, n, [&](Eigen::Index first, Eigen::Index count) {
      auto panel = b.middleRows(first, count);
      panel = kMuonB * a.middleRows(first, count);
      panel.noalias() += kMuonC * a.middleRows(first, count) * a;
    });
    for_each_panel(device, length, [&](Eigen::Index first, Eigen::Index count) {
      if (is_tall) {
        auto panel = y.middleRows(first, count);
        panel = kMuonA * x.middleRows(first, count);
        panel.noalias() += x.middleRows(first, count) * b;
      } else {
        auto panel = y.middleCols(first, count);
        panel = kMuonA * x.middleCols(first, count);
        panel.noalias() += b * x.middleCols(first, count);
      }
    });
    const float* from = y.data();
    float* to = x.data();
    parallel_pieces(device, values.size(), [=](std::size_t, std::size_t i, std::size_t end) {
      std::copy(from + i, from + end, to + i);
    });
  }
}

void muon_apply(CpuDevice& device, std::span<float> parameters, std::span<const float> x,
                std::size_t rows, const MuonStep* step, const double* squares) {
  float* w = parameters.data();
  const float* direction = x.data();
  const float rate = step->learning_rate;
  const float factor = muon_factor(*step, static_cast<double>(rows), squares);
  parallel_pieces(device, parameters.size(), [=](std::size_t, std::size_t i, std::size_t end) {
#pragma omp simd
    for (std::size_t j = i; j < end; ++j) w[j] = w[j] * factor - rate * direction[j];
  });
}

}  // namespace dp::cpu
