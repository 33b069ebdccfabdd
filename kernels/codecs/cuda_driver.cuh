// The generic CUDA driver: turns a codec's Format into the interface of codec.hpp on a GPU's
// memory. Payloads, decoded values and residuals are those of the CPU, bit for bit: the arithmetic
// of a value is the Format's (one source for both), and between values there is nothing but maxima.
//
// The loops are the driver's. A segment is cut into *tiles*: the codec's blocks, or 2048 floats
// where it has none. A *group* of threads, a warp or a block, has a tile at a time; one thread of
// it takes 4 positions of each stream of codes (code_layout.hpp), so that floats move 16 bytes at a
// time where they lie well, and codes leave as whole words, warp by warp in a row, which is what a
// payload across the bus needs.
//
// Encoding is two kernels, since no residual may change before the whole segment is known to be
// finite: scan_kernel finds the tiles' largest magnitudes, after decoding and adding a payload
// where there is one; encode_kernel writes codes and residuals. Memory traffic a float, with
// feedback: scan 8 bytes, encode 12 and the code; of these, the 8 that are read again come from the
// second-level cache for segments of up to some 20 MB. Decoding to add: 8 bytes and the code.
#pragma once

#include "kernels/codecs/code_layout.hpp"
#include "kernels/codecs/cuda_queue.hpp"
#include "kernels/codecs/draws.hpp"
#include "kernels/codecs/payload_errors.hpp"
#include "kernels/cuda/launch.cuh"

namespace dp::cuda {

// ---- memory: 4 floats, and the words of 4 positions of codes ---------------------------------

__device__ inline bool is_aligned(const void* p, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(p) % bytes == 0;
}

// `count` of 4 floats; the others come out as zeros, or are left alone.
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
    // nvcc joins a plain store with those of single floats below, to one after the other. `to` is
    // in global memory.
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

// kWords words, of which `bytes` bytes count, from or to any address.
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

// How a segment of n floats is shared out.
struct Tiling {
  std::size_t n;
  std::size_t step;        // floats of a tile
  std::size_t tiles;       // ceil(n / step)
  unsigned group;          // threads that have a tile together: 32, or all kThreads of a block
  std::size_t code_start;  // of the payload: the first byte behind the heads

  // This thread's place in its group, its group's in the block, and how many groups a block has.
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

