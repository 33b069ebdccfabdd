// Convolution on cuDNN.
//
// Each direction is a Pass: one plan of cuDNN, and the copies that bring operands into the form
// that it wants. In fp32 that is the form which they have. In bf16 it is bf16 with channels filled
// up with zeros to a multiple of 8: activations of ordinary layers are that already; the network's
// images (fp32, 3 channels) and layers of odd widths are copied into scratch memory; weights, which
// are fp32, are rounded in forward() into memory of the convolution's own, where backward_data()
// finds them; weight gradients come out in bf16, rounded once from sums in fp32 (cuDNN has no
// engine that writes fp32 from bf16), and are copied to fp32.
//
// A large batch runs in equal parts, one after the other (PartLimits says why).
#include "kernels/conv2d.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <span>

#include "kernels/base/error.hpp"
#include "kernels/cuda/cudnn_plan.hpp"
#include "kernels/cuda/device.hpp"
#include "kernels/cuda/handles.hpp"
#include "kernels/cuda/pack.hpp"
#include "kernels/cuda/twins.hpp"

namespace dp::cuda {

namespace {

// How many configurations are measured at most; of those that compile a kernel for about a second,
// how many.
constexpr std::size_t kMostMeasured = 16, kMostCompiled = 2;

std::size_t padded_channels(std::size_t channels, DataType type) {
  return type == DataType::f32 ? channels : (channels + 7) / 8 * 8;
}
std::size_t aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }
// What cuDNN has been told of all pointers (cudnn_plan.cpp).
constexpr std::size_t kAlignment = 16;
bool is_aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % kAlignment == 0;
}

// One operand: its form in memory, and the form in which the plan wants it. `offset`: in scratch.
struct Operand {
  PackForm outside, inside;
  bool is_copied = false;
  std::size_t offset = 0;

  Operand() = default;
  Operand(const PackForm& in_memory, const PackForm& wanted)
      : outside(in_memory), inside(wanted), is_copied(in_memory != wanted) {}
};

// The three operands of a direction and how its batch is cut.
struct PassForm {
  ConvProblem problem;  // of one part
  Operand x, w, y;      // of one part
  std::size_t parts = 1;
  std::size_t scratch_bytes = 0;  // without the plan's workspace
};

// How many elements a tensor of one part may have.
struct PartLimits {
  // Many of cuDNN's engines count in 32 bits.
  static constexpr std::size_t kHard = (std::size_t{1} << 31) - 1;
  // fp32 engines copy x and y into their workspace (H200, A100): half a GiB then, where the fast
  // ones would else be above ConvPlanner's limit. A part of this size still fills a GPU.
  static constexpr std::size_t kFp32 = std::size_t{1} << 26;
};

// The least number of equal parts of n images.
std::size_t count_parts(std::size_t n, std::size_t elements, std::size_t most_elements) {
  std::size_t parts = 1;
  while (parts < n && (n % parts != 0 || elements / parts > most_elements)) ++parts;
  return parts;
}
std::size_t count_parts_for(const Conv2dDesc& desc, std::size_t elements) {
  const std::size_t n = desc.x.shape.n;
  if (desc.y.type == DataType::f32) {
    const std::size_t parts = count_parts(n, elements, PartLimits::kFp32);
    // Of a batch that can hardly be divided the parts would be too small.
    if (parts <= 4 * (elements / PartLimits::kFp32 + 1)) return parts;
  }
  return count_parts(n, elements, PartLimits::kHard);
}

