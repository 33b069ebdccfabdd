// Convolution on cuDNN. Each direction is a pass (conv_pass.hpp) with one of cuDNN's plans.
// Measurements choose the plan; without measurements it is the first plan (cudnn_plan.hpp). A large
// batch runs in equal parts, one after the other.
#include "kernels/conv2d.hpp"

#include <limits>
#include <optional>
#include <span>

#include "kernels/base/error.hpp"
#include "kernels/cuda/conv_pass.hpp"
#include "kernels/cuda/handles.hpp"
#include "kernels/cuda/libraries.hpp"
#include "kernels/cuda/twins.hpp"

namespace dp::cuda {

namespace {

// The most configurations that are measured, and how many of them may compile a kernel (about a
// second each).
constexpr std::size_t kMostMeasured = 16, kMostCompiled = 2;
// The time of a plan that does not run.
constexpr double kNever = std::numeric_limits<double>::infinity();

// ---- choosing -----------------------------------------------------------------------------------

// The candidate plans of one direction, built on demand. The first candidate is known to work. All
// configurations after it are listed by name, even those that are not measured, because the choice
// made for another batch size may be any of them.
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
                  planner_.last_refusal().empty() ? "no engine fits" : planner_.last_refusal());
    }
  }

  [[nodiscard]] std::span<const std::string> names() const { return names_; }
  [[nodiscard]] bool is_measured(std::size_t i) const { return candidates_[i].is_measured; }
  void measure_no_more(std::size_t i) { candidates_[i].is_measured = false; }
  // Returns null if cuDNN refuses.
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

// Runs plans of a pass on separate memory and measures their time.
class Trial {
 public:
  Trial(CudaDevice& device, const Conv2dDesc& desc, ConvPass& pass)
      : device_(device), pass_(pass), begin_(cudaEventDefault), end_(cudaEventDefault) {
    x_bytes_ = aligned(desc.x.bytes());
    y_bytes_ = aligned(desc.y.bytes());
    w_bytes_ = aligned(desc.weight_elements() * sizeof(float));
  }

  // Returns kNever if there is too little memory for the plan, or if cuDNN refuses it after all.
  // Throws if the error makes the device unusable or is a bug of ours.
  double seconds(const CudnnPlan* plan) {
    if (plan == nullptr) return kNever;
    try {
      return measure(*plan);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::device) throw;
      check_device(*plan);
      return kNever;
    }
  }

 private:
  double measure(const CudnnPlan& plan) {
    take_memory(pass_.form().scratch_bytes + plan.workspace_bytes());
    // The first run keeps the GPU busy until the second one, which is measured, is in the queue.
    // The time of the host's calls is thus excluded.
    pass_.run(plan, data_, packed_weights_, scratch_.get());
    DP_CHECK_CUDA(cudaEventRecord(begin_.get(), device_.stream()));
    pass_.run(plan, data_, packed_weights_, scratch_.get());
    DP_CHECK_CUDA(cudaEventRecord(end_.get(), device_.stream()));
    device_.wait_for(end_.get(), "the measurement of a convolution");
    float milliseconds = 0;
    DP_CHECK_CUDA(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()));
    return static_cast<double>(milliseconds) * 1e-3;
  }

  // Allocates the operands, once, and at least this many bytes of scratch memory.
  void take_memory(std::size_t scratch_bytes) {
    if (!memory_) {
      const std::size_t operands = x_bytes_ + y_bytes_ + w_bytes_;
      memory_ = device_.allocate(operands + aligned(pass_.form().w.inside.bytes()));
      std::byte* const first = memory_.get();
      // These bytes are an ordinary number both as fp32 and as bf16; denormals or NaN would change
      // the time.
      DP_CHECK_CUDA(cudaMemsetAsync(first, 0x3C, operands, device_.stream()));
      data_ = {first, first + x_bytes_ + y_bytes_, first + x_bytes_};
      packed_weights_ = first + operands;
    }
    if (!scratch_ || scratch_bytes > scratch_bytes_) {
      scratch_.reset();
      scratch_ = device_.allocate(scratch_bytes);
      scratch_bytes_ = scratch_bytes;
    }
  }

  // Throws if a kernel has failed, because all calls then fail until the process ends. Waits first,
  // because a plan may have enqueued work before it failed.
  void check_device(const CudnnPlan& plan) const {
    const DeviceWaits::Wait wait(device_.waits(), "the measurement of a convolution");
    const cudaError_t code = cudaStreamSynchronize(device_.stream());
    if (code == cudaSuccess) return;
    throw_error(ErrorKind::device, "the GPU failed while a convolution was measured ({}): {} ({})",
                plan.name(), cudaGetErrorString(code), cudaGetErrorName(code));
  }

  CudaDevice& device_;
  ConvPass& pass_;
  Event begin_, end_;
  std::size_t x_bytes_ = 0, y_bytes_ = 0, w_bytes_ = 0;
  Device::Memory memory_, scratch_;
  std::size_t scratch_bytes_ = 0;
  ConvPassData data_{};
  void* packed_weights_ = nullptr;
};

