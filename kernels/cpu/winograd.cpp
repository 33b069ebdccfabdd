// Convolution with a 3x3 kernel and stride 1 by Winograd's F(4x4, 3x3): Lavin and Gray, "Fast
// Algorithms for Convolutional Neural Networks", 2015.
//
// A tile of 4 x 4 outputs takes 36 products for each pair of channels instead of 144. Its 6 x 6
// inputs and the 3 x 3 weights are transformed to 36 points each, multiplied point by point, summed
// over channels, and transformed back. Points stand for the values of polynomials at 0, 3/4, -3/4,
// 3/2, -3/2 and infinity in both dimensions.
//
//   forward, backward to the input   threads take blocks of tiles, and transform, multiply and
//   transform back what stays in
//                                    their cache
//   backward to the weights          threads transform a block of tiles together, and take points
//   of its product; sums over
//                                    all blocks are transformed back at the end
//
// Each sum is made in one order, so that the number of threads changes no bit.
#include <algorithm>
#include <vector>

#include "kernels/cpu/convolution_pass.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/winograd_loops.hpp"

namespace dp::cpu {

namespace winograd {

namespace {

// Points of a block, of input and output together, for one thread: half of a usual second-level
// cache or less; but tiles are as many as two rounds of the product's rows, or weights would be
// read too often.
constexpr std::size_t kBlockBytes = 768u << 10, kLeastTiles = 24, kMostTiles = 36;
// Blocks of the gradient of weights, whose sums are read and written once a block.
constexpr std::size_t kGradientTiles = 128;

// One point's floats, with a line more than a power of two, so that 36 points do not share lines of
// the cache.
std::size_t stride_of(std::size_t floats) { return floats + kBlock; }
std::size_t divide_up(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

// Parts of the scratch memory, one after the other.
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

// y = x * weights; with `is_backward` x is the output's gradient and y the input's.
class TilesPass final : public ConvolutionPass {
 public:
  TilesPass(const CpuDevice& device, const Conv2dDesc& desc, bool is_backward)
      : device_(device),
        loops_(loops_for(device)),
        x_(is_backward ? desc.y : desc.x),
        y_(is_backward ? desc.x : desc.y),
        is_backward_(is_backward) {
    const auto behind = [&](std::size_t padding) {
      return static_cast<std::ptrdiff_t>(is_backward ? 2 - padding : padding);
    };
    tiles_ = {divide_up(y_.shape.h, 4), divide_up(y_.shape.w, 4), behind(desc.padding.h),
              behind(desc.padding.w)};
    count_ = y_.shape.n * tiles_.rows * tiles_.columns;

    const std::size_t inputs = x_.shape.c, outputs = y_.shape.c;
    const std::size_t fit = kBlockBytes / (kPoints * sizeof(float) * (inputs + outputs));
    const std::size_t most = std::clamp(fit, kLeastTiles, kMostTiles);
    // Blocks of one size, and as many for each thread.
    const auto threads = static_cast<std::size_t>(device.threads());
    const std::size_t blocks = threads * divide_up(count_, threads * most);
    block_tiles_ = divide_up(count_, blocks);

    factor_ = {nullptr, inputs, outputs,
               outputs % loops_.most_group == 0 ? loops_.most_group : kBlock,
               stride_of(inputs * outputs)};
    Layout layout;
    factor_at_ = layout.take(kPoints * factor_.point_stride);
    input_stride_ = stride_of(inputs * block_tiles_);
    output_stride_ = stride_of(outputs * block_tiles_);
    for (std::size_t t = 0; t < threads; ++t)
      threads_at_.push_back(layout.take(kPoints * (input_stride_ + output_stride_)));
    bytes_ = layout.bytes();
  }

  void run(std::span<void* const> data, std::byte* scratch) override {
    const Images x = images_of(x_, data[0]), y = images_of(y_, data[2]);
    Factor factor = factor_;
    factor.data = floats_at(scratch, factor_at_);
    parallel_for(device_, factor.columns / kBlock, [&](std::size_t i) {
      (is_backward_ ? loops_.backward_weights : loops_.forward_weights)(
          static_cast<const float*>(data[1]), factor, i, i + 1);
    });
    // One body for each thread, which takes every so many-th block.
    const std::size_t threads = threads_at_.size();
    parallel_for(device_, threads, [&](std::size_t thread) {
      float* own = floats_at(scratch, threads_at_[thread]);
      const Points input{own, block_tiles_, input_stride_},
          output{own + kPoints * input_stride_, block_tiles_, output_stride_};
      for (std::size_t first = thread * block_tiles_; first < count_;
           first += threads * block_tiles_) {
        const Range range{first, 0, std::min(block_tiles_, count_ - first)};
        loops_.input_tiles(x, tiles_, range, input);
        for (std::size_t point = 0; point < kPoints; ++point)
          loops_.multiply(input, range.end, factor, point, output);
        loops_.output_tiles(output, tiles_, range, y);
      }
    });
  }
  [[nodiscard]] std::size_t scratch_bytes() const override { return bytes_; }

 private:
  const CpuDevice& device_;
  const Loops& loops_;
  TensorDesc x_, y_;
  bool is_backward_;
  Tiles tiles_{};
  std::size_t count_ = 0, block_tiles_ = 0;  // tiles, and tiles of a block
  Factor factor_{};                          // without its data
  std::size_t factor_at_ = 0, input_stride_ = 0, output_stride_ = 0, bytes_ = 0;
  std::vector<std::size_t> threads_at_;
};

class WeightsPass final : public ConvolutionPass {
 public:
  WeightsPass(const CpuDevice& device, const Conv2dDesc& desc)
      : device_(device), loops_(loops_for(device)), x_(desc.x), y_(desc.y) {
    tiles_ = {divide_up(y_.shape.h, 4), divide_up(y_.shape.w, 4),
              static_cast<std::ptrdiff_t>(desc.padding.h),
              static_cast<std::ptrdiff_t>(desc.padding.w)};
    count_ = y_.shape.n * tiles_.rows * tiles_.columns;
    block_tiles_ = std::min(kGradientTiles, count_);
    const std::size_t inputs = x_.shape.c, outputs = y_.shape.c;
    input_stride_ = stride_of(inputs * block_tiles_);
    gradient_stride_ = stride_of(outputs * block_tiles_);
    sums_stride_ = stride_of(inputs * outputs);
    Layout layout;
    input_at_ = layout.take(kPoints * input_stride_);
    gradient_at_ = layout.take(kPoints * gradient_stride_);
    sums_at_ = layout.take(kPoints * sums_stride_);
    bytes_ = layout.bytes();
  }

  void run(std::span<void* const> data, std::byte* scratch) override {
    const Images x = images_of(x_, data[0]), dy = images_of(y_, data[1]);
    const Points input{floats_at(scratch, input_at_), block_tiles_, input_stride_};
    const Points gradient{floats_at(scratch, gradient_at_), block_tiles_, gradient_stride_};
    float* sums = floats_at(scratch, sums_at_);
    const auto pieces = static_cast<std::size_t>(device_.threads());
    for (std::size_t first = 0; first < count_; first += block_tiles_) {
      const std::size_t tiles = std::min(block_tiles_, count_ - first);
      parallel_for(device_, pieces, [&](std::size_t i) {
        const Range range{first, tiles * i / pieces, tiles * (i + 1) / pieces};
        loops_.input_tiles(x, tiles_, range, input);
        loops_.gradient_tiles(dy, tiles_, range, gradient);
      });
      parallel_for(device_, kPoints, [&](std::size_t point) {
        loops_.accumulate(gradient, input, tiles, point, dy.channels, x.channels, first == 0,
                          sums + point * sums_stride_);
      });
    }
    parallel_for(device_, dy.channels / kBlock, [&](std::size_t i) {
      loops_.weight_gradient(sums, sums_stride_, x.channels, i * kBlock, (i + 1) * kBlock,
                             static_cast<float*>(data[2]));
    });
  }
  [[nodiscard]] std::size_t scratch_bytes() const override { return bytes_; }

 private:
  const CpuDevice& device_;
  const Loops& loops_;
  TensorDesc x_, y_;
  Tiles tiles_{};
  std::size_t count_ = 0, block_tiles_ = 0;
  std::size_t input_stride_ = 0, gradient_stride_ = 0, sums_stride_ = 0;
  std::size_t input_at_ = 0, gradient_at_ = 0, sums_at_ = 0, bytes_ = 0;
};

// Whether vectors of these activations lie within their blocks.
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
