// CodecQueue's operations on segments: a sum of squares, a search for values that are not finite,
// and an addition. The sum takes two kernels: a fixed number of blocks, then one block that adds
// their sums. Its order therefore depends on n alone.
#include "kernels/codecs/cuda_queue.hpp"

#include "kernels/cuda/launch.cuh"

namespace dp::cuda {

namespace {

// A fixed number of blocks, so that a sum's order depends on n alone.
constexpr unsigned kSumBlocks = 256;
constexpr std::size_t kCounter = 32, kFirstSum = 64;  // in bytes
constexpr std::size_t kFirstMaxima = 16384;

// partials[block] = the block's part of the sum of (values + sign * others)^2; others may be null.
__global__ __launch_bounds__(kThreads) void squares_kernel(const float* values, const float* others,
                                                           float sign, std::size_t n,
                                                           double* partials) {
  __shared__ double shared[32];
  double sum = 0.0;
  for (std::size_t i = first_item(); i < n; i += item_stride()) {
    const double x = others == nullptr ? values[i] : values[i] + sign * others[i];
    sum += x * x;
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

__global__ __launch_bounds__(kSumBlocks) void sum_kernel(const double* partials,
                                                         CodecQueue::Report* report) {
  __shared__ double shared[32];
  const double sum = block_sum(partials[threadIdx.x], shared);
  if (threadIdx.x == 0) report->sum = sum;
}

__global__ __launch_bounds__(kThreads) void finite_kernel(const float* values, std::size_t n,
                                                          CodecQueue::Report* report) {
  bool is_finite = true;
  for (std::size_t i = first_item(); i < n; i += item_stride()) {
    is_finite = is_finite && fabsf(values[i]) <= 3.402823466e+38f;  // FLT_MAX; false for NaN
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

}  // namespace

CodecQueue::CodecQueue(CudaDevice& device)
    : device_(device),
      report_(device.allocate_host(sizeof(Report))),
      fixed_(allocate_bytes(kFirstSum + kSumBlocks * sizeof(double))) {
  grow(kFirstMaxima);
  DP_CHECK_CUDA(cudaMemsetAsync(fixed_.get(), 0, kFirstSum, stream()));
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
  if (blocks > maxima_size_) grow(blocks);
  auto* report = reinterpret_cast<Report*>(report_.get());
  *report = {};
  return {.report = report,
          .number = ++calls_,
          .not_finite_call = reinterpret_cast<std::uint64_t*>(fixed_.get()),
          .maxima = reinterpret_cast<std::uint32_t*>(maxima_.get())};
}

std::uint32_t* CodecQueue::new_counter() const {
  auto* counter = reinterpret_cast<std::uint32_t*>(fixed_.get() + kCounter);
  DP_CHECK_CUDA(cudaMemsetAsync(counter, 0, sizeof *counter, stream()));
  return counter;
}

CodecQueue::Report CodecQueue::finish() const {
  device_.wait_for(stream(), "a codec's kernels", DeviceWaits::Kind::prompt);
  return *reinterpret_cast<const Report*>(report_.get());
}

std::uint32_t CodecQueue::finish_with_counter() const {
  std::uint32_t& counter = reinterpret_cast<Report*>(report_.get())->counter;
  DP_CHECK_CUDA(cudaMemcpyAsync(&counter, fixed_.get() + kCounter, sizeof counter,
                                cudaMemcpyDeviceToHost, stream()));
  return finish().counter;
}

std::byte* CodecQueue::staging(std::size_t bytes) const {
  if (bytes > staging_size_) {
    staging_.reset();
    staging_size_ = 0;
    staging_ = device_.allocate_host(bytes);
    staging_size_ = bytes;
  }
  return staging_.get();
}

std::shared_ptr<float> CodecQueue::allocate(std::size_t n) const {
  const Device::Memory memory = device_.allocate(n * sizeof(float));
  return {memory, reinterpret_cast<float*>(memory.get())};
}

double CodecQueue::squares(const float* values, const float* others, float sign,
                           std::size_t n) const {
  const Call call = begin(0);
  auto* partials = reinterpret_cast<double*>(fixed_.get() + kFirstSum);
  launch(squares_kernel, Launch{.blocks = dim3(kSumBlocks), .threads = kThreads}, stream(), values,
         others, sign, n, partials);
  launch(sum_kernel, Launch{.blocks = dim3(1), .threads = kSumBlocks}, stream(), partials,
         call.report);
  return finish().sum;
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

}  // namespace dp::cuda
