// A warp processes one block of 256 values at a time. With feedback, the scan reads 8 bytes per
// float, and quantising moves 12 bytes. The list of codes is written directly into host memory: 8
// bytes per block and 2 bytes per code that is not zero. At 0.35 bits a value, about 0.1 byte per
// float crosses the bus instead of 4.
#include "kernels/codecs/cuda_ecq.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/codecs/bf16.hpp"
#include "kernels/codecs/cuda_driver.cuh"
#include "kernels/codecs/cuda_lane_sum.cuh"
#include "kernels/codecs/ecq.hpp"
#include "kernels/codecs/linear.hpp"
#include "kernels/codecs/none.hpp"

namespace dp::cuda {
namespace {

constexpr unsigned kWarps = kThreads / 32;  // of a thread block
constexpr unsigned kBlock = static_cast<unsigned>(entropy::kBlock), kRows = kBlock / 32;
constexpr unsigned kAllLanes = 0xFFFFFFFFu;

// Calls use(block, begin, lane) for the blocks of n values; begin is the first value.
template <class Use>
__device__ void for_blocks(std::size_t n, Use use) {
  const std::size_t blocks = (n + kBlock - 1) / kBlock;
  for (std::size_t block = first_item() / 32; block < blocks; block += item_stride() / 32) {
    use(block, block * kBlock, threadIdx.x % 32);
  }
}

// The value at `at`; 0 behind the end.
__device__ inline float value_at(const float* partial, const float* residual, std::size_t at,
                                 std::size_t n) {
  if (at >= n) return 0.0f;
  return residual == nullptr ? partial[at] : partial[at] + residual[at];
}

__global__ __launch_bounds__(kThreads) void scan_blocks_kernel(const float* partial,
                                                               const float* residual, std::size_t n,
                                                               std::uint32_t* maxima,
                                                               std::uint32_t* largest) {
  std::uint32_t of_warp = 0;
  for_blocks(n, [&](std::size_t block, std::size_t begin, unsigned lane) {
    std::uint32_t most = 0;
    for (unsigned row = 0; row < kRows; ++row) {
      const float v = value_at(partial, residual, begin + row * 32 + lane, n);
      const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(v) & 0x7FFFFFFFu;
      most = magnitude > most ? magnitude : most;
    }
    most = __reduce_max_sync(kAllLanes, most);
    if (lane == 0) maxima[block] = most;
    of_warp = most > of_warp ? most : of_warp;
  });
  if (threadIdx.x % 32 == 0 && of_warp > 0) atomicMax(largest, of_warp);
}

// sums[tile] = the tile's part of the sum of (v * factor)^2
__global__ __launch_bounds__(kThreads) void tile_squares_kernel(const float* partial,
                                                                const float* residual,
                                                                std::size_t n, float factor,
                                                                float* sums) {
  sum_tiles<float>(n, sums, [=](std::size_t i) {
    const float x = value_at(partial, residual, i, n) * factor;
    return x * x;
  });
}

// Does nothing if `largest`, the segment's largest magnitude, is given and does not fit the step.
//
// Each warp reserves room in the list for a block's codes by adding to `listed`, so the order of
// blocks in the list differs from run to run. The payload is always the same, because the host
// visits the blocks in order.
__global__ __launch_bounds__(kThreads) void quantise_kernel(
    const float* partial, float* residual, std::size_t n, float step, CodecQueue::Call call,
    const std::uint32_t* largest, std::uint32_t* listed, entropy::CodeList::Block* blocks,
    std::uint16_t* codes) {
  if (largest != nullptr && !Ecq::fits(*largest, step)) return;
  if (first_item() == 0) call.report->is_quantised = 1;
  constexpr float kRound = 0x1.8p23f;  // as in ecq.cpp
  constexpr auto kZero = std::bit_cast<std::int32_t>(kRound);
  constexpr auto kMost = static_cast<std::int32_t>(Ecq::kMostCode);
  __shared__ std::uint16_t shared[kWarps][kBlock];
  std::uint16_t* const found = shared[threadIdx.x / 32];
  const float inverse = 1.0f / step;
  for_blocks(n, [&](std::size_t block, std::size_t begin, unsigned lane) {
    if (std::bit_cast<float>(call.maxima[block]) * inverse <= 0.5f) {
      if (residual != nullptr) {
        for (std::size_t i = begin + lane; i < n && i < begin + kBlock; i += 32) {
          residual[i] += partial[i];
        }
      }
      if (lane == 0) blocks[block] = {};
      return;
    }
    unsigned count = 0, levels = 0;
    for (unsigned row = 0; row < kRows; ++row) {
      const unsigned place = row * 32 + lane;
      const std::size_t at = begin + place;
      const float v = value_at(partial, residual, at, n);
      auto code = std::bit_cast<std::int32_t>(v * inverse + kRound);
      code = code < kZero - kMost ? kZero - kMost : code > kZero + kMost ? kZero + kMost : code;
      if (residual != nullptr && at < n) {
        residual[at] = v - (std::bit_cast<float>(code) - kRound) * step;
      }
      code -= kZero;
      const unsigned not_zero = __ballot_sync(kAllLanes, code != 0 ? 1 : 0);
      if (code != 0) {
        const auto before = static_cast<unsigned>(__popc(not_zero & ((1u << lane) - 1)));
        found[count + before] =
            static_cast<std::uint16_t>(static_cast<unsigned>(code) << 8 | place);
        levels += static_cast<unsigned>(code < 0 ? -code : code) - 1;
      }
      count += static_cast<unsigned>(__popc(not_zero));
    }
    levels = __reduce_add_sync(kAllLanes, levels);
    unsigned first = lane == 0 ? atomicAdd(listed, count) : 0;
    first = __shfl_sync(kAllLanes, first, 0);
    __syncwarp();  // all codes of the block are in `found`
    for (unsigned k = lane; k < count; k += 32) codes[first + k] = found[k];
    if (lane == 0) {
      blocks[block] = {.first = first,
                       .count = static_cast<std::uint16_t>(count),
                       .level_sum = static_cast<std::uint16_t>(levels)};
    }
    __syncwarp();  // before `found` is written for the next block
  });
}

__global__ __launch_bounds__(kThreads) void add_list_kernel(const entropy::CodeList::Block* blocks,
                                                            const std::uint16_t* codes, float step,
                                                            float* out, std::size_t n) {
  for_blocks(n, [&](std::size_t block, std::size_t begin, unsigned lane) {
    const entropy::CodeList::Block of = blocks[block];
    for (unsigned k = lane; k < of.count; k += 32) {
      const std::uint16_t listed = codes[of.first + k];
      const auto code = static_cast<std::int8_t>(listed >> 8);
      out[begin + (listed & 0xFFu)] += static_cast<float>(code) * step;
    }
  });
}

__global__ __launch_bounds__(kThreads) void add_plain_kernel(const std::int8_t* codes, float step,
                                                             float* out, std::size_t n) {
  for (std::size_t i = first_item(); i < n; i += item_stride()) {
    out[i] += static_cast<float>(codes[i]) * step;
  }
}

// values = partial + residual, residual = 0
__global__ __launch_bounds__(kThreads) void give_floats_kernel(const float* partial,
                                                               float* residual, std::size_t n,
                                                               float* values) {
  for (std::size_t i = first_item(); i < n; i += item_stride()) {
    values[i] = value_at(partial, residual, i, n);
    if (residual != nullptr) residual[i] = 0.0f;
  }
}

class CudaEcq final : public Ecq {
 public:
  CudaEcq(const CodecSpec& codec_spec, CudaDevice& device)
      : Ecq(codec_spec),
        queue_(CodecQueue::of(device)),
        four_(parse_codec_spec("q4"), device),
        eight_(parse_codec_spec("q8"), device),
        half_(parse_codec_spec("bf16"), device),
        exact_(CodecSpec::exact(), device) {}

