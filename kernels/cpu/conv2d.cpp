// Convolution on oneDNN.
//
// Each direction (forward, backward to the input, backward to the weights) is a Pass: one primitive
// of oneDNN, and reorders that bring its operands into the form that it needs. Activations are kept
// in the form that the fast primitives read. So in practice only weights are reordered (0.6-3 ms of
// a step of 1 s), and in bf16 also activations of layers that run as fp32 Winograd.
//
// Planning makes a pass of each method below, measures them (Tuning) and keeps the fastest. All
// memory forms are given explicitly, because oneDNN's own choice takes Winograd where it is slow
// and direct where Winograd is faster:
//
//   winograd  fp32, stride 1, 3x3 (Lavin and Gray 2015); up to 3 times faster with many channels
//   direct    in the activations' own type
//   any       oneDNN chooses, and activations are reordered; used if neither of the others exists
#include <time.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <vector>

#include "kernels/base/error.hpp"
#include "kernels/base/random.hpp"
#include "kernels/cpu/device.hpp"
#include "kernels/cpu/onednn.hpp"
#include "kernels/cpu/twins.hpp"

namespace dp::cpu {

namespace {

using dnnl::memory;
using Dims = memory::dims;
using Tag = memory::format_tag;

memory::dim dim(std::size_t value) { return checked_cast<memory::dim>(value); }
memory::data_type dnnl_type(DataType type) {
  return type == DataType::f32 ? memory::data_type::f32 : memory::data_type::bf16;
}

Dims dims_of(const Shape& s) { return {dim(s.n), dim(s.c), dim(s.h), dim(s.w)}; }

Tag tag_of(const TensorDesc& desc) {
  // If there are as many channels as a block holds, the blocked form and NHWC are the same; oneDNN
  // chooses its blocked kernels only by the blocked name.
  if (desc.channel_block == 16) return Tag::nChw16c;
  if (desc.channel_block == 8) return Tag::nChw8c;
  DP_ASSERT(desc.is_nhwc(), "channel block {} of {} channels", desc.channel_block, desc.shape.c);
  return Tag::nhwc;
}

memory::desc memory_desc(const TensorDesc& desc) {
  return {dims_of(desc.shape), dnnl_type(desc.type), tag_of(desc)};
}

enum class Direction { forward, backward_data, backward_weights };
const char* name_of(Direction d) {
  return d == Direction::forward ? "forward" : d == Direction::backward_data ? "data" : "weights";
}

void check(dnnl_status_t status, const char* what) {
  if (status != dnnl_success) {
    throw_error(ErrorKind::device, "oneDNN: {} failed with status {}", what,
                static_cast<int>(status));
  }
}

// A primitive with its arguments in the C API's form: executing it allocates nothing of ours.
class Step {
 public:
  Step() = default;
  explicit Step(dnnl::primitive primitive) : primitive_(std::move(primitive)) {}

  void add_argument(int kind, const memory::desc& desc, const dnnl::engine& engine) {
    memories_.emplace_back(desc, engine, nullptr);
    arguments_.push_back({kind, memories_.back().get()});
  }
  void set(int kind, void* data) {
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      if (arguments_[i].arg == kind) {
        check(dnnl_memory_set_data_handle(memories_[i].get(), data), "set_data_handle");
        return;
      }
    }
  }
  void execute(dnnl::stream& stream) {
    check(dnnl_primitive_execute(primitive_.get(), stream.get(),
                                 static_cast<int>(arguments_.size()), arguments_.data()),
          "a convolution");
  }

 private:
  dnnl::primitive primitive_;
  std::vector<memory> memories_;
  std::vector<dnnl_exec_arg_t> arguments_;
};

// One operand: its form outside, its form inside (for the primitive), and the reorder between them
// if they differ. Reordered operands are in scratch memory.
struct Operand {
  int argument;
  bool is_output;
  memory::desc outside, inside;
  std::optional<Step> reorder;
  std::size_t scratch_offset = 0;
};

class Pass {
 public:
  Pass(CpuDevice& device, dnnl::primitive primitive, const memory::desc& scratchpad,
       std::vector<Operand> operands)
      : device_(&device), main_(std::move(primitive)), operands_(std::move(operands)) {
    std::size_t offset = 0;
    const auto take = [&](std::size_t bytes) {
      const std::size_t at = offset;
      offset += (bytes + 63) / 64 * 64;
      return at;
    };
    scratchpad_offset_ = take(scratchpad.get_size());
    main_.add_argument(DNNL_ARG_SCRATCHPAD, scratchpad, device.engine());
    for (Operand& o : operands_) {
      main_.add_argument(o.argument, o.inside, device.engine());
      if (o.inside == o.outside) continue;
      const memory::desc& from = o.is_output ? o.inside : o.outside;
      const memory::desc& to = o.is_output ? o.outside : o.inside;
      // Reorders' own scratchpads are managed by the library; the ones used here have none.
      o.reorder.emplace(
          dnnl::reorder(dnnl::reorder::primitive_desc(device.engine(), from, device.engine(), to)));
      o.reorder->add_argument(DNNL_ARG_FROM, from, device.engine());
      o.reorder->add_argument(DNNL_ARG_TO, to, device.engine());
      o.scratch_offset = take(o.inside.get_size());
    }
    scratch_bytes_ = offset;
  }

