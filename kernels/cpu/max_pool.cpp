// A loop over slices of channels (channel_slices.hpp). Backward walks over dx. For each pixel it
// adds the contributions of all windows that contain the pixel, so nothing is written twice.
#include "kernels/max_pool.hpp"

#include <limits>

#include "kernels/base/error.hpp"
#include "kernels/cpu/channel_slices.hpp"
#include "kernels/cpu/twins.hpp"
#include "kernels/cpu/vector.hpp"

namespace dp::cpu {

namespace {

// Positions in a window: as numbers, one per lane of a Vector<W>, and as bytes in memory.
template <std::size_t W>
struct Places {
  using Types = typename Vector<W>::Types;
  static constexpr std::size_t kPart = Vector<W>::kPart, kParts = Vector<W>::kParts;

  std::array<typename Types::Bits, kParts> parts{};
};

typedef std::uint8_t EightBytes __attribute__((vector_size(8)));

template <std::size_t W>
void store_places(std::uint8_t* to, const Places<W>& places) {
  Vector<W>::for_each_part([&](std::size_t i) {
    if constexpr (W == 1) {
      *to = static_cast<std::uint8_t>(places.parts[i]);
    } else {
      const auto bytes = __builtin_convertvector(places.parts[i], EightBytes);
      std::memcpy(to + i * 8, &bytes, sizeof bytes);
    }
  });
}

// Lane by lane: the value if the lane's position is `place`, else 0.
template <std::size_t W>
Vector<W> where_at(const std::uint8_t* places, unsigned place, const Vector<W>& value) {
  using Types = typename Vector<W>::Types;
  return Vector<W>::make([&](std::size_t i) {
    if constexpr (W == 1) {
      return *places == place ? value.parts[i] : 0.0f;
    } else {
      EightBytes bytes;
      std::memcpy(&bytes, places + i * 8, sizeof bytes);
      const auto wide = __builtin_convertvector(bytes, typename Types::Bits);
      return wide == place ? value.parts[i] : typename Types::Float{};
    }
  });
}

template <std::size_t W>
Vector<W> all_lanes(float value) {
  return Vector<W>::make([&](std::size_t) { return typename Vector<W>::Types::Float{} + value; });
}

// Updates the largest values and their positions with one more pixel.
template <std::size_t W>
void take(const Vector<W>& value, unsigned place, Vector<W>& largest, Places<W>& places) {
  using Bits = typename Vector<W>::Types::Bits;
  Vector<W>::for_each_part([&](std::size_t i) {
    const auto& v = value.parts[i];
    const auto is_larger = (v > largest.parts[i]) | (v != v);
    largest.parts[i] = is_larger ? v : largest.parts[i];
    places.parts[i] = is_larger ? Bits{} + place : places.parts[i];
  });
}

}  // namespace

void max_pool_forward(CpuDevice& device, const TensorView& x, const Pooling& pooling,
                      const TensorView& y, std::uint8_t* places) {
  DP_ASSERT(pooling.window.area() <= 256, "a window of {} pixels", pooling.window.area());
  const PoolingPlane plane(x.desc.shape, pooling, y.desc.shape);
  const PoolingLine &rows = plane.rows, &columns = plane.columns;
  with_type_and_width(x.desc, [&](auto* tag, auto width) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const std::size_t block = x.desc.channel_block;
    for_each_slice(device, x.desc, [&](std::size_t image, const Slice& s) {
      const T* from = x.as<const T>() + channel_start(x.desc, image, s.channel);
      std::size_t at = channel_start(y.desc, image, s.channel);
      for (unsigned p = 0; p < rows.windows; ++p) {
        const unsigned top = rows.begin(p), bottom = rows.end(p);
        for (unsigned q = 0; q < columns.windows; ++q, at += block) {
          const unsigned left = columns.begin(q), right = columns.end(q);
          // If all values of a window are -infinity, the first pixel counts as the largest.
          Vector<width> largest = all_lanes<width>(-std::numeric_limits<float>::infinity());
          Places<width> found;
          for (auto& part : found.parts) {
            part += rows.place(top, p) * columns.length + columns.place(left, q);
          }
          for (unsigned h = top; h < bottom; ++h) {
            const unsigned line = rows.place(h, p) * columns.length;
            for (unsigned w = left; w < right; ++w) {
              const T* pixel = from + (std::size_t{h} * columns.pixels + w) * block;
              take(load_vector<width>(pixel), line + columns.place(w, q), largest, found);
            }
          }
          store_vector<width>(y.as<T>() + at, largest);
          if (places != nullptr) store_places<width>(places + at, found);
        }
      }
    });
  });
}

void max_pool_backward(CpuDevice& device, const TensorView& dy, const std::uint8_t* places,
                       const Pooling& pooling, const TensorView& dx) {
  const PoolingPlane plane(dx.desc.shape, pooling, dy.desc.shape);
  const PoolingLine &rows = plane.rows, &columns = plane.columns;
  with_type_and_width(dx.desc, [&](auto* tag, auto width) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const std::size_t block = dx.desc.channel_block;
    for_each_slice(device, dx.desc, [&](std::size_t image, const Slice& s) {
      const std::size_t start = channel_start(dy.desc, image, s.channel);
      T* to = dx.as<T>() + channel_start(dx.desc, image, s.channel);
      for (unsigned h = 0; h < rows.pixels; ++h) {
        for (unsigned w = 0; w < columns.pixels; ++w, to += block) {
          Vector<width> sum{};
          for (unsigned p = rows.first(h); p < rows.last(h); ++p) {
            for (unsigned q = columns.first(w); q < columns.last(w); ++q) {
              const std::size_t at = start + (std::size_t{p} * columns.windows + q) * block;
              const unsigned place = rows.place(h, p) * columns.length + columns.place(w, q);
              sum += where_at(places + at, place, load_vector<width>(dy.as<const T>() + at));
            }
          }
          store_vector<width>(to, sum);
        }
      }
    });
  });
}

}  // namespace dp::cpu
