// How the kernels of cuda_driver.cuh divide a segment among threads, and how floats and codes move
// between memory and registers.
//
// A segment is cut into *tiles*: the codec's blocks, or 2048 floats if it has none. A *group* of
// threads, a warp or a block, processes one tile at a time. Each of its threads takes 4 positions
// of each stream of codes (code_layout.hpp). Floats move 16 bytes at a time if they are aligned.
// Each warp stores its codes as consecutive whole words, which suits a payload on the other side of
// the bus.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/codecs/code_layout.hpp"
#include "kernels/cuda/launch.cuh"

namespace dp::cuda {

// ---- memory: 4 floats, and the words of 4 positions of codes ---------------------------------

__device__ inline bool is_aligned(const void* p, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(p) % bytes == 0;
}

// Moves the first `count` of 4 floats. Loading gives zeros for the remaining floats; storing does
// not touch them.
__device__ inline void load_floats(const float* from, unsigned count, float (&v)[4]) {
  if (count == 4 && is_aligned(from, sizeof(float4))) {
    const float4 all = *reinterpret_cast<const float4*>(from);
    v[0] = all.x, v[1] = all.y, v[2] = all.z, v[3] = all.w;
    return;
  }
  for (unsigned j = 0; j < 4; ++j) v[j] = j < count ? from[j] : 0.0f;
}
__device__ inline void store_floats(float* to, unsigned count, const float (&v)[4]) {
  if (count == 4 && is_aligned(to, sizeof(float4))) {
#ifdef __CUDA_ARCH__
    // nvcc would merge a plain store with the single-float stores below, and thus split it into
    // single stores, too. (st.global is correct because `to` is in global memory.)
    asm("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(v[0]), "f"(v[1]), "f"(v[2]),
        "f"(v[3])
        : "memory");
#else
    *reinterpret_cast<float4*>(to) = make_float4(v[0], v[1], v[2], v[3]);
#endif
    return;
  }
  for (unsigned j = 0; j < 4; ++j) {
    if (j < count) to[j] = v[j];
  }
}

// Moves the first `bytes` bytes of kWords words, from or to any address.
template <unsigned kWords>
__device__ void load_words(const std::byte* from, unsigned bytes, std::uint32_t (&w)[kWords]) {
  if (bytes == 4 * kWords && is_aligned(from, 4 * kWords)) {
    if constexpr (kWords == 4) {
      const uint4 all = *reinterpret_cast<const uint4*>(from);
      w[0] = all.x, w[1] = all.y, w[2] = all.z, w[3] = all.w;
    } else if constexpr (kWords == 2) {
      const uint2 all = *reinterpret_cast<const uint2*>(from);
      w[0] = all.x, w[1] = all.y;
    } else {
      w[0] = *reinterpret_cast<const std::uint32_t*>(from);
    }
  } else if (bytes == 4 * kWords && is_aligned(from, 4)) {
    for (unsigned i = 0; i < kWords; ++i) w[i] = reinterpret_cast<const std::uint32_t*>(from)[i];
  } else {
    for (unsigned i = 0; i < kWords; ++i) w[i] = 0;
    for (unsigned b = 0; b < 4 * kWords; ++b) {
      if (b < bytes) w[b / 4] |= static_cast<std::uint32_t>(from[b]) << (8 * (b % 4));
    }
  }
}
template <unsigned kWords>
__device__ void store_words(std::byte* to, unsigned bytes, const std::uint32_t (&w)[kWords]) {
  if (bytes == 4 * kWords && is_aligned(to, 4 * kWords)) {
    if constexpr (kWords == 4) {
      *reinterpret_cast<uint4*>(to) = make_uint4(w[0], w[1], w[2], w[3]);
    } else if constexpr (kWords == 2) {
      *reinterpret_cast<uint2*>(to) = make_uint2(w[0], w[1]);
    } else {
      *reinterpret_cast<std::uint32_t*>(to) = w[0];
    }
  } else if (bytes == 4 * kWords && is_aligned(to, 4)) {
    for (unsigned i = 0; i < kWords; ++i) reinterpret_cast<std::uint32_t*>(to)[i] = w[i];
  } else {
    for (unsigned b = 0; b < 4 * kWords; ++b) {
      if (b < bytes) to[b] = static_cast<std::byte>(w[b / 4] >> (8 * (b % 4)) & 0xFFu);
    }
  }
}

// ---- tiles --------------------------------------------------------------------------------------

// The division of a segment of n floats.
struct Tiling {
  std::size_t n;
  std::size_t length;      // floats of a tile
  std::size_t tiles;       // ceil(n / length)
  unsigned group;          // threads that share a tile: 32, or all kThreads of a block
  std::size_t code_start;  // in the payload: the first byte after the heads