  [[nodiscard]] bool is_on_device() const override { return true; }
  [[nodiscard]] const SegmentMemory& memory() const override { return *queue_; }
  void reserve(std::size_t n) const override {
    const std::size_t dense = exact_.max_payload_bytes(n);
    queue_->reserve(blocks_of(n), std::max(entropy::CodeList::bytes(n), dense));
  }

 private:
  // The maxima stay in the queue's memory, and with a likely step the list of codes in staging
  // memory, until quantise() reads them.
  Scan scan(Values values, std::byte*, float likely_step) const override {
    is_quantised_ = false;
    if (values.size() == 0) return {};
    const CodecQueue::Call call = queue_->begin(blocks_of(values.size()));
    std::uint32_t* const largest = queue_->new_counters();
    launch(scan_blocks_kernel, launch_for_blocks(values.size()), queue_->stream(),
           values.partial.data(), values.residual, values.size(), call.maxima, largest);
    if (likely_step > 0.0f) enqueue_quantise(values, likely_step, call, largest, largest + 1);
    const CodecQueue::Report report = queue_->finish_with_counters();
    is_quantised_ = report.is_quantised != 0;
    return {.largest_bits = report.counter, .is_quantised = is_quantised_};
  }

  double squares(Values values, float factor) const override {
    const std::size_t tiles = (values.size() + kSumTile - 1) / kSumTile;
    auto* const sums = reinterpret_cast<float*>(queue_->staging(tiles * sizeof(float)));
    launch(tile_squares_kernel, launch_for_tiles(values.size()), queue_->stream(),
           values.partial.data(), values.residual, values.size(), factor, sums);
    static_cast<void>(queue_->finish());
    double sum = 0;
    for (std::size_t tile = 0; tile < tiles; ++tile) sum += sums[tile];
    return sum;
  }

  void keep(Values values) const override {
    queue_->add(values.partial.data(), values.residual, values.size());
  }