  // data[i] belongs to the i-th operand; the output comes last.
  void run(std::span<void* const> data, std::byte* scratch) {
    main_.set(DNNL_ARG_SCRATCHPAD, scratch + scratchpad_offset_);
    for (std::size_t i = 0; i < operands_.size(); ++i) {
      Operand& o = operands_[i];
      void* inside = o.reorder ? scratch + o.scratch_offset : data[i];
      main_.set(o.argument, inside);
      if (!o.reorder) continue;
      o.reorder->set(DNNL_ARG_FROM, o.is_output ? inside : data[i]);
      o.reorder->set(DNNL_ARG_TO, o.is_output ? data[i] : inside);
      if (!o.is_output) o.reorder->execute(device_->stream());
    }
    main_.execute(device_->stream());
    if (operands_.back().reorder) operands_.back().reorder->execute(device_->stream());
  }

  [[nodiscard]] std::size_t scratch_bytes() const { return scratch_bytes_; }

 private:
  CpuDevice* device_;
  Step main_;
  std::vector<Operand> operands_;
  std::size_t scratchpad_offset_ = 0, scratch_bytes_ = 0;
};

enum class Method { winograd, direct, any };
constexpr const char* kMethodNames[] = {"winograd", "direct", "any"};

// Makes passes of one convolution.
class PassMaker {
 public:
  PassMaker(CpuDevice& device, const Conv2dDesc& desc) : device_(device), desc_(desc) {}

  // Nothing if oneDNN has no optimised implementation of that method for this processor.
  [[nodiscard]] std::optional<Pass> make(Direction direction, Method method) const {
    try {
      return make_or_throw(direction, method);
    } catch (const dnnl::error&) {
      return std::nullopt;
    }
  }

 private:
  [[nodiscard]] std::optional<Pass> make_or_throw(Direction direction, Method method) const {
    const bool is_winograd = method == Method::winograd;
    if (is_winograd && (desc_.kernel != Extent(3) || desc_.stride != 1)) return std::nullopt;
    const auto algorithm =
        is_winograd ? dnnl::algorithm::convolution_winograd : dnnl::algorithm::convolution_direct;
    const memory::data_type type = is_winograd ? memory::data_type::f32 : dnnl_type(compute_type());
    const Dims x_dims = dims_of(desc_.x.shape), y_dims = dims_of(desc_.y.shape);
    const Dims w_dims = {y_dims[1], x_dims[1], dim(desc_.kernel.h), dim(desc_.kernel.w)};
    const Dims strides(2, dim(desc_.stride)), padding{dim(desc_.padding.h), dim(desc_.padding.w)};

    // Three-channel images are reordered to planar nchw, which oneDNN's first-layer kernels read.
    const bool has_few_channels = x_dims[1] < 8;
    const Tag x_tag = method == Method::any ? Tag::any
                      : has_few_channels    ? Tag::nchw
                                            : tag_of(desc_.x);
    const Tag y_tag = method == Method::any ? Tag::any : tag_of(desc_.y);
    const memory::desc x(x_dims, type, x_tag), y(y_dims, type, y_tag);
    const memory::desc w(w_dims, type, Tag::any);
    const memory::desc w_gradient(w_dims, memory::data_type::f32, Tag::any);

    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const dnnl::engine& engine = device_.engine();
    ConvolutionArguments arguments{
        desc_.is_training ? dnnl::prop_kind::forward_training : dnnl::prop_kind::forward_inference,
        algorithm,
        x,
        w,
        y,
        strides,
        padding};
    const ForwardDesc forward = describe_forward(engine, arguments, attributes);
    const memory::desc x_outside = memory_desc(desc_.x), y_outside = memory_desc(desc_.y);
    // KRSC in memory, K C R S in oneDNN's logical order.
    const memory::desc w_outside(w_dims, memory::data_type::f32, Tag::ohwi);

    switch (direction) {
      case Direction::forward: {
        if (is_slow(forward, method)) return std::nullopt;
        return Pass(device_, dnnl::convolution_forward(forward), forward.scratchpad_desc(),
                    {{DNNL_ARG_SRC, false, x_outside, forward.src_desc(), {}},
                     {DNNL_ARG_WEIGHTS, false, w_outside, forward.weights_desc(), {}},
                     {DNNL_ARG_DST, true, y_outside, forward.dst_desc(), {}}});
      }
      case Direction::backward_data: {
        const BackwardDataDesc pd = describe_backward_data(engine, arguments, forward, attributes);
        if (is_slow(pd, method)) return std::nullopt;
        return Pass(device_, dnnl::convolution_backward_data(pd), pd.scratchpad_desc(),
                    {{DNNL_ARG_DIFF_DST, false, y_outside, pd.diff_dst_desc(), {}},
                     {DNNL_ARG_WEIGHTS, false, w_outside, pd.weights_desc(), {}},
                     {DNNL_ARG_DIFF_SRC, true, x_outside, pd.diff_src_desc(), {}}});
      }
      case Direction::backward_weights: {
        arguments.weights = w_gradient;
        const BackwardWeightsDesc pd =
            describe_backward_weights(engine, arguments, forward, attributes);
        if (is_slow(pd, method)) return std::nullopt;
        return Pass(device_, dnnl::convolution_backward_weights(pd), pd.scratchpad_desc(),
                    {{DNNL_ARG_SRC, false, x_outside, pd.src_desc(), {}},
                     {DNNL_ARG_DIFF_DST, false, y_outside, pd.diff_dst_desc(), {}},
                     {DNNL_ARG_DIFF_WEIGHTS, true, w_outside, pd.diff_weights_desc(), {}}});
      }
    }
    return std::nullopt;
  }