  // The code of stream k at position j of the 4.
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

// This thread's part of a tile of m floats: calls use(position, count, width) for every 4
// positions, of which `count` exist; stream k's floats begin at k * width + position.
template <class Format, class Use>
__device__ void for_positions(const Tiling& tiling, unsigned m, Use use) {
  const auto width = static_cast<unsigned>(code_layout::positions(m, Format::kCodeBits));
  for (unsigned p = 4 * tiling.lane(); p < width; p += 4 * tiling.group) {
    use(p, width - p < 4 ? width - p : 4, width);
  }
}
// How many of `count` positions from p on are floats of stream k.
__device__ inline unsigned floats_at(unsigned p, unsigned count, unsigned k, unsigned width,
                                     unsigned m) {
  const unsigned first = k * width + p, left = m > first ? m - first : 0;
  return left < count ? left : count;
}
// Calls use(tile, its first float, its number of floats) for every tile of this thread's group,
// from the last to the first if asked; all threads of a group together.
template <bool kBackwards = false, class Use>
__device__ void for_tiles(const Tiling& tiling, Use use) {
  const std::size_t stride = std::size_t{gridDim.x} * tiling.groups();
  for (std::size_t i = std::size_t{blockIdx.x} * tiling.groups() + tiling.group_index();
       i < tiling.tiles; i += stride) {
    const std::size_t tile = kBackwards ? tiling.tiles - 1 - i : i;
    const std::size_t begin = tile * tiling.step, left = tiling.n - begin;
    use(tile, begin, static_cast<unsigned>(left < tiling.step ? left : tiling.step));
  }
}

// The largest value of a group, in all its threads.
__device__ inline std::uint32_t group_max(std::uint32_t value, unsigned group,
                                          std::uint32_t (&shared)[kThreads / 32]) {
  for (unsigned offset = 16; offset > 0; offset /= 2) {
    const std::uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, value, static_cast<int>(offset));
    value = other > value ? other : value;
  }
  if (group == 32) return value;
  __syncthreads();  // of the tile before
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  for (const std::uint32_t other : shared) value = other > value ? other : value;
  return value;
}

// The head of a tile in a payload; false where no encoder writes such a head. Where a format has no
// heads every block is the same.
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

// Whether padding stands behind the codes of a tile of m floats; one thread of the group looks.
template <class Format>
__device__ bool has_padding(const Tiling& tiling, const std::byte* codes, unsigned m) {
  return tiling.lane() != 0 ||
         code_layout::is_padded<Format::kCodeBits, Format::kPadding>(codes, m);
}

// ---- kernels ------------------------------------------------------------------------------------

// Adds the payload `received` to `partial` (kReceives), then finds the largest magnitudes of
// partial
// + residual (residual may be null) and whether the segment is finite.
template <class Format, bool kReceives>
__global__ __launch_bounds__(kThreads) void scan_kernel(Format format, Tiling tiling,
                                                        const std::byte* received, float* partial,
                                                        const float* residual,
                                                        CodecQueue::Call call) {
  __shared__ std::uint32_t shared[kThreads / 32];
  bool is_damaged = false;
  for_tiles(tiling, [&](std::size_t tile, std::size_t begin, unsigned m) {
    typename Format::Block block{};
    const std::byte* codes = nullptr;
    if constexpr (kReceives) {
      is_damaged = !read_block(format, received, tile, block) || is_damaged;
      codes = received + tiling.code_start + code_layout::bytes(begin, Format::kCodeBits);
      is_damaged = !has_padding<Format>(tiling, codes, m) || is_damaged;
    }
    std::uint32_t largest = 0;
    for_positions<Format>(tiling, m, [&](unsigned p, unsigned count, unsigned width) {
      Codes<Format> in;
      if constexpr (kReceives) in.load(codes, p, count);
      for (unsigned k = 0; k < Codes<Format>::kStreams; ++k) {
        const unsigned floats = floats_at(p, count, k, width, m);
        const std::size_t at = begin + std::size_t{k} * width + p;
        float v[4], r[4] = {};
        load_floats(partial + at, floats, v);
        if (residual != nullptr) load_floats(residual + at, floats, r);
        if constexpr (kReceives) {
          for (unsigned j = 0; j < 4; ++j) {
            if (j >= floats) break;
            const std::uint32_t code = in.get(j, k);
            is_damaged = is_damaged || !format.is_code(code);
            v[j] += format.value_of(code, block);
          }
          store_floats(partial + at, floats, v);
        }
        for (unsigned j = 0; j < 4; ++j) {
          const float sum = residual != nullptr ? v[j] + r[j] : v[j];
          const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(sum) & 0x7FFFFFFFu;
          largest = magnitude > largest ? magnitude : largest;
        }
      }
    });
    largest = group_max(largest, tiling.group, shared);
    if (tiling.lane() == 0) {
      if constexpr (Format::kNeedsBlockMaximum) call.maxima[tile] = largest;
      if (largest >= Format::kNonFiniteFrom) {
        *call.not_finite_call = call.number;
        call.report->is_not_finite = 1;
      }
    }
  });
  if (is_damaged) call.report->is_damaged = 1;
}

// After the scan: writes the payload, and what it drops into the residual (unless null). A segment
// that is not finite becomes a payload of zeros and leaves the residual as it was.
template <class Format>
__global__ __launch_bounds__(kThreads) void encode_kernel(Format format, Tiling tiling,
                                                          const float* __restrict__ partial,
                                                          float* residual, CodecQueue::Call call,
                                                          std::byte* __restrict__ payload,
                                                          Draws draws) {
  const bool is_finite = *call.not_finite_call != call.number;
  for_tiles<true>(tiling, [&](std::size_t tile, std::size_t begin, unsigned m) {
    typename Format::Block block = format.block_of(0);
    if constexpr (Format::kNeedsBlockMaximum) {
      if (is_finite) block = format.block_of(call.maxima[tile]);
      if (tiling.lane() == 0) {
        const std::uint32_t head[1] = {format.head_of(block)};
        store_words(payload + tile * sizeof head, sizeof head, head);
      }
    }
    std::byte* codes = payload + tiling.code_start + code_layout::bytes(begin, Format::kCodeBits);
    for_positions<Format>(tiling, m, [&](unsigned p, unsigned count, unsigned width) {
      Codes<Format> out;
      for (unsigned k = 0; k < Codes<Format>::kStreams; ++k) {
        const unsigned floats = floats_at(p, count, k, width, m);
        const std::size_t at = begin + std::size_t{k} * width + p;
        float v[4], r[4] = {};
        load_floats(partial + at, floats, v);
        if (residual != nullptr) load_floats(residual + at, floats, r);
        for (unsigned j = 0; j < 4; ++j) {
          float sum = residual != nullptr ? v[j] + r[j] : v[j];
          if (!is_finite) sum = 0.0f;
          code_layout::Coded coded;
          if constexpr (Format::kDraws) {
            coded = format.code_of(sum, block, draws, static_cast<std::uint32_t>(at + j));
          } else {
            coded = format.code_of(sum, block);
          }
          out.put(j, k, j < floats ? coded.bits : Format::kPadding);
          r[j] = sum - coded.value;
        }
        if (residual != nullptr && is_finite) store_floats(residual + at, floats, r);
      }
      out.store(codes, p, count);
    });
  });
}

template <class Format, bool kAdd>
__global__ __launch_bounds__(kThreads) void decode_kernel(Format format, Tiling tiling,
                                                          const std::byte* __restrict__ payload,
                                                          float* __restrict__ out,
                                                          CodecQueue::Report* report) {
  bool is_damaged = false;
  for_tiles(tiling, [&](std::size_t tile, std::size_t begin, unsigned m) {
    typename Format::Block block{};
    is_damaged = !read_block(format, payload, tile, block) || is_damaged;
    const std::byte* codes =
        payload + tiling.code_start + code_layout::bytes(begin, Format::kCodeBits);
    is_damaged = !has_padding<Format>(tiling, codes, m) || is_damaged;
    for_positions<Format>(tiling, m, [&](unsigned p, unsigned count, unsigned width) {
      Codes<Format> in;
      in.load(codes, p, count);
      for (unsigned k = 0; k < Codes<Format>::kStreams; ++k) {
        const unsigned floats = floats_at(p, count, k, width, m);
        const std::size_t at = begin + std::size_t{k} * width + p;
        float v[4] = {};
        if constexpr (kAdd) load_floats(out + at, floats, v);
        for (unsigned j = 0; j < 4; ++j) {
          if (j >= floats) break;
          const std::uint32_t code = in.get(j, k);
          is_damaged = is_damaged || !format.is_code(code);
          const float value = format.value_of(code, block);
          v[j] = kAdd ? v[j] + value : value;
        }
        store_floats(out + at, floats, v);
      }
    });
  });
  if (is_damaged) report->is_damaged = 1;
}

// ---- the codec ----------------------------------------------------------------------------------

template <class Format>
class CudaCodec final : public Codec {
 public:
  CudaCodec(const CodecSpec& codec_spec, CudaDevice& device)
      : Codec(codec_spec), format_(codec_spec), queue_(CodecQueue::of(device)) {}

