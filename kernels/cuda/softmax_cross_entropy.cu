// A warp computes one row (a sample) at a time, in double: its largest logit, the sum of
// exponentials, its part of the loss, and its gradient. Warps' sums are added within a block, and
// blocks' sums by a second kernel, both in a fixed order.
#include "kernels/softmax_cross_entropy.hpp"

#include <cmath>
#include <limits>

#include "kernels/cuda/device.hpp"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/twins.hpp"

namespace dp::cuda {

namespace {

constexpr unsigned kAll = 0xFFFFFFFFu;
constexpr unsigned kWarps = kThreads / 32;
constexpr unsigned kMostBlocks = 1024;

struct Partial {
  double loss;
  long long correct;
};

// Sums over a warp, returned to every lane, by one fixed tree.
__device__ double warp_sum(double value) {
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(kAll, value, offset);
  return value;
}

// The largest value of a row and the lowest class that has it, returned to every lane.
struct Largest {
  float value;
  unsigned index;
};
__device__ Largest warp_largest(Largest mine) {
  for (int offset = 16; offset > 0; offset /= 2) {
    const float value = __shfl_xor_sync(kAll, mine.value, offset);
    const unsigned index = __shfl_xor_sync(kAll, mine.index, offset);
    if (value > mine.value || (value == mine.value && index < mine.index)) mine = {value, index};
  }
  return mine;
}

// One warp per row. There are only a few thousand exponentials, so they are computed in double, as
// in the CPU twin. d_logits may be null or alias logits. A label outside of the classes makes the
// row's loss and gradient NaN.
__global__ void __launch_bounds__(kThreads)
    softmax_kernel(const float* logits, const std::int32_t* labels, std::size_t samples,
                   unsigned classes, float smoothing, double divisor, float* d_logits,
                   Partial* partials) {
  __shared__ Partial shared[kWarps];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const double spread = static_cast<double>(smoothing) / static_cast<double>(classes);
  const double sharp = 1.0 - static_cast<double>(smoothing);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  Partial mine{0.0, 0};
  for (std::size_t n = static_cast<std::size_t>(blockIdx.x) * kWarps + warp; n < samples;
       n += static_cast<std::size_t>(gridDim.x) * kWarps) {
    const float* row = logits + n * classes;
    const auto label = static_cast<unsigned>(labels[n]);
    const bool is_label = label < classes;
    Largest largest{-INFINITY, 0xFFFFFFFFu};
    for (unsigned k = lane; k < classes; k += 32) {
      if (row[k] > largest.value || largest.index == 0xFFFFFFFFu) largest = {row[k], k};
    }
    largest = warp_largest(largest);
    double total = 0, sum = 0;
    for (unsigned k = lane; k < classes; k += 32) {
      total += exp(static_cast<double>(row[k]) - static_cast<double>(largest.value));
      sum += static_cast<double>(row[k]);
    }
    total = warp_sum(total);
    sum = warp_sum(sum);
    const double log_total = log(total) + static_cast<double>(largest.value);
    // sum over k of target[k] * (log_total - logit[k])
    mine.loss +=
        is_label ? log_total - sharp * static_cast<double>(row[label]) - spread * sum : nan;
    mine.correct += largest.index == label ? 1 : 0;
    __syncwarp();  // all lanes have read row[label], which the gradient may overwrite
    if (d_logits == nullptr) continue;
    float* gradient = d_logits + n * classes;
    for (unsigned k = lane; k < classes; k += 32) {
      const double target = is_label ? spread + (k == label ? sharp : 0.0) : nan;
      const double probability = exp(static_cast<double>(row[k]) - log_total);
      gradient[k] = static_cast<float>((probability - target) / divisor);
    }
  }
  if (lane == 0) shared[warp] = mine;
  __syncthreads();
  if (threadIdx.x == 0) {
    Partial block = shared[0];
    for (unsigned w = 1; w < kWarps; ++w) {
      block.loss += shared[w].loss;
      block.correct += shared[w].correct;
    }
    partials[blockIdx.x] = block;
  }
}

// `sums` is in host memory, so the kernel ends with a fence.
__global__ void __launch_bounds__(kThreads)
    add_losses_kernel(const Partial* partials, unsigned count, std::int64_t samples,
                      LossSums* sums) {
  __shared__ double shared_loss[32];
  __shared__ long long shared_correct[32];
  Partial mine{0.0, 0};
  for (unsigned i = threadIdx.x; i < count; i += blockDim.x) {
    mine.loss += partials[i].loss;
    mine.correct += partials[i].correct;
  }
  mine.loss = block_sum(mine.loss, shared_loss);
  mine.correct = block_sum(mine.correct, shared_correct);
  if (threadIdx.x == 0) {
    sums->loss = mine.loss;
    sums->correct = mine.correct;
    sums->samples = samples;
    __threadfence_system();
  }
}

}  // namespace

void softmax_cross_entropy(CudaDevice& device, const TensorView& logits, const std::int32_t* labels,
                           float smoothing, double divisor, const TensorView& d_logits,
                           LossSums* sums) {
  static_assert(kMostBlocks * sizeof(Partial) <= CudaDevice::kLeastScratchBytes);
  const std::size_t samples = logits.desc.shape.n, classes = logits.desc.shape.c;
  require(logits.desc.type == DataType::f32 && classes > 0 && classes < 0xFFFFFFFFu,
          "logits must be fp32 and have one class or more");
  auto* partials = reinterpret_cast<Partial*>(device.scratch());
  const dim3 blocks = blocks_for(samples, kWarps, kMostBlocks);
  launch(softmax_kernel, Launch{.blocks = blocks}, device.stream(), logits.as<const float>(),
         labels, samples, static_cast<unsigned>(classes), smoothing, divisor, d_logits.as<float>(),
         partials);
  launch(add_losses_kernel, Launch{}, device.stream(), partials, blocks.x,
         static_cast<std::int64_t>(samples), sums);
}

}  // namespace dp::cuda
