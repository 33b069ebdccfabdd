// Copies a tensor between its form in memory and the form that cuDNN needs: another type, and
// channels padded with zeros to the multiple that cuDNN needs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kernels/tensor.hpp"

namespace dp::cuda {

// The form: row-major and dense. An NHWC tensor is N x H x W rows of C columns, KRSC weights are K
// x R x S rows.
struct PackForm {
  std::size_t rows = 0, columns = 0;
  DataType type = DataType::f32;

  [[nodiscard]] constexpr std::size_t bytes() const { return rows * columns * size_of(type); }
  friend bool operator==(const PackForm&, const PackForm&) = default;
};

// to[r][c] = from[r][c], or 0 if `from` has no such element. Conversion to bf16 rounds to nearest
// even. If `adds`, adds from[r][c] instead; `to` must then be fp32. Enqueued on the stream; `from`
// and `to` must not overlap.
void repack(cudaStream_t stream, const void* from, const PackForm& from_form, void* to,
            const PackForm& to_form, bool adds = false);

}  // namespace dp::cuda