PassForm form_of(ConvDirection direction, const Conv2dDesc& desc, bool allows_tf32,
                 std::size_t most_elements) {
  const DataType type = desc.y.type;
  PassForm f;
  Shape x = desc.x.shape, y = desc.y.shape;
  x.c = padded_channels(x.c, type);
  y.c = padded_channels(y.c, type);
  const std::size_t elements = std::max(x.elements(), y.elements());
  f.parts = most_elements > 0 ? count_parts(x.n, elements, most_elements)
                              : count_parts_for(desc, elements);
  x.n /= f.parts;
  y.n /= f.parts;
  f.problem = {.direction = direction,
               .x = x,
               .y = y,
               .kernel = desc.kernel,
               .stride = desc.stride,
               .padding = desc.padding,
               .x_type = type,
               .w_type = type,
               .y_type = type,
               .allows_tf32 = allows_tf32};
  const std::size_t taps = desc.kernel * desc.kernel;
  f.x = {{x.n * x.pixels(), desc.x.shape.c, desc.x.type}, {x.n * x.pixels(), x.c, type}};
  f.y = {{y.n * y.pixels(), desc.y.shape.c, desc.y.type}, {y.n * y.pixels(), y.c, type}};
  f.w = {{desc.y.shape.c * taps, desc.x.shape.c, DataType::f32}, {y.c * taps, x.c, type}};
  // Parts after the first one may begin anywhere.
  for (Operand* operand : {&f.x, &f.y}) {
    if (f.parts > 1 && operand->outside.bytes() % kAlignment != 0) operand->is_copied = true;
  }

  const auto take = [&](Operand& operand) {
    operand.offset = f.scratch_bytes;
    f.scratch_bytes += aligned(operand.inside.bytes());
  };
  if (f.x.is_copied) take(f.x);
  if (f.y.is_copied) take(f.y);
  // Weights need room even where their form is right: they may not be aligned as cuDNN wants.
  if (direction == ConvDirection::backward_weights || !f.w.is_copied) take(f.w);
  return f;
}

// The pointers of a call, as the operation's caller knows them.
struct PassData {
  void* x;
  void* w;
  void* y;
};

class Pass {
 public:
  Pass(CudaDevice& device, const PassForm& form) : device_(&device), form_(form) {}

  // `packed_weights`: weights in the plan's form, where that is another than theirs.
  void run(const CudnnPlan& plan, const PassData& data, void* packed_weights, std::byte* scratch) {
    const bool is_forward = form_.problem.direction == ConvDirection::forward;
    const bool is_weights = form_.problem.direction == ConvDirection::backward_weights;
    const bool is_data = form_.problem.direction == ConvDirection::backward_data;
    DP_ASSERT(is_aligned(data.x) && is_aligned(data.y), "tensors are aligned to 16 bytes");
    std::byte* const workspace = scratch + form_.scratch_bytes;

    void* w = data.w;
    bool copies_gradient = false;
    if (is_weights) {
      copies_gradient = form_.w.is_copied || form_.parts > 1 || !is_aligned(w);
      if (copies_gradient) w = scratch + form_.w.offset;
    } else if (form_.w.is_copied) {
      w = packed_weights;
      if (is_forward) repack(stream(), data.w, form_.w.outside, w, form_.w.inside);
    } else if (!is_aligned(w)) {
      w = scratch + form_.w.offset;
      repack(stream(), data.w, form_.w.outside, w, form_.w.inside);
    }

    for (std::size_t part = 0; part < form_.parts; ++part) {
      std::byte* const x_outside = static_cast<std::byte*>(data.x) + part * form_.x.outside.bytes();
      std::byte* const y_outside = static_cast<std::byte*>(data.y) + part * form_.y.outside.bytes();
      void* const x = into(form_.x, x_outside, !is_data, scratch);
      void* const y = into(form_.y, y_outside, !is_forward, scratch);
      pointers_.set(x, w, y, workspace);
      plan.run(device_->libraries().cudnn(), pointers_);
      if (is_data) out_of(form_.x, x, x_outside);
      if (is_forward) out_of(form_.y, y, y_outside);
      if (copies_gradient) {
        repack(stream(), w, form_.w.inside, data.w, form_.w.outside, part > 0);
      }
    }
  }

  [[nodiscard]] const PassForm& form() const { return form_; }

 private:
  [[nodiscard]] cudaStream_t stream() const { return device_->stream(); }

  // The place where the plan reads or writes an operand; an input is copied there.
  void* into(const Operand& operand, void* outside, bool is_input, std::byte* scratch) {
    if (!operand.is_copied) return outside;
    void* const inside = scratch + operand.offset;
    if (is_input) repack(stream(), outside, operand.outside, inside, operand.inside);
    return inside;
  }
  void out_of(const Operand& operand, const void* inside, void* outside) {
    if (operand.is_copied) repack(stream(), inside, operand.inside, outside, operand.outside);
  }

  CudaDevice* device_;
  PassForm form_;
  ConvPointers pointers_;
};

