// The arithmetic of PowerSGD on one matrix. powersgd.hpp explains the algorithm.
//
// A gradient matrix has `rows` x `columns` floats, row after row. Factors are stored column after
// column: P is r x rows floats, Q is r x columns. M stands for gradient + residual (if the residual
// is null, for the gradient). This sum is never stored: every pass reads gradient and residual, so
// that an abandoned step has changed nothing.
//
// All sums have one order that does not depend on the vector unit, so the same input gives the same
// bits on every machine. Nothing is allocated; nothing fails. NaN and infinities in M appear in P
// and Q.
#pragma once

#include <cstddef>

namespace dp::powersgd {

struct Matrix {
  std::size_t rows = 0;
  std::size_t columns = 0;
};

// P = M Q: assigns p. Reads M once; 2 r flops a value.
void multiply(const Matrix& shape, const float* gradient, const float* residual, const float* q,
              std::size_t r, float* p);

// Q = M^T P: assigns q. Reads M once; 2 r flops a value.
void multiply_transposed(const Matrix& shape, const float* gradient, const float* residual,
                         const float* p, std::size_t r, float* q);

// residual = M - P own_q^T (not written if the residual is null), gradient = P sum_q^T. Reads and
// writes both once; 4 r flops per value.
void deliver(const Matrix& shape, float* gradient, float* residual, const float* p,
             const float* own_q, const float* sum_q, std::size_t r);

// target += P Q^T
void add_product(const Matrix& shape, const float* p, const float* q, std::size_t r, float* target);

// Replaces the r <= rows columns of p by orthonormal columns whose span contains them, by
// Householder's QR in double (Golub, Van Loan: Matrix Computations, 5.2). Columns that depend
// linearly on earlier columns, such as columns of zeros, become unit vectors orthogonal to the
// rest, so finite input always gives orthonormal output. `work` holds orthonormalise_work(rows, r)
// doubles. (Eigen's QR is unsuitable, because the order of its sums depends on the vector unit for
// which it was compiled.)
[[nodiscard]] constexpr std::size_t orthonormalise_work(std::size_t rows, std::size_t r) {
  return r * rows + r;
}
void orthonormalise(std::size_t rows, std::size_t r, float* p, double* work);

}  // namespace dp::powersgd
