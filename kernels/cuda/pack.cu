// One kernel for all copies between matrices of different type, rows or columns; new elements are
// zero. A thread moves a run of 8 elements of a row if rows are multiples of 8, else single
// elements.
#include "kernels/cuda/pack.hpp"

#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/launch.cuh"

namespace dp::cuda {

namespace {

// Elements of a row per thread if rows divide evenly.
constexpr int kRun = 8;

struct Sizes {
  std::size_t from_rows, from_columns, to_rows, to_columns;
};

// N neighbouring elements, moved 16 bytes at a time.
template <int N, class T>
__device__ Floats<N> load_run(const T* at) {
  constexpr int kCount = N < kPackCount<T> ? N : kPackCount<T>;
  Floats<N> run;
  for (int first = 0; first < N; first += kCount) {
    const Floats<kCount> part = load_floats<kCount>(at + first);
    for (int i = 0; i < kCount; ++i) run[first + i] = part[i];
  }
  return run;
}
template <int N, class T>
__device__ void store_run(T* at, const Floats<N>& run) {
  constexpr int kCount = N < kPackCount<T> ? N : kPackCount<T>;
  for (int first = 0; first < N; first += kCount) {
    Floats<kCount> part;
    for (int i = 0; i < kCount; ++i) part[i] = run[first + i];
    store_floats(at + first, part);
  }
}

// kIsWhole: rows of `from` are multiples of N, too. If not, the elements of `from` are read one by
// one.
template <class From, class To, int N, bool kIsWhole, bool kAdds>
__global__ void __launch_bounds__(kThreads) repack_kernel(const From* from, Sizes s, To* to) {
  const std::size_t runs = s.to_columns / N, count = s.to_rows * runs;
  for (std::size_t item = first_item(); item < count; item += item_stride()) {
    const std::size_t row = item / runs, column = (item - row * runs) * N;
    Floats<N> values{};
    if (row < s.from_rows) {
      const From* at = from + row * s.from_columns + column;
      if constexpr (kIsWhole) {
        if (column < s.from_columns) values = load_run<N>(at);
      } else {
        for (int i = 0; i < N; ++i) {
          if (column + static_cast<std::size_t>(i) < s.from_columns) values[i] = to_float(at[i]);
        }
      }
    }
    To* target = to + item * N;
    if constexpr (kAdds) {
      const Floats<N> old = load_run<N>(target);
      for (int i = 0; i < N; ++i) values[i] += old[i];
    }
    store_run<N>(target, values);
  }
}

template <class From, class To, bool kAdds>
void repack_as(cudaStream_t stream, const void* from_memory, Sizes s, void* to_memory) {
  const auto* from = static_cast<const From*>(from_memory);
  auto* to = static_cast<To*>(to_memory);
  if (s.from_columns == s.to_columns && s.from_rows == s.to_rows) {
    // Only the type differs, so treat the matrix as one long row.
    s = {1, s.from_rows * s.from_columns, 1, s.to_rows * s.to_columns};
  }
  const bool cuts_to = s.to_columns % kRun == 0 && are_aligned(to);
  const bool cuts_from = s.from_columns % kRun == 0 && are_aligned(from);
  const std::size_t items = s.to_rows * (s.to_columns / (cuts_to ? kRun : 1));
  const Launch how{.blocks = blocks_for(items)};
  if (cuts_to && cuts_from) {
    launch(repack_kernel<From, To, kRun, true, kAdds>, how, stream, from, s, to);
  } else if (cuts_to) {
    launch(repack_kernel<From, To, kRun, false, kAdds>, how, stream, from, s, to);
  } else {
    launch(repack_kernel<From, To, 1, false, kAdds>, how, stream, from, s, to);
  }
}

}  // namespace

void repack(cudaStream_t stream, const void* from, const PackForm& from_form, void* to,
            const PackForm& to_form, bool adds) {
  if (to_form.bytes() == 0) return;
  require(!adds || to_form.type == DataType::f32, "sums of packed values must be fp32");
  const Sizes s = {from_form.rows, from_form.columns, to_form.rows, to_form.columns};
  const bool from_f32 = from_form.type == DataType::f32, to_f32 = to_form.type == DataType::f32;
  if (adds) {
    from_f32 ? repack_as<float, float, true>(stream, from, s, to)
             : repack_as<bf16, float, true>(stream, from, s, to);
  } else if (to_f32) {
    from_f32 ? repack_as<float, float, false>(stream, from, s, to)
             : repack_as<bf16, float, false>(stream, from, s, to);
  } else {
    from_f32 ? repack_as<float, bf16, false>(stream, from, s, to)
             : repack_as<bf16, bf16, false>(stream, from, s, to);
  }
}

}  // namespace dp::cuda
