// The generic CUDA driver: implements the interface of codec.hpp for a codec's Format, on GPU
// memory. Payloads, decoded values and residuals equal the CPU's, bit for bit. The reason is that
// both devices compute each value with the same functions of the Format, and combine values only by
// maxima. The driver adds the loops over a segment (cuda_tiles.cuh).
//
// Encoding takes two kernels, because no residual may change before the whole segment is known to
// be finite. scan_kernel decodes and adds a received payload, if there is one, and finds the tiles'
// largest magnitudes; encode_kernel writes codes and residuals.
//
// With feedback, the scan reads 8 bytes per float; the encode moves 12 bytes and the code. In
// segments of up to about 20 MB, 8 of these 12 bytes come from the second-level cache, because the
// scan has just read them. decode_add() moves 8 bytes and the code.
#pragma once

#include "kernels/codecs/cuda_queue.hpp"
#include "kernels/codecs/cuda_tiles.cuh"
#include "kernels/codecs/draws.hpp"
#include "kernels/codecs/payload_errors.hpp"
#include "kernels/cuda/launch.cuh"

namespace dp::cuda {

// ---- kernels ------------------------------------------------------------------------------------

// Adds the payload `received` to `partial` (if kReceives), then finds the largest magnitudes of
// partial + residual (residual may be null) and whether the segment is finite.
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

// Runs after the scan. Writes the payload, and the dropped part into the residual (unless null). If
// the segment is not finite, the payload encodes zeros and the residual is unchanged.
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
  void reserve(std::size_t n) const override {
    if constexpr (Format::kNeedsBlockMaximum) queue_->reserve(tiling(n).tiles, 0);
  }
  [[nodiscard]] bool is_lossless() const override { return Format::kIsLossless; }
  [[nodiscard]] std::size_t max_payload_bytes(std::size_t n) const override {
    return format_.payload_bytes(n);
  }
  [[nodiscard]] std::optional<std::size_t> fixed_payload_bytes(std::size_t n) const override {
    return format_.payload_bytes(n);
  }
  [[nodiscard]] double contraction() const override { return format_.contraction(); }

  EncodeResult encode(std::span<const float> partial, float* residual, std::span<std::byte> payload,
                      const EncodeContext& context) const override {
    // The const_cast is safe: if there is no payload to add, the scan only reads `partial`.
    return encode_after<false>({}, const_cast<float*>(partial.data()), partial.size(), residual,
                               payload, context);
  }

  EncodeResult decode_add_encode(std::span<const std::byte> received, std::span<float> partial,
                                 float* residual, std::span<std::byte> payload,
                                 const EncodeContext& context) const override {
    check_length(received, partial.size());
    return encode_after<true>(received, partial.data(), partial.size(), residual, payload, context);
  }

  void decode(std::span<const std::byte> payload, std::span<float> out) const override {
    decode_blocks<false>(payload, out);
  }
  void decode_add(std::span<const std::byte> payload, std::span<float> out) const override {
    decode_blocks<true>(payload, out);
  }

 private:
  [[nodiscard]] Tiling tiling(std::size_t n) const {
    const std::size_t length = block() > 1 ? block() : 2048;
    // A warp is enough for a tile if each thread of the warp gets at most 4 x 4 positions.
    const bool is_small = code_layout::positions(length, Format::kCodeBits) <= 32 * 16;
    return {.n = n,
            .length = length,
            .tiles = (n + length - 1) / length,
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
                            const EncodeContext& context) const {
    const std::size_t bytes = format_.payload_bytes(n);
    require(payload.size() >= bytes, "the payload does not fit into its buffer");
    if (n == 0) return {.payload_bytes = bytes, .finite = true};
    if constexpr (Format::kIsLossless) residual = nullptr;
    const Tiling t = tiling(n);
    const CodecQueue::Call call = queue_->begin(Format::kNeedsBlockMaximum ? t.tiles : 0);
    launch(scan_kernel<Format, kReceives>, launch_of(t), queue_->stream(), format_, t,
           received.data(), partial, residual, call);
    launch(encode_kernel<Format>, launch_of(t), queue_->stream(), format_, t, partial, residual,
           call, payload.data(), Draws(context));
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