  entropy::CodeBlocks quantise(Values values, float step, const std::byte*,
                               std::byte* memory) const override {
    if (!is_quantised_) {
      const CodecQueue::Call call = queue_->begin(0);
      enqueue_quantise(values, step, call, nullptr, queue_->new_counters());
      static_cast<void>(queue_->finish());
    }
    const std::size_t n = values.size();
    const entropy::CodeList list = list_of(n);
    entropy::CodeBlocks blocks(memory, n);
    for (std::size_t b = 0; b < list.blocks.size(); ++b) blocks.add(list, b);
    return blocks;
  }

  std::size_t write_dense(Form form, Values values, std::span<std::byte> body,
                          const EncodeContext& context) const override {
    const std::size_t n = values.size();
    const Codec& codec = dense_codec(form);
    const std::size_t most = codec.max_payload_bytes(n);
    std::byte* const staging = queue_->staging(most);
    std::size_t bytes = most;
    if (form == Form::fp32) {
      // The codec `none` would not send the residual.
      static_cast<void>(queue_->begin(0));
      launch(give_floats_kernel, Launch{.blocks = blocks_for(n)}, queue_->stream(),
             values.partial.data(), values.residual, n, reinterpret_cast<float*>(staging));
      static_cast<void>(queue_->finish());
    } else {
      bytes = codec.encode(values.partial, values.residual, {staging, most}, context).payload_bytes;
    }
    std::memcpy(body.data(), staging, bytes);
    return bytes;
  }

  void clear(std::span<float> out) const override {
    if (out.empty()) return;
    DP_CHECK_CUDA(cudaMemsetAsync(out.data(), 0, out.size_bytes(), queue_->stream()));
    static_cast<void>(queue_->finish());
  }

  void add_plain(std::span<const std::byte> body, float step, std::span<float> out) const override {
    if (out.empty()) return;
    const std::byte* const codes = staged(body);
    static_cast<void>(queue_->begin(0));
    launch(add_plain_kernel, Launch{.blocks = blocks_for(out.size())}, queue_->stream(),
           reinterpret_cast<const std::int8_t*>(codes), step, out.data(), out.size());
    static_cast<void>(queue_->finish());
  }

  bool add_coded(std::span<const std::byte> coded, float step,
                 std::span<float> out) const override {
    const entropy::CodeList list = list_of(out.size());
    if (!entropy::decode(coded, out.size(), list)) return false;
    static_cast<void>(queue_->begin(0));
    launch(add_list_kernel, launch_for_blocks(out.size()), queue_->stream(), list.blocks.data(),
           list.codes, step, out.data(), out.size());
    static_cast<void>(queue_->finish());
    return true;
  }

  bool add_dense(Form form, std::span<const std::byte> body, std::span<float> out) const override {
    const Codec& codec = dense_codec(form);
    if (body.size() != codec.max_payload_bytes(out.size())) return false;
    codec.decode_add({staged(body), body.size()}, out);
    return true;
  }

  // The list of codes is in staging memory when the kernel has run.
  void enqueue_quantise(Values values, float step, const CodecQueue::Call& call,
                        const std::uint32_t* largest, std::uint32_t* listed) const {
    const entropy::CodeList list = list_of(values.size());
    launch(quantise_kernel, launch_for_blocks(values.size()), queue_->stream(),
           values.partial.data(), values.residual, values.size(), step, call, largest, listed,
           list.blocks.data(), list.codes);
  }

  [[nodiscard]] const Codec& dense_codec(Form form) const {
    switch (form) {
      case Form::q4:
        return four_;
      case Form::q8:
        return eight_;
      case Form::bf16:
        return half_;
      default:
        return exact_;
    }
  }
  [[nodiscard]] const std::byte* staged(std::span<const std::byte> body) const {
    std::byte* const staging = queue_->staging(body.size());
    std::ranges::copy(body, staging);
    return staging;
  }
  [[nodiscard]] entropy::CodeList list_of(std::size_t n) const {
    return {queue_->staging(entropy::CodeList::bytes(n)), n};
  }
  [[nodiscard]] static std::size_t blocks_of(std::size_t n) { return (n + kBlock - 1) / kBlock; }
  [[nodiscard]] static Launch launch_for_blocks(std::size_t n) {
    return {.blocks = blocks_for(blocks_of(n), kWarps), .threads = kThreads};
  }

  std::shared_ptr<CodecQueue> queue_;
  mutable bool is_quantised_ = false;  // by scan()
  // The dense forms.
  CudaCodec<linear::Format<4>> four_;
  CudaCodec<linear::Format<8>> eight_;
  CudaCodec<bfloat16::Format> half_;
  CudaCodec<none::Format> exact_;
};

}  // namespace

std::unique_ptr<Codec> make_ecq(const CodecSpec& spec, CudaDevice& device) {
  return std::make_unique<CudaEcq>(spec, device);
}

}  // namespace dp::cuda
