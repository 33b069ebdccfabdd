// CodecQueue's operations on segments: sums of squares, counts, samples and additions.
#include "kernels/codecs/cuda_queue.hpp"

#include <algorithm>
#include <bit>

#include "kernels/codecs/cuda_lane_sum.cuh"
#include "kernels/cuda/launch.cuh"

namespace dp::cuda {

namespace {

constexpr std::size_t kCounters = 32, kFixedBytes = 64;
constexpr std::size_t kFirstMaxima = 16384;
// Enough for the sums of squares of 2^28 values, for counts and for samples.
constexpr std::size_t kFirstStaging = 1u << 20;

__device__ inline float sum_at(const float* values, const float* others, std::size_t i) {
  return others == nullptr ? values[i] : values[i] + others[i];
}
__device__ inline bool is_finite_value(float value) {
  return fabsf(value) <= 3.402823466e+38f;  // FLT_MAX; false for NaN
}

// sums[tile] = the tile's part of the sum of (values + sign * others)^2; others may be null.
__global__ __launch_bounds__(kThreads) void squares_kernel(const float* values, const float* others,
                                                           float sign, std::size_t n,
                                                           double* sums) {
  sum_tiles<double>(n, sums, [=](std::size_t i) {
    const double x = others == nullptr ? values[i] : values[i] + sign * others[i];
    return x * x;
  });
}

__global__ __launch_bounds__(kThreads) void finite_kernel(const float* values, std::size_t n,
                                                          CodecQueue::Report* report) {
  bool is_finite = true;
  for (std::size_t i = first_item(); i < n; i += item_stride()) {
    is_finite = is_finite && is_finite_value(values[i]);
  }
  if (!is_finite) report->is_not_finite = 1;
}

__global__ __launch_bounds__(kThreads) void add_kernel(const float* values, float* sums,
                                                       std::size_t n) {
  for (std::size_t i = first_item(); i < n; i += item_stride()) sums[i] += values[i];
}

__global__ __launch_bounds__(kThreads) void scale_kernel(float factor, float* values,
                                                         std::size_t n) {
  for (std::size_t i = first_item(); i < n; i += item_stride()) values[i] *= factor;
}

__global__ __launch_bounds__(kThreads) void fill_kernel(float value, float* values, std::size_t n) {
  for (std::size_t i = first_item(); i < n; i += item_stride()) values[i] = value;
}

// A block of threads takes a piece at a time.
__global__ __launch_bounds__(kThreads) void momentum_kernel(SegmentMemory::Momentum factors,
                                                            float* gradient, float* velocity,
                                                            std::size_t n) {
  constexpr std::size_t kPiece = SegmentMemory::kMomentumPiece;
  __shared__ int is_bad;
  for (std::size_t piece = blockIdx.x; piece * kPiece < n; piece += gridDim.x) {
    const std::size_t begin = piece * kPiece;
    const std::size_t end = begin + kPiece < n ? begin + kPiece : n;
    if (threadIdx.x == 0) is_bad = 0;
    __syncthreads();
    bool is_finite = true;
    for (std::size_t i = begin + threadIdx.x; i < end; i += kThreads) {
      is_finite = is_finite && is_finite_value(gradient[i]);
    }
    if (!is_finite) is_bad = 1;
    __syncthreads();
    const bool is_left = is_bad != 0;
    __syncthreads();  // before the next piece
    if (is_left) continue;
    for (std::size_t i = begin + threadIdx.x; i < end; i += kThreads) {
      const float g = gradient[i];
      const float u = factors.momentum * velocity[i] + factors.scale * g;
      velocity[i] = u;
      gradient[i] = factors.given * u + factors.direct * g;
    }
  }
}

__global__ __launch_bounds__(kThreads) void clear_kernel(bool where_zero, const float* at,
                                                         float* values, std::size_t n) {
  for (std::size_t i = first_item(); i < n; i += item_stride()) {
    if ((at[i] == 0.0f) == where_zero) values[i] = 0.0f;
  }
}

// The run at begin = k * stride goes to to[k * run].
__global__ __launch_bounds__(kThreads) void sample_kernel(const float* values, const float* others,
                                                          std::size_t n, std::size_t run,
                                                          std::size_t stride, float* to) {
  const std::size_t count = (n + stride - 1) / stride * run;
  for (std::size_t item = first_item(); item < count; item += item_stride()) {
    const std::size_t i = item / run * stride + item % run;
    if (i >= n) continue;
    to[item] = sum_at(values, others, i);
  }
}

// Counts in shared memory first, because most magnitudes fall into a few bins.
__global__ __launch_bounds__(kThreads) void magnitudes_kernel(const float* values,
                                                              const float* others, std::size_t n,
                                                              std::uint32_t* counts) {
  __shared__ std::uint32_t of_block[SegmentMemory::kMagnitudes];
  for (std::size_t bin = threadIdx.x; bin < SegmentMemory::kMagnitudes; bin += blockDim.x) {
    of_block[bin] = 0;
  }
  __syncthreads();
  for (std::size_t i = first_item(); i < n; i += item_stride()) {
    const float v = sum_at(values, others, i);
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(v) & 0x7FFFFFFFu;
    if (magnitude < 0x7F800000u) {
      atomicAdd(&of_block[magnitude >> SegmentMemory::kMagnitudeShift], 1u);
    }
  }
  __syncthreads();
  for (std::size_t bin = threadIdx.x; bin < SegmentMemory::kMagnitudes; bin += blockDim.x) {
    if (of_block[bin] > 0) atomicAdd(&counts[bin], of_block[bin]);
  }
}

constexpr unsigned kMostCountingBlocks = 512;  // so that few counts are added to device memory

}  // namespace

CodecQueue::CodecQueue(CudaDevice& device)
    : device_(device),
      report_(device.allocate_host(sizeof(Report))),
      fixed_(allocate_bytes(kFixedBytes)) {
  reserve(kFirstMaxima, kFirstStaging);
  DP_CHECK_CUDA(cudaMemsetAsync(fixed_.get(), 0, kFixedBytes, stream()));
  device_.wait_for(stream(), "the set-up of codecs");
}

std::shared_ptr<CodecQueue> CodecQueue::of(CudaDevice& device) {
  std::shared_ptr<CodecQueue> queue = device.codec_queue().lock();
  if (!queue) {
    queue = std::make_shared<CodecQueue>(device);
    device.codec_queue() = queue;
  }
  return queue;
}

// Does not call Device::allocate(), because that function uses the device's own stream, and this
// stream may be recording.
CodecQueue::Memory CodecQueue::allocate_bytes(std::size_t bytes) {
  void* memory = nullptr;
  DP_CHECK_CUDA(cudaMalloc(&memory, bytes));
  return Memory(static_cast<std::byte*>(memory));
}

void CodecQueue::grow(std::size_t blocks) const {
  maxima_.reset();
  maxima_size_ = 0;
  maxima_ = allocate_bytes(blocks * sizeof(std::uint32_t));
  maxima_size_ = blocks;
}

CodecQueue::Call CodecQueue::begin(std::size_t blocks) const {
  reserve(blocks, 0);
  auto* report = reinterpret_cast<Report*>(report_.get());
  *report = {};
  return {.report = report,
          .number = ++calls_,
          .not_finite_call = reinterpret_cast<std::uint64_t*>(fixed_.get()),
          .maxima = reinterpret_cast<std::uint32_t*>(maxima_.get())};
}

std::uint32_t* CodecQueue::new_counters() const {
  auto* counters = reinterpret_cast<std::uint32_t*>(fixed_.get() + kCounters);
  DP_CHECK_CUDA(cudaMemsetAsync(counters, 0, 2 * sizeof *counters, stream()));
  return counters;
}

CodecQueue::Report CodecQueue::finish() const {
  device_.wait_for(stream(), "a codec's kernels", DeviceWaits::Kind::prompt);
  return *reinterpret_cast<const Report*>(report_.get());
}

CodecQueue::Report CodecQueue::finish_with_counters() const {
  std::uint32_t& counter = reinterpret_cast<Report*>(report_.get())->counter;
  DP_CHECK_CUDA(cudaMemcpyAsync(&counter, fixed_.get() + kCounters, sizeof counter,
                                cudaMemcpyDeviceToHost, stream()));
  return finish();
}

void CodecQueue::reserve(std::size_t blocks, std::size_t staging_bytes) const {
  if (blocks > maxima_size_) grow(blocks);
  if (staging_bytes <= staging_size_) return;
  staging_.reset();
  staging_size_ = 0;
  staging_ = device_.allocate_host(staging_bytes);
  staging_size_ = staging_bytes;
}

std::byte* CodecQueue::staging(std::size_t bytes) const {
  reserve(0, bytes);
  return staging_.get();
}

std::shared_ptr<float> CodecQueue::allocate(std::size_t n) const {
  const Device::Memory memory = device_.allocate(n * sizeof(float));
  return {memory, reinterpret_cast<float*>(memory.get())};
}

double CodecQueue::squares(const float* values, const float* others, float sign,
                           std::size_t n) const {
  if (n == 0) return 0.0;
  const std::size_t tiles = (n + kSumTile - 1) / kSumTile;
  auto* const sums = reinterpret_cast<double*>(staging(tiles * sizeof(double)));
  launch(squares_kernel, launch_for_tiles(n), stream(), values, others, sign, n, sums);
  static_cast<void>(finish());
  double sum = 0.0;
  for (std::size_t tile = 0; tile < tiles; ++tile) sum += sums[tile];
  return sum;
}

double CodecQueue::squares_of_sum(const float* values, const float* others, std::size_t n) const {
  return squares(values, others, 1.0f, n);
}

double CodecQueue::squares_of_difference(const float* values, const float* others,
                                         std::size_t n) const {
  return squares(values, others, -1.0f, n);
}

bool CodecQueue::is_finite(const float* values, std::size_t n) const {
  if (n == 0) return true;
  const Call call = begin(0);
  launch(finite_kernel, Launch{.blocks = blocks_for(n), .threads = kThreads}, stream(), values, n,
         call.report);
  return finish().is_not_finite == 0;
}

void CodecQueue::to_host(const float* from, float* to, std::size_t n) const {
  if (n == 0) return;
  DP_CHECK_CUDA(cudaMemcpyAsync(to, from, n * sizeof(float), cudaMemcpyDeviceToHost, stream()));
  device_.wait_for(stream(), "a copy to the host", DeviceWaits::Kind::prompt);
}

void CodecQueue::add(const float* values, float* sums, std::size_t n) const {
  if (n == 0) return;
  launch(add_kernel, Launch{.blocks = blocks_for(n), .threads = kThreads}, stream(), values, sums,
         n);
  static_cast<void>(finish());
}

void CodecQueue::scale(float factor, float* values, std::size_t n) const {
  if (n == 0) return;
  launch(scale_kernel, Launch{.blocks = blocks_for(n), .threads = kThreads}, stream(), factor,
         values, n);
  static_cast<void>(finish());
}

void CodecQueue::fill(float value, float* values, std::size_t n) const {
  if (n == 0) return;
  launch(fill_kernel, Launch{.blocks = blocks_for(n), .threads = kThreads}, stream(), value, values,
         n);
  static_cast<void>(finish());
}

void CodecQueue::add_momentum(const Momentum& factors, float* gradient, float* velocity,
                              std::size_t n) const {
  if (n == 0) return;
  launch(momentum_kernel, Launch{.blocks = blocks_for(n, kMomentumPiece), .threads = kThreads},
         stream(), factors, gradient, velocity, n);
  static_cast<void>(finish());
}

void CodecQueue::clear(Where where, const float* at, float* values, std::size_t n) const {
  if (n == 0) return;
  launch(clear_kernel, Launch{.blocks = blocks_for(n), .threads = kThreads}, stream(),
         where == Where::zero, at, values, n);
  static_cast<void>(finish());
}

std::size_t CodecQueue::sample(const float* values, const float* others, std::size_t n,
                               std::size_t run, std::size_t stride, float* to) const {
  if (n == 0) return 0;
  const std::size_t runs = (n + stride - 1) / stride;
  auto* const sampled = reinterpret_cast<float*>(staging(runs * run * sizeof(float)));
  launch(sample_kernel, Launch{.blocks = blocks_for(runs * run), .threads = kThreads}, stream(),
         values, others, n, run, stride, sampled);
  static_cast<void>(finish());
  // Only the last run may be shorter.
  const std::size_t count = (runs - 1) * run + std::min(run, n - (runs - 1) * stride);
  std::copy_n(sampled, count, to);
  return count;
}

void CodecQueue::count_magnitudes(const float* values, const float* others, std::size_t n,
                                  std::span<std::int64_t, kMagnitudes> counts) const {
  if (n == 0) return;
  // 32 bits are enough for less than 2^32 values.
  for (constexpr std::size_t kMost = std::size_t{1} << 31; n > kMost; n -= kMost) {
    count_magnitudes(values, others, kMost, counts);
    values += kMost;
    if (others != nullptr) others += kMost;
  }
  constexpr std::size_t kBytes = kMagnitudes * sizeof(std::uint32_t);
  const Call call = begin(kMagnitudes);
  auto* const counted = reinterpret_cast<std::uint32_t*>(staging(kBytes));
  DP_CHECK_CUDA(cudaMemsetAsync(call.maxima, 0, kBytes, stream()));
  launch(magnitudes_kernel,
         Launch{.blocks = blocks_for(n, kThreads, kMostCountingBlocks), .threads = kThreads},
         stream(), values, others, n, call.maxima);
  DP_CHECK_CUDA(cudaMemcpyAsync(counted, call.maxima, kBytes, cudaMemcpyDeviceToHost, stream()));
  static_cast<void>(finish());
  for (std::size_t bin = 0; bin < kMagnitudes; ++bin) counts[bin] += counted[bin];
}

}  // namespace dp::cuda