// ---- choosing -----------------------------------------------------------------------------------

// The plans of one direction that may be chosen, built as they are asked for. The first one works.
// All ways have a name, so that a choice that was made for another batch size is found.
class Candidates {
 public:
  Candidates(CudaDevice& device, const ConvProblem& problem)
      : planner_({device.libraries().cudnn(), nullptr}, problem) {
    std::size_t measured = 0, compiled = 0;
    for (std::size_t way = 0; way < planner_.count(); ++way) {
      std::shared_ptr<const CudnnPlan> plan;
      if (names_.empty() && !(plan = planner_.build(way))) continue;
      const bool is_measured =
          measured < kMostMeasured && (!planner_.is_compiled(way) || ++compiled <= kMostCompiled);
      measured += is_measured;
      names_.push_back(planner_.name(way));
      candidates_.push_back({way, is_measured, std::move(plan)});
    }
    if (names_.empty()) {
      throw_error(ErrorKind::device, "cuDNN cannot compute a {}: {}", to_string(problem),
                  planner_.last_refusal().empty() ? "it knows no way" : planner_.last_refusal());
    }
  }

  [[nodiscard]] std::span<const std::string> names() const { return names_; }
  [[nodiscard]] bool is_measured(std::size_t i) const { return candidates_[i].is_measured; }
  // Null where cuDNN refuses.
  [[nodiscard]] std::shared_ptr<const CudnnPlan> plan(std::size_t i) {
    Candidate& candidate = candidates_[i];
    if (!candidate.plan) candidate.plan = planner_.build(candidate.way);
    return candidate.plan;
  }

 private:
  struct Candidate {
    std::size_t way;
    bool is_measured;
    std::shared_ptr<const CudnnPlan> plan;
  };

  ConvPlanner planner_;
  std::vector<std::string> names_;
  std::vector<Candidate> candidates_;
};

// Runs plans of a pass on memory of its own and measures them.
class Trial {
 public:
  Trial(CudaDevice& device, const Conv2dDesc& desc, Pass& pass)
      : device_(device), pass_(pass), begin_(cudaEventDefault), end_(cudaEventDefault) {
    const std::size_t x = aligned(desc.x.bytes()), y = aligned(desc.y.bytes());
    const std::size_t w = aligned(desc.weight_elements() * sizeof(float));
    memory_ = device.allocate(x + y + w + aligned(pass.form().w.inside.bytes()));
    // A harmless number as fp32 and as bf16: denormals or NaN would change the time.
    DP_CHECK_CUDA(cudaMemsetAsync(memory_.get(), 0x3C, x + y + w, device.stream()));
    data_ = {memory_.get(), memory_.get() + x + y, memory_.get() + x};
    packed_weights_ = memory_.get() + x + y + w;
  }

  // Infinity where it fails.
  double seconds(const CudnnPlan* plan) {
    if (plan == nullptr) return std::numeric_limits<double>::infinity();
    const std::size_t bytes = pass_.form().scratch_bytes + plan->workspace_bytes();
    if (!scratch_ || bytes > scratch_bytes_) {
      scratch_.reset();
      scratch_ = device_.allocate(bytes);
      scratch_bytes_ = bytes;
    }
    try {
      // The first run keeps the GPU at work until the second one, which counts, is in the queue:
      // the time of the host's calls is not the plan's.
      pass_.run(*plan, data_, packed_weights_, scratch_.get());
      DP_CHECK_CUDA(cudaEventRecord(begin_.get(), device_.stream()));
      pass_.run(*plan, data_, packed_weights_, scratch_.get());
      DP_CHECK_CUDA(cudaEventRecord(end_.get(), device_.stream()));
      DP_CHECK_CUDA(cudaEventSynchronize(end_.get()));
    } catch (const Error&) {
      return std::numeric_limits<double>::infinity();
    }
    float milliseconds = 0;
    DP_CHECK_CUDA(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()));
    return static_cast<double>(milliseconds) * 1e-3;
  }

 private:
  CudaDevice& device_;
  Pass& pass_;
  Event begin_, end_;
  Device::Memory memory_, scratch_;
  std::size_t scratch_bytes_ = 0;
  PassData data_{};
  void* packed_weights_ = nullptr;
};

// ---- the operation ------------------------------------------------------------------------------