  [[nodiscard]] bool is_on_device() const override { return true; }
  [[nodiscard]] const SegmentMemory& memory() const override { return *queue_; }
  [[nodiscard]] bool is_lossless() const override { return Format::kIsLossless; }
  [[nodiscard]] std::size_t max_payload_bytes(std::size_t n) const override {
    return format_.payload_bytes(n);
  }
  [[nodiscard]] std::optional<std::size_t> fixed_payload_bytes(std::size_t n) const override {
    return format_.payload_bytes(n);
  }
  [[nodiscard]] double contraction() const override { return format_.contraction(); }

  EncodeResult encode(std::span<const float> partial, float* residual, std::span<std::byte> payload,
                      const EncodePlace& place) const override {
    // Without a payload to add the scan only reads `partial`.
    return encode_after<false>({}, const_cast<float*>(partial.data()), partial.size(), residual,
                               payload, place);
  }

  EncodeResult decode_add_encode(std::span<const std::byte> received, std::span<float> partial,
                                 float* residual, std::span<std::byte> payload,
                                 const EncodePlace& place) const override {
    check_length(received, partial.size());
    return encode_after<true>(received, partial.data(), partial.size(), residual, payload, place);
  }

  void decode(std::span<const std::byte> payload, std::span<float> out) const override {
    decode_blocks<false>(payload, out);
  }
  void decode_add(std::span<const std::byte> payload, std::span<float> out) const override {
    decode_blocks<true>(payload, out);
  }

