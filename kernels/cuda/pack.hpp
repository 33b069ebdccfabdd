// Copies between the form that a tensor has in memory and the form that cuDNN wants: another type,
// and channels filled up with zeros to a multiple of what its kernels move at once.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kernels/tensor.hpp"

namespace dp::cuda {

// Row-major, dense: an NHWC tensor is N x H x W rows of C columns, KRSC weights are K x R x S rows.
struct PackForm {
  std::size_t rows = 0, columns = 0;
  DataType type = DataType::f32;

  [[nodiscard]] constexpr std::size_t bytes() const { return rows * columns * size_of(type); }
  friend bool operator==(const PackForm&, const PackForm&) = default;
};

// to[r][c] = from[r][c] where `from` has such an element, else 0. bf16 is rounded to nearest even.
// Where `adds`: adds from[r][c] instead; `to` is fp32 then. Enqueued on the stream; the two do not
// overlap.
void repack(cudaStream_t stream, const void* from, const PackForm& from_form, void* to,
            const PackForm& to_form, bool adds = false);

}  // namespace dp::cuda