  // bf16 images stay fp32 on their way in, so the type is that of y.
  [[nodiscard]] DataType compute_type() const { return desc_.y.type; }

  // oneDNN's reference loops are about a hundred times slower than the rest: only Method::any may
  // use them.
  template <class PrimitiveDesc>
  static bool is_slow(const PrimitiveDesc& pd, Method method) {
    return method != Method::any &&
           std::string_view(pd.impl_info_str()).find("ref") != std::string_view::npos;
  }

  CpuDevice& device_;
  const Conv2dDesc& desc_;
};

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
    std::optional<Pass> pass;
  };

  void run(Chosen& chosen, void* a, void* b, void* c) {
    void* const data[] = {a, b, c};
    chosen.pass->run(data, device_.scratch());
  }

  void choose(Direction direction, Chosen& chosen) {
    const PassMaker maker(device_, desc_);
    std::vector<Pass> passes;
    std::vector<std::string> names;
    // The fixed rule prefers Winograd, except with few channels or in bf16, where it is slower
    // (measured: with 16 channels the transforms cost more than they save in backward).
    std::vector<Method> order = {Method::winograd, Method::direct};
    if (desc_.x.shape.c < 32 || desc_.y.type == DataType::bf16) std::swap(order[0], order[1]);
    for (const Method method : order) {
      if (auto pass = maker.make(direction, method)) {
        names.emplace_back(kMethodNames[static_cast<int>(method)]);
        passes.push_back(std::move(*pass));
      }
    }
    if (passes.empty()) {
      auto pass = maker.make(direction, Method::any);
      if (!pass) {
        throw_error(ErrorKind::device, "oneDNN cannot compute a {}x{} convolution of {}",
                    desc_.kernel.h, desc_.kernel.w, to_string(desc_.x));
      }
      names.emplace_back("any");
      passes.push_back(std::move(*pass));
    }
    Device::Memory trial, trial_scratch;
    const std::size_t best = device_.tuning().choose(key(direction), names, [&](std::size_t i) {
      if (!trial) {
        trial = trial_memory();
        std::size_t most = 0;
        for (const Pass& pass : passes) most = std::max(most, pass.scratch_bytes());
        trial_scratch = device_.allocate(most);
      }
      return seconds(direction, passes[i], trial.get(), trial_scratch.get());
    });
    chosen.method = names[best];
    chosen.pass.emplace(std::move(passes[best]));
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

  double seconds(Direction direction, Pass& pass, std::byte* memory, std::byte* scratch) {
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

  // A single thread's own time: a host that shares its processors, or has a quota of them, pauses
  // it now and then.
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
    throw_error(ErrorKind::device, "oneDNN, planning a convolution of {}: {}", to_string(desc.x),
                error.what());
  }
}

}  // namespace dp::cpu