 private:
  [[nodiscard]] Tiling tiling(std::size_t n) const {
    const std::size_t step = block() > 1 ? block() : 2048;
    // A warp is enough for a tile of up to 4 x 4 positions a thread.
    const bool is_small = code_layout::positions(step, Format::kCodeBits) <= 32 * 16;
    return {.n = n,
            .step = step,
            .tiles = (n + step - 1) / step,
            .group = is_small ? 32 : kThreads,
            .code_start = format_.code_start(n)};
  }
  [[nodiscard]] static Launch launch_of(const Tiling& t) {
    return {.blocks = blocks_for(t.tiles, kThreads / t.group), .threads = kThreads};
  }

  void check_length(std::span<const std::byte> payload, std::size_t n) const {
    if (payload.size() == format_.payload_bytes(n)) return;
    throw_payload_length(spec(), payload.size(), format_.payload_bytes(n), n);
  }

  template <bool kReceives>
  EncodeResult encode_after(std::span<const std::byte> received, float* partial, std::size_t n,
                            float* residual, std::span<std::byte> payload,
                            const EncodePlace& place) const {
    const std::size_t bytes = format_.payload_bytes(n);
    require(payload.size() >= bytes, "a payload does not fit into its memory");
    if (n == 0) return {.payload_bytes = bytes, .finite = true};
    if constexpr (Format::kIsLossless) residual = nullptr;
    const Tiling t = tiling(n);
    const CodecQueue::Call call = queue_->begin(Format::kNeedsBlockMaximum ? t.tiles : 0);
    launch(scan_kernel<Format, kReceives>, launch_of(t), queue_->stream(), format_, t,
           received.data(), partial, residual, call);
    launch(encode_kernel<Format>, launch_of(t), queue_->stream(), format_, t, partial, residual,
           call, payload.data(), Draws(place));
    const CodecQueue::Report report = queue_->finish();
    if (report.is_damaged != 0) throw_payload_content(spec());
    return {.payload_bytes = bytes, .finite = report.is_not_finite == 0};
  }

  template <bool kAdd>
  void decode_blocks(std::span<const std::byte> payload, std::span<float> out) const {
    check_length(payload, out.size());
    if (out.empty()) return;
    const Tiling t = tiling(out.size());
    const CodecQueue::Call call = queue_->begin(0);
    launch(decode_kernel<Format, kAdd>, launch_of(t), queue_->stream(), format_, t, payload.data(),
           out.data(), call.report);
    if (queue_->finish().is_damaged != 0) throw_payload_content(spec());
  }

  Format format_;
  std::shared_ptr<CodecQueue> queue_;
};

}  // namespace dp::cuda
