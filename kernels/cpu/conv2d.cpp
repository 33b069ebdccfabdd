// Convolution: each direction is a ConvolutionPass.
//
// Planning makes a pass of each method below, measures them (Tuning) and keeps the fastest:
//
//   winograd  stride 1, 3x3, our own (winograd.cpp); up to 3 times faster with many channels
//   direct    oneDNN's direct convolution, in the activations' own layout
//   any       oneDNN chooses the layouts, and activations are reordered; used only if there is no
//             other pass
#include <time.h>

#include <algorithm>
#include <bit>
#include <oneapi/dnnl/dnnl.hpp>
#include <vector>

#include "kernels/base/error.hpp"
#include "kernels/cpu/convolution_pass.hpp"
#include "kernels/cpu/device.hpp"
#include "kernels/cpu/twins.hpp"

namespace dp::cpu {

namespace {

using Pass = std::unique_ptr<ConvolutionPass>;

const char* name_of(Direction d) {
  return d == Direction::forward ? "forward" : d == Direction::backward_data ? "data" : "weights";
}

// Returns null if oneDNN has no implementation.
Pass make_onednn(CpuDevice& device, const Conv2dDesc& desc, Direction direction, bool is_any) {
  try {
    return make_onednn_pass(device, desc, direction, is_any);
  } catch (const dnnl::error&) {
    return nullptr;
  }
}

class CpuConv2d final : public Conv2d {
 public:
  CpuConv2d(CpuDevice& device, const Conv2dDesc& desc) : device_(device), desc_(desc) {
    choose(Direction::forward, forward_);
    if (desc.is_training && desc.needs_input_gradient) {
      choose(Direction::backward_data, backward_data_);
    }
    if (desc.is_training && desc.needs_weight_gradient) {
      choose(Direction::backward_weights, backward_weights_);
    }
  }

  void forward(const TensorView& x, const float* weights, const TensorView& y) override {
    run(forward_, x.data, const_cast<float*>(weights), y.data);
  }
  void backward_data(const TensorView& dy, const float* weights, const TensorView& dx) override {
    DP_ASSERT(backward_data_.pass, "backward_data was not planned");
    run(backward_data_, dy.data, const_cast<float*>(weights), dx.data);
  }
  void backward_weights(const TensorView& x, const TensorView& dy,
                        float* weight_gradient) override {
    DP_ASSERT(backward_weights_.pass, "backward_weights was not planned");
    run(backward_weights_, x.data, dy.data, weight_gradient);
  }

  [[nodiscard]] std::string algorithms() const override {
    std::string text = "forward " + forward_.method;
    if (backward_data_.pass) text += ", data " + backward_data_.method;
    if (backward_weights_.pass) text += ", weights " + backward_weights_.method;
    return text;
  }

 private:
  struct Chosen {
    std::string method;
    Pass pass;
  };

  void run(Chosen& chosen, void* a, void* b, void* c) {
    void* const data[] = {a, b, c};
    chosen.pass->run(data, device_.scratch());
  }

  void choose(Direction direction, Chosen& chosen) {
    std::vector<Pass> passes;
    std::vector<std::string> names;
    const auto offer = [&](const char* name, Pass pass) {
      if (!pass) return;
      names.emplace_back(name);
      passes.push_back(std::move(pass));
    };
    offer("winograd", make_winograd_pass(device_, desc_, direction));
    offer("direct", make_onednn(device_, desc_, direction, false));
    if (passes.empty()) offer("any", make_onednn(device_, desc_, direction, true));
    if (passes.empty()) {
      throw_error(ErrorKind::device, "oneDNN cannot compute a {}x{} convolution of {}",
                  desc_.kernel.h, desc_.kernel.w, to_string(desc_.x));
    }
    // Without measurements the first candidate is used. It must be Winograd, except in bf16.
    if (passes.size() == 2 && desc_.y.type == DataType::bf16) {
      std::swap(names[0], names[1]);
      std::swap(passes[0], passes[1]);
    }
    Device::Memory trial, trial_scratch;
    const std::size_t best = device_.tuning().choose(key(direction), names, [&](std::size_t i) {
      if (!trial) {
        trial = trial_memory();
        std::size_t most = 0;
        for (const Pass& pass : passes) most = std::max(most, pass->scratch_bytes());
        trial_scratch = device_.allocate(most);
      }
      return seconds(direction, *passes[i], trial.get(), trial_scratch.get());
    });
    chosen.method = names[best];
    chosen.pass = std::move(passes[best]);
    device_.reserve_scratch(chosen.pass->scratch_bytes());
  }

  [[nodiscard]] std::string key(Direction direction) const {
    return fmt::format("conv {}x{} stride {} {}x{}x{} -> {} {} {}", desc_.kernel.h, desc_.kernel.w,
                       desc_.stride, desc_.x.shape.h, desc_.x.shape.w, desc_.x.shape.c,
                       desc_.y.shape.c, dp::name_of(desc_.y.type), name_of(direction));
  }

  // Memory for x, y and weights, filled with ordinary numbers: measuring needs no real data, but
  // denormals and NaN would change the time.
  [[nodiscard]] Device::Memory trial_memory() {
    const std::size_t floats =
        (desc_.x.bytes() + desc_.y.bytes()) / 4 + desc_.weight_elements() + 64;
    Device::Memory memory = device_.allocate(floats * 4);
    auto* values = reinterpret_cast<float*>(memory.get());
    // Each half of a float is an ordinary bf16 number, too.
    for (std::size_t i = 0; i < floats; ++i) {
      const auto half = 0x3C00u + static_cast<std::uint32_t>(i % 64);
      values[i] = std::bit_cast<float>(half << 16 | half);
    }
    return memory;
  }

  double seconds(Direction direction, ConvolutionPass& pass, std::byte* memory,
                 std::byte* scratch) {
    std::byte* x = memory;
    std::byte* y = x + (desc_.x.bytes() + 63) / 64 * 64;
    std::byte* w = y + (desc_.y.bytes() + 63) / 64 * 64;
    void* const forward[] = {x, w, y};
    void* const data[] = {y, w, x};
    void* const weights[] = {x, y, w};
    const double begin = clock_s();
    const auto& arguments = direction == Direction::forward         ? forward
                            : direction == Direction::backward_data ? data
                                                                    : weights;
    pass.run(arguments, scratch);
    return clock_s() - begin;
  }

  // Measures CPU time instead of wall time if there is a single thread. On a host with shared
  // processors or a CPU quota the thread may be paused, and CPU time excludes pauses.
  [[nodiscard]] double clock_s() const {
    timespec now{};
    ::clock_gettime(device_.threads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  }

  CpuDevice& device_;
  Conv2dDesc desc_;
  Chosen forward_, backward_data_, backward_weights_;
};

}  // namespace

std::unique_ptr<Conv2d> make_conv2d(CpuDevice& device, const Conv2dDesc& desc) {
  DP_ASSERT(desc.y.shape ==
                conv2d_output(desc.x.shape, desc.y.shape.c, desc.kernel, desc.stride, desc.padding),
            "{} -> {}", to_string(desc.x), to_string(desc.y));
  try {
    return std::make_unique<CpuConv2d>(device, desc);
  } catch (const dnnl::error& error) {
    throw_error(ErrorKind::device, "oneDNN cannot plan a convolution of {}: {}", to_string(desc.x),
                error.what());
  }
}

}  // namespace dp::cpu
