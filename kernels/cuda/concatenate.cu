// One kernel per part walks over the rows (pixels) of the part. Each thread copies a pack of
// neighbouring channels (rows.cuh) to or from the tensor with the channels of all parts, the whole.
#include "kernels/concatenate.hpp"

#include "kernels/cuda/device.hpp"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/twins.hpp"

namespace dp::cuda {

namespace {

// Copies rows of `packs` packs each. Rows begin `from_packs` packs apart in the source and
// `to_packs` packs apart in the destination.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    copy_rows_kernel(RowGrid grid, unsigned from_packs, unsigned to_packs, const T* from, T* to) {
  const RowThread thread = row_thread(grid);
  for_rows<4>(thread, [&](auto unroll, std::size_t row) {
    Pack<T, N> packs[unroll];
    for (int u = 0; u < unroll; ++u) {
      const std::size_t at = row + static_cast<std::size_t>(u) * thread.step;
      packs[u] = load_pack<T, N>(from + (at * from_packs + thread.pack) * N);
    }
    for (int u = 0; u < unroll; ++u) {
      const std::size_t at = row + static_cast<std::size_t>(u) * thread.step;
      store_pack(to + (at * to_packs + thread.pack) * N, packs[u]);
    }
  });
}

// Calls body(part, first) for each part with data. The channels of the part begin at channel
// `first` of the whole.
template <class Body>
void for_each_part(std::span<const TensorView> parts, const TensorView& whole, const Body& body) {
  const Shape& all = whole.desc.shape;
  std::size_t first = 0;
  for (const TensorView& part : parts) {
    const Shape& s = part.desc.shape;
    require(part.desc.is_nhwc() && whole.desc.is_nhwc(),
            "concatenate and split on a GPU need the NHWC layout, not channel blocks");
    require(part.desc.type == whole.desc.type && s.n == all.n && s.h == all.h && s.w == all.w,
            "each part must have the whole's type, batch, height and width");
    if (part && s.elements() > 0) body(part, first);
    first += s.c;
  }
  require(first == all.c, "the parts' channels must add up to the whole's channels");
}

enum class Way { into_whole, into_part };

void copy_part(CudaDevice& device, Way way, const TensorView& part, const TensorView& whole,
               std::size_t first) {
  const Shape& s = part.desc.shape;
  const std::size_t all = whole.desc.shape.c;
  // A pack has a power of two elements, so all three numbers are multiples of it exactly if their
  // bitwise OR is.
  with_type_and_pack(
      part.desc.type, s.c | first | all, are_aligned(part.data, whole.data),
      [&](auto* tag, auto n) {
        using T = std::remove_pointer_t<decltype(tag)>;
        constexpr int kN = decltype(n)::value;
        const unsigned part_packs = static_cast<unsigned>(s.c / kN);
        const unsigned whole_packs = static_cast<unsigned>(all / kN);
        const RowGrid grid = row_grid(s.n * s.pixels(), part_packs, Walk::in_bands,
                                      device.multiprocessors() * 8, 4, 4);
        T *at_part = part.as<T>(), *at_whole = whole.as<T>() + first;
        const bool is_into_whole = way == Way::into_whole;
        launch(copy_rows_kernel<T, kN>, Launch{.blocks = grid.blocks()}, device.stream(), grid,
               is_into_whole ? part_packs : whole_packs, is_into_whole ? whole_packs : part_packs,
               is_into_whole ? at_part : at_whole, is_into_whole ? at_whole : at_part);
      });
}

}  // namespace

void concatenate(CudaDevice& device, std::span<const TensorView> parts, const TensorView& y) {
  for_each_part(parts, y, [&](const TensorView& part, std::size_t first) {
    copy_part(device, Way::into_whole, part, y, first);
  });
}

void split(CudaDevice& device, const TensorView& y, std::span<const TensorView> parts) {
  for_each_part(parts, y, [&](const TensorView& part, std::size_t first) {
    copy_part(device, Way::into_part, part, y, first);
  });
}

}  // namespace dp::cuda