// ---- the operation ------------------------------------------------------------------------------

class CudaConv2d final : public Conv2d {
 public:
  CudaConv2d(CudaDevice& device, const Conv2dDesc& desc, std::size_t most_elements)
      : device_(device), desc_(desc), most_elements_(most_elements) {
    choose(ConvDirection::forward, forward_);
    const ConvOperand& w = forward_.pass->form().w;
    if (w.is_copied) packed_weights_ = device.allocate(w.inside.bytes());
    if (!desc.is_training) return;
    if (desc.needs_input_gradient) choose(ConvDirection::backward_data, backward_data_);
    if (desc.needs_weight_gradient) choose(ConvDirection::backward_weights, backward_weights_);
  }

  void forward(const TensorView& x, const float* weights, const TensorView& y) override {
    run(forward_, {x.data, const_cast<float*>(weights), y.data});
  }
  // In bf16, uses the weights that forward() has rounded; they are the same throughout a training
  // step.
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
    std::optional<ConvPass> pass;
    std::shared_ptr<const CudnnPlan> plan;
  };

  void run(Chosen& chosen, const ConvPassData& data) {
    chosen.pass->run(*chosen.plan, data, packed_weights_.get(), device_.scratch());
  }

  void choose(ConvDirection direction, Chosen& chosen) {
    chosen.pass.emplace(device_, form_of(direction, desc_, allows_tf32(), most_elements_));
    ConvPass& pass = *chosen.pass;
    Candidates candidates(device_, pass.form().problem);
    std::optional<Trial> trial;
    const std::size_t best =
        device_.tuning().choose(key(direction), candidates.names(), [&](std::size_t i) {
          if (!candidates.is_measured(i)) return kNever;
          if (!trial) trial.emplace(device_, desc_, pass);
          const double seconds = trial->seconds(candidates.plan(i).get());
          if (seconds == kNever) candidates.measure_no_more(i);
          return seconds;
        });
    chosen.plan = candidates.plan(best);
    // A table of choices from another machine may name a plan that cuDNN refuses here. The first
    // plan is known to work.
    if (!chosen.plan) chosen.plan = candidates.plan(0);
    device_.reserve_scratch(pass.form().scratch_bytes + chosen.plan->workspace_bytes());
  }

  [[nodiscard]] bool allows_tf32() const {
    return device_.allows_tf32() && desc_.y.type == DataType::f32;
  }
  [[nodiscard]] std::string key(ConvDirection direction) const {
    return fmt::format("gpu conv {}x{} stride {} {}x{}x{} -> {} {} {}", desc_.kernel.h,
                       desc_.kernel.w, desc_.stride, desc_.x.shape.h, desc_.x.shape.w,
                       desc_.x.shape.c, desc_.y.shape.c,
                       allows_tf32() ? "tf32" : dp::name_of(desc_.y.type), name_of(direction));
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
