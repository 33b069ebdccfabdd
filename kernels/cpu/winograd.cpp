// Convolution with a 3x3 kernel and stride 1 by Winograd's F(4x4, 3x3): Lavin and Gray, "Fast
// Algorithms for Convolutional Neural Networks", 2015. winograd_loops.hpp declares the inner loops
// and the data they work on.
//
// A tile of 4 x 4 outputs takes 36 products for each pair of channels instead of 144. Its 6 x 6
// inputs and the 3 x 3 weights are transformed to 36 points each, multiplied point by point, summed
// over channels, and transformed back. Points stand for the values of polynomials at 0, 3/4, -3/4,
// 3/2, -3/2 and infinity in both dimensions.
//
//   forward, input   If there are many tiles, each thread takes blocks of tiles that fit into its
//                    cache. If there are few (small images), each thread takes groups of output
//                    channels, so that their weights stay in its cache.
//   weights          All threads transform one block of tiles together. They then share out its 36
//                    matrix products, one per point. The products of all blocks are summed, and the
//                    sums are transformed back at the end.
//
// The order of each sum is fixed, so results do not depend on the number of threads.
#include <algorithm>
#include <vector>

#include "kernels/cpu/convolution_pass.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/winograd_loops.hpp"

namespace dp::cpu {

namespace winograd {

namespace {

// A thread's block of tiles: the points of its input and output together take at most kBlockBytes
// (measured with 2 MiB of second-level cache; 0.4 to 1.2 MB gave the same speed within 5 %). A
// block has at least 24 tiles, twice the 12 rows of the AVX-512 product, so that weights are not
// read too often.
constexpr std::size_t kBlockBytes = 768u << 10, kLeastTiles = 24, kMostTiles = 36;
// Tiles per block for the gradient of weights. The sums are read and written once per block, so
// large blocks save memory traffic.
constexpr std::size_t kGradientTiles = 128;
// Tiles are "few" if their points fit into this many bytes and there are fewer tiles than output
// channels.
constexpr std::size_t kFewBytes = 3u << 20;
bool are_few(std::size_t tiles, std::size_t inputs, std::size_t outputs) {
  return kPoints * sizeof(float) * tiles * inputs <= kFewBytes && tiles < outputs;
}

// The distance of points in memory: the floats of a point, and one cache line more. Without the
// extra line the distance would be a power of two, and the 36 points would compete for the same
// cache lines.
std::size_t stride_of(std::size_t floats) { return floats + kBlock; }
std::size_t divide_up(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

// Lays out parts of the scratch memory, one after the other.
class Layout {
 public:
  std::size_t take(std::size_t floats) {
    const std::size_t at = bytes_;
    bytes_ += divide_up(floats * sizeof(float), 64) * 64;
    return at;
  }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_ = 0;
};
float* floats_at(std::byte* scratch, std::size_t offset) {
  return reinterpret_cast<float*>(scratch + offset);
}

const Loops& loops_for(const CpuDevice& device) {
#if defined(__x86_64__)
  if (device.vector_floats() == 16) return loops_avx512();
#endif
  return loops();
}

Images images_of(const TensorDesc& desc, void* data) {
  return {data, desc.type, desc.shape.c, desc.channel_block, desc.shape.h, desc.shape.w};
}

// The division of a convolution into tiles. x is the tensor that is transformed first.
struct Plan {
  TensorDesc x, y;
  Tiles tiles{};
  std::size_t count = 0, block_tiles = 0;  // tiles, and tiles per block

  Plan(const TensorDesc& x_desc, const TensorDesc& y_desc, Extent padding) : x(x_desc), y(y_desc) {
    tiles = {divide_up(y.shape.h, 4), divide_up(y.shape.w, 4),
             static_cast<std::ptrdiff_t>(padding.h), static_cast<std::ptrdiff_t>(padding.w)};
    count = y.shape.n * tiles.rows * tiles.columns;
  }
};

// y = x * weights; with `is_backward`, x is the gradient of the output and y the gradient of the
// input.
class TilesPass final : public ConvolutionPass {
 public:
  TilesPass(const CpuDevice& device, const Conv2dDesc& desc, bool is_backward)
      : device_(device),
        loops_(loops_for(device)),
        plan_(is_backward ? Plan(desc.y, desc.x, {2 - desc.padding.h, 2 - desc.padding.w})
                          : Plan(desc.x, desc.y, desc.padding)),
        is_backward_(is_backward) {
    const std::size_t inputs = plan_.x.shape.c, outputs = plan_.y.shape.c, count = plan_.count;
    const auto threads = static_cast<std::size_t>(device.threads());
    group_ = outputs % loops_.most_group == 0 ? loops_.most_group : kBlock;
    is_by_channels_ = are_few(count, inputs, outputs);
    if (is_by_channels_) {
      plan_.block_tiles = count;
    } else {
      const std::size_t fit = kBlockBytes / (kPoints * sizeof(float) * (inputs + outputs));
      const std::size_t most = std::clamp(fit, kLeastTiles, kMostTiles);
      // Blocks of equal size, the same number per thread.
      const std::size_t blocks = threads * divide_up(count, threads * most);
      plan_.block_tiles = divide_up(count, blocks);
    }
    input_stride_ = stride_of(inputs * plan_.block_tiles);
    const std::size_t columns = is_by_channels_ ? group_ : outputs;
    output_stride_ = stride_of(columns * plan_.block_tiles);
    factor_stride_ = stride_of(inputs * columns);
    Layout layout;
    for (std::size_t t = 0; t < threads; ++t) {
      const bool is_shared = t > 0;  // thread 0's memory serves all threads
      ThreadMemory memory;
      memory.input =
          is_by_channels_ && is_shared ? memory_[0].input : layout.take(kPoints * input_stride_);
      memory.factor =
          !is_by_channels_ && is_shared ? memory_[0].factor : layout.take(kPoints * factor_stride_);
      memory.output = layout.take(kPoints * output_stride_);
      memory_.push_back(memory);
    }
    bytes_ = layout.bytes();
  }

  void run(std::span<void* const> data, std::byte* scratch) override {
    const auto* weights = static_cast<const float*>(data[1]);
    const Images x = images_of(plan_.x, data[0]), y = images_of(plan_.y, data[2]);
    if (is_by_channels_) {
      run_by_channels(x, weights, y, scratch);
    } else {
      run_by_tiles(x, weights, y, scratch);
    }
  }
  [[nodiscard]] std::size_t scratch_bytes() const override { return bytes_; }

 private:
  struct ThreadMemory {
    std::size_t input, factor, output;  // bytes from the start of the scratch memory
  };

  [[nodiscard]] Points input_points(std::size_t thread, std::byte* scratch) const {
    return {floats_at(scratch, memory_[thread].input), plan_.block_tiles, input_stride_};
  }
  [[nodiscard]] Points output_points(std::size_t thread, std::byte* scratch) const {
    return {floats_at(scratch, memory_[thread].output), plan_.block_tiles, output_stride_};
  }
  void transform_weights(const float* weights, std::size_t first, const Factor& to) const {
    if (is_backward_) {
      loops_.backward_weights(weights, plan_.y.shape.c, first, to);
    } else {
      loops_.forward_weights(weights, first, to);
    }
  }

  void run_by_tiles(const Images& x, const float* weights, const Images& y,
                    std::byte* scratch) const {
    const Factor factor{floats_at(scratch, memory_[0].factor), x.channels, y.channels, group_,
                        factor_stride_};
    parallel_for(device_, y.channels / group_, [&](std::size_t i) {
      Factor part = factor;
      part.data += i * group_ * factor.rows;
      part.columns = group_;
      transform_weights(weights, i * group_, part);
    });
    // Thread t takes blocks t, t + threads, t + 2 threads, ...
    parallel_for(device_, memory_.size(), [&](std::size_t thread) {
      const Points input = input_points(thread, scratch), output = output_points(thread, scratch);
      const std::size_t step = memory_.size() * plan_.block_tiles;
      for (std::size_t first = thread * plan_.block_tiles; first < plan_.count; first += step) {
        const Range range{first, 0, std::min(plan_.block_tiles, plan_.count - first)};
        loops_.input_tiles(x, plan_.tiles, range, input);
        for (std::size_t point = 0; point < kPoints; ++point)
          loops_.multiply(input, range.end, factor, point, output);
        loops_.output_tiles(output, plan_.tiles, range, y, 0, y.channels);
      }
    });
  }
  void run_by_channels(const Images& x, const float* weights, const Images& y,
                       std::byte* scratch) const {
    const std::size_t threads = memory_.size(), count = plan_.count;
    const Points input = input_points(0, scratch);
    parallel_for(device_, threads, [&](std::size_t i) {
      loops_.input_tiles(x, plan_.tiles, {0, count * i / threads, count * (i + 1) / threads},
                         input);
    });
    parallel_for(device_, threads, [&](std::size_t thread) {
      const Factor factor{floats_at(scratch, memory_[thread].factor), x.channels, group_, group_,
                          factor_stride_};
      const Points output = output_points(thread, scratch);
      for (std::size_t first = thread * group_; first < y.channels; first += threads * group_) {
        transform_weights(weights, first, factor);
        for (std::size_t point = 0; point < kPoints; ++point)
          loops_.multiply(input, count, factor, point, output);
        loops_.output_tiles(output, plan_.tiles, {0, 0, count}, y, first, group_);
      }
    });
  }

  const CpuDevice& device_;
  const Loops& loops_;
  Plan plan_;
  bool is_backward_, is_by_channels_ = false;
  std::size_t group_ = 0;  // output channels that are multiplied together
  std::size_t input_stride_ = 0, output_stride_ = 0, factor_stride_ = 0, bytes_ = 0;
  std::vector<ThreadMemory> memory_;  // by thread
};

class WeightsPass final : public ConvolutionPass {
 public:
  WeightsPass(const CpuDevice& device, const Conv2dDesc& desc)
      : device_(device), loops_(loops_for(device)), plan_(desc.x, desc.y, desc.padding) {
    plan_.block_tiles = std::min(kGradientTiles, plan_.count);
    const std::size_t inputs = plan_.x.shape.c, outputs = plan_.y.shape.c;
    input_stride_ = stride_of(inputs * plan_.block_tiles);
    gradient_stride_ = stride_of(outputs * plan_.block_tiles);
    sums_stride_ = stride_of(inputs * outputs);
    Layout layout;
    input_at_ = layout.take(kPoints * input_stride_);
    gradient_at_ = layout.take(kPoints * gradient_stride_);
    sums_at_ = layout.take(kPoints * sums_stride_);
    bytes_ = layout.bytes();
  }

  void run(std::span<void* const> data, std::byte* scratch) override {
    const Images x = images_of(plan_.x, data[0]), dy = images_of(plan_.y, data[1]);
    const Points input{floats_at(scratch, input_at_), plan_.block_tiles, input_stride_};
    const Points gradient{floats_at(scratch, gradient_at_), plan_.block_tiles, gradient_stride_};
    float* sums = floats_at(scratch, sums_at_);
    const auto pieces = static_cast<std::size_t>(device_.threads());
    for (std::size_t first = 0; first < plan_.count; first += plan_.block_tiles) {
      const std::size_t tiles = std::min(plan_.block_tiles, plan_.count - first);
      parallel_for(device_, pieces, [&](std::size_t i) {
        const Range range{first, tiles * i / pieces, tiles * (i + 1) / pieces};
        loops_.input_tiles(x, plan_.tiles, range, input);
        loops_.gradient_tiles(dy, plan_.tiles, range, gradient);
      });
      parallel_for(device_, kPoints, [&](std::size_t point) {
        loops_.accumulate(gradient, input, tiles, point, dy.channels, x.channels, first == 0,
                          sums + point * sums_stride_);
      });
    }
    parallel_for(device_, dy.channels / kBlock, [&](std::size_t i) {
      const std::size_t k = i * kBlock;
      loops_.weight_gradient(sums + k * x.channels, sums_stride_, x.channels, kBlock,
                             static_cast<float*>(data[2]) + k * 9 * x.channels);
    });
  }
  [[nodiscard]] std::size_t scratch_bytes() const override { return bytes_; }

 private:
  const CpuDevice& device_;
  const Loops& loops_;
  Plan plan_;
  std::size_t input_stride_ = 0, gradient_stride_ = 0, sums_stride_ = 0;
  std::size_t input_at_ = 0, gradient_at_ = 0, sums_at_ = 0, bytes_ = 0;
};

// Whether every vector of these activations lies within one channel block.
bool fits(const TensorDesc& desc, std::size_t width) {
  return desc.shape.c % kBlock == 0 && desc.channel_block % width == 0 && desc.shape.elements() > 0;
}

}  // namespace

}  // namespace winograd

std::unique_ptr<ConvolutionPass> make_winograd_pass(CpuDevice& device, const Conv2dDesc& desc,
                                                    Direction direction) {
  const std::size_t width = winograd::loops_for(device).width;
  if (desc.kernel != Extent(3) || desc.stride != 1 || desc.padding.h > 2 || desc.padding.w > 2 ||
      !winograd::fits(desc.x, width) || !winograd::fits(desc.y, width)) {
    return nullptr;
  }
  if (direction == Direction::backward_weights)
    return std::make_unique<winograd::WeightsPass>(device, desc);
  return std::make_unique<winograd::TilesPass>(device, desc, direction == Direction::backward_data);
}

}  // namespace dp::cpu
