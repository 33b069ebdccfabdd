// The arithmetic of PowerSGD on one matrix (powersgd.hpp says what it is for).
//
// A gradient matrix has `rows` x `columns` floats, row after row. Factors are stored column after
// column: P is r x rows floats, Q is r x columns. M stands for gradient + residual, which is never
// written down: every pass reads both (a null residual: M is the gradient), so that a step that is
// given up has changed nothing.
//
// All sums are made in one order, whatever the vector unit: the same input gives the same bits on
// every machine. Nothing is allocated; nothing fails. NaN and infinities in M come out in P and Q.
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

// residual = M - P own_q^T (nothing where it is null), gradient = P sum_q^T. Reads and writes both
// once; 4 r flops a value.
void deliver(const Matrix& shape, float* gradient, float* residual, const float* p,
             const float* own_q, const float* sum_q, std::size_t r);

// target += P Q^T
void add_product(const Matrix& shape, const float* p, const float* q, std::size_t r, float* target);

// Replaces the r columns of p by orthonormal ones that span them: Householder's QR in double
// (Golub, Van Loan: Matrix Computations, 5.2), r <= rows. Columns that depend on others, zeros too,
// become unit vectors orthogonal to the rest: finite input gives orthonormal output, always.
// `work` holds orthonormalise_work(rows, r) doubles.
// (Not Eigen's: the order of its sums is that of the vector unit that it was compiled for.)
[[nodiscard]] constexpr std::size_t orthonormalise_work(std::size_t rows, std::size_t r) {
  return r * rows + r;
}
void orthonormalise(std::size_t rows, std::size_t r, float* p, double* work);

}  // namespace dp::powersgd