class CudaConv2d final : public Conv2d {
 public:
  CudaConv2d(CudaDevice& device, const Conv2dDesc& desc, std::size_t most_elements)
      : device_(device), desc_(desc), most_elements_(most_elements) {
    choose(ConvDirection::forward, forward_);
    const Operand& w = forward_.pass->form().w;
    if (w.is_copied) packed_weights_ = device.allocate(w.inside.bytes());
    if (!desc.is_training) return;
    if (desc.needs_input_gradient) choose(ConvDirection::backward_data, backward_data_);
    choose(ConvDirection::backward_weights, backward_weights_);
  }

  void forward(const TensorView& x, const float* weights, const TensorView& y) override {
    run(forward_, {x.data, const_cast<float*>(weights), y.data});
  }
  // In bf16 with the weights that forward() has rounded, which are the same in any training step.
  void backward_data(const TensorView& dy, const float* weights, const TensorView& dx) override {
    DP_ASSERT(backward_data_.plan, "backward_data was not planned");
    run(backward_data_, {dx.data, const_cast<float*>(weights), dy.data});
  }
  void backward_weights(const TensorView& x, const TensorView& dy,
                        float* weight_gradient) override {
    DP_ASSERT(backward_weights_.plan, "backward_weights was not planned");
    run(backward_weights_, {x.data, weight_gradient, dy.data});
  }

  [[nodiscard]] std::string algorithms() const override {
    std::string text = "forward " + forward_.plan->name();
    if (backward_data_.plan) text += ", data " + backward_data_.plan->name();
    if (backward_weights_.plan) text += ", weights " + backward_weights_.plan->name();
    return text;
  }

 private:
  struct Chosen {
    std::optional<Pass> pass;
    std::shared_ptr<const CudnnPlan> plan;
  };

  void run(Chosen& chosen, const PassData& data) {
    chosen.pass->run(*chosen.plan, data, packed_weights_.get(), device_.scratch());
  }

  void choose(ConvDirection direction, Chosen& chosen) {
    chosen.pass.emplace(device_, form_of(direction, desc_, allows_tf32(), most_elements_));
    Pass& pass = *chosen.pass;
    Candidates candidates(device_, pass.form().problem);
    std::optional<Trial> trial;
    const std::size_t best =
        device_.tuning().choose(key(direction), candidates.names(), [&](std::size_t i) {
          if (!candidates.is_measured(i)) return std::numeric_limits<double>::infinity();
          if (!trial) trial.emplace(device_, desc_, pass);
          return trial->seconds(candidates.plan(i).get());
        });
    chosen.plan = candidates.plan(best);
    // A table of another machine may name what is refused here.
    if (!chosen.plan) chosen.plan = candidates.plan(0);
    device_.reserve_scratch(pass.form().scratch_bytes + chosen.plan->workspace_bytes());
  }

  [[nodiscard]] bool allows_tf32() const {
    return device_.allows_tf32() && desc_.y.type == DataType::f32;
  }
  [[nodiscard]] std::string key(ConvDirection direction) const {
    return fmt::format("conv {}x{} stride {} {}x{}x{} -> {} {} {}", desc_.kernel, desc_.kernel,
                       desc_.stride, desc_.x.shape.h, desc_.x.shape.w, desc_.x.shape.c,
                       desc_.y.shape.c, allows_tf32() ? "tf32" : dp::name_of(desc_.y.type),
                       name_of(direction));
  }

  CudaDevice& device_;
  Conv2dDesc desc_;
  std::size_t most_elements_;
  Chosen forward_, backward_data_, backward_weights_;
  Device::Memory packed_weights_;
};

}  // namespace

std::unique_ptr<Conv2d> make_conv2d(CudaDevice& device, const Conv2dDesc& desc,
                                    std::size_t most_elements) {
  DP_ASSERT(desc.y.shape == conv2d_output(desc.x.shape, desc.y.shape.c, desc.kernel, desc.stride,
                                          desc.padding) &&
                desc.x.is_nhwc() && desc.y.is_nhwc() && desc.x.shape.n > 0,
            "{} -> {}", to_string(desc.x), to_string(desc.y));
  return std::make_unique<CudaConv2d>(device, desc, most_elements);
}

}  // namespace dp::cuda