  // This thread's index in its group, the group's index in the block, and the number of groups per
  // block.
  __device__ unsigned lane() const { return threadIdx.x & (group - 1); }
  __device__ unsigned group_index() const { return group == 32 ? threadIdx.x / 32 : 0; }
  __device__ unsigned groups() const { return group == 32 ? kThreads / 32 : 1; }
};
static_assert((kThreads & (kThreads - 1)) == 0);

// The words of 4 positions of a format's codes.
template <class Format>
struct Codes {
  static constexpr unsigned kBits = Format::kCodeBits;
  static constexpr unsigned kStreams = code_layout::streams(kBits);
  static constexpr unsigned kPositionBytes = code_layout::position_bytes(kBits);
  static constexpr unsigned kMask = kBits == 32 ? 0xFFFFFFFFu : (1u << kBits % 32) - 1;
  std::uint32_t words[kPositionBytes] = {};

  // The index of the first bit of a code: the code of stream k at position j, 0 <= j < 4.
  static constexpr unsigned first_bit(unsigned j, unsigned k) {
    return j * 8 * kPositionBytes + k * kBits;
  }
  __device__ void put(unsigned j, unsigned k, std::uint32_t code) {
    const unsigned bit = first_bit(j, k);
    words[bit / 32] |= (code & kMask) << (bit % 32);
  }
  __device__ std::uint32_t get(unsigned j, unsigned k) const {
    const unsigned bit = first_bit(j, k);
    return words[bit / 32] >> (bit % 32) & kMask;
  }
  __device__ void load(const std::byte* codes, unsigned position, unsigned count) {
    load_words(codes + std::size_t{position} * kPositionBytes, count * kPositionBytes, words);
  }
  __device__ void store(std::byte* codes, unsigned position, unsigned count) const {
    store_words(codes + std::size_t{position} * kPositionBytes, count * kPositionBytes, words);
  }
};

// Iterates over this thread's part of a tile of m floats: calls use(position, count, width) for
// every 4 positions, of which `count` exist; stream k's floats begin at k * width + position.
template <class Format, class Use>
__device__ void for_positions(const Tiling& tiling, unsigned m, Use use) {
  const auto width = static_cast<unsigned>(code_layout::positions(m, Format::kCodeBits));
  for (unsigned p = 4 * tiling.lane(); p < width; p += 4 * tiling.group) {
    use(p, width - p < 4 ? width - p : 4, width);
  }
}
// How many of the `count` positions from p on hold floats of stream k.
__device__ inline unsigned floats_at(unsigned p, unsigned count, unsigned k, unsigned width,
                                     unsigned m) {
  const unsigned first = k * width + p, left = m > first ? m - first : 0;
  return left < count ? left : count;
}
// Calls use(tile, its first float, its number of floats) for every tile of this thread's group,
// from the last to the first if kBackwards. All threads of a group take the same tiles together.
template <bool kBackwards = false, class Use>
__device__ void for_tiles(const Tiling& tiling, Use use) {
  const std::size_t stride = std::size_t{gridDim.x} * tiling.groups();
  for (std::size_t i = std::size_t{blockIdx.x} * tiling.groups() + tiling.group_index();
       i < tiling.tiles; i += stride) {
    const std::size_t tile = kBackwards ? tiling.tiles - 1 - i : i;
    const std::size_t begin = tile * tiling.length, left = tiling.n - begin;
    use(tile, begin, static_cast<unsigned>(left < tiling.length ? left : tiling.length));
  }
}

// The largest value in a group, returned to all its threads.
__device__ inline std::uint32_t group_max(std::uint32_t value, unsigned group,
                                          std::uint32_t (&shared)[kThreads / 32]) {
  for (unsigned offset = 16; offset > 0; offset /= 2) {
    const std::uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, value, static_cast<int>(offset));
    value = other > value ? other : value;
  }
  if (group == 32) return value;
  __syncthreads();  // all threads have read `shared` of the previous tile
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  for (const std::uint32_t other : shared) value = other > value ? other : value;
  return value;
}

// Reads the head of a tile from a payload. Returns false if no encoder writes such a head. If the
// format has no heads, every tile gets the same Block.
template <class Format>
__device__ bool read_block(const Format& format, const std::byte* payload, std::size_t tile,
                           typename Format::Block& block) {
  if constexpr (Format::kNeedsBlockMaximum) {
    std::uint32_t head[1];
    load_words(payload + tile * sizeof head, sizeof head, head);
    return format.read_head(head[0], block);
  } else {
    block = format.block_of(0);
    return true;
  }
}

// Whether the unused positions behind the codes of a tile of m floats hold padding. Only one thread
// of the group checks this; the other threads return true.
template <class Format>
__device__ bool has_padding(const Tiling& tiling, const std::byte* codes, unsigned m) {
  return tiling.lane() != 0 ||
         code_layout::is_padded<Format::kCodeBits, Format::kPadding>(codes, m);
}

}  // namespace dp::cuda
