// Convolution on oneDNN: one primitive per direction, and reorders that convert the operands to the
// layout that the primitive needs. Activations are kept in the layout that the fast primitives
// read, so in practice only weights are reordered (0.6-3 ms in a training step of 1 s).
//
// All layouts are given explicitly, because layouts of oneDNN's own choice would make it reorder
// activations.
#include <optional>
#include <string_view>
#include <vector>

#include "kernels/base/error.hpp"
#include "kernels/cpu/convolution_pass.hpp"
#include "kernels/cpu/onednn.hpp"

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
  // If there are exactly as many channels as a block holds, the blocked layout and NHWC are the
  // same in memory. The blocked name is used, because oneDNN chooses its blocked kernels only by
  // that name.
  if (desc.channel_block == 16) return Tag::nChw16c;
  if (desc.channel_block == 8) return Tag::nChw8c;
  DP_ASSERT(desc.is_nhwc(), "oneDNN has no layout with channel blocks of {} for {} channels",
            desc.channel_block, desc.shape.c);
  return Tag::nhwc;
}

memory::desc memory_desc(const TensorDesc& desc) {
  return {dims_of(desc.shape), dnnl_type(desc.type), tag_of(desc)};
}

void check(dnnl_status_t status, const char* what) {
  if (status != dnnl_success) {
    throw_error(ErrorKind::device, "oneDNN: {} failed with status {}", what,
                static_cast<int>(status));
  }
}

// A primitive with its arguments. They are stored as the C API takes them, so executing the
// primitive allocates no memory on our side.
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

// One operand: its outer layout, the primitive's layout, and the reorder between them if they
// differ. Reordered operands are in scratch memory.
struct Operand {
  int argument;
  bool is_output;
  memory::desc outside, inside;
  std::optional<Step> reorder;
  std::size_t scratch_offset = 0;
};

class OneDnnPass final : public ConvolutionPass {
 public:
  OneDnnPass(CpuDevice& device, dnnl::primitive primitive, const memory::desc& scratchpad,
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
      // If a reorder needs a scratchpad, the library manages it; the reorders used here need none.
      o.reorder.emplace(
          dnnl::reorder(dnnl::reorder::primitive_desc(device.engine(), from, device.engine(), to)));
      o.reorder->add_argument(DNNL_ARG_FROM, from, device.engine());
      o.reorder->add_argument(DNNL_ARG_TO, to, device.engine());
      o.scratch_offset = take(o.inside.get_size());
    }
    scratch_bytes_ = offset;
  }

  void run(std::span<void* const> data, std::byte* scratch) override {
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

  [[nodiscard]] std::size_t scratch_bytes() const override { return scratch_bytes_; }

 private:
  CpuDevice* device_;
  Step main_;
  std::vector<Operand> operands_;
  std::size_t scratchpad_offset_ = 0, scratch_bytes_ = 0;
};

}  // namespace

std::unique_ptr<ConvolutionPass> make_onednn_pass(CpuDevice& device, const Conv2dDesc& desc,
                                                  Direction direction, bool is_any) {
  // In bf16 the network's first convolution reads fp32 images, so the type of y decides, not the
  // type of x.
  const memory::data_type type = dnnl_type(desc.y.type);
  const Dims x_dims = dims_of(desc.x.shape), y_dims = dims_of(desc.y.shape);
  const Dims w_dims = {y_dims[1], x_dims[1], dim(desc.kernel.h), dim(desc.kernel.w)};
  const Dims strides(2, dim(desc.stride)), padding{dim(desc.padding.h), dim(desc.padding.w)};

  // Three-channel images are reordered to planar nchw, which oneDNN's first-layer kernels read.
  const bool has_few_channels = x_dims[1] < 8;
  const Tag x_tag = is_any ? Tag::any : has_few_channels ? Tag::nchw : tag_of(desc.x);
  const Tag y_tag = is_any ? Tag::any : tag_of(desc.y);
  const memory::desc x(x_dims, type, x_tag), y(y_dims, type, y_tag);
  const memory::desc w(w_dims, type, Tag::any);
  const memory::desc w_gradient(w_dims, memory::data_type::f32, Tag::any);

  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const dnnl::engine& engine = device.engine();
  ConvolutionArguments arguments{
      desc.is_training ? dnnl::prop_kind::forward_training : dnnl::prop_kind::forward_inference,
      dnnl::algorithm::convolution_direct,
      x,
      w,
      y,
      strides,
      padding};
  const ForwardDesc forward = describe_forward(engine, arguments, attributes);
  const memory::desc x_outside = memory_desc(desc.x), y_outside = memory_desc(desc.y);
  // KRSC in memory, K C R S in oneDNN's logical order.
  const memory::desc w_outside(w_dims, memory::data_type::f32, Tag::ohwi);

  // oneDNN's reference loops are about a hundred times slower than its other implementations, so
  // they are refused.
  const auto is_slow = [is_any](const auto& pd) {
    return !is_any && std::string_view(pd.impl_info_str()).find("ref") != std::string_view::npos;
  };
  const auto make = [&](dnnl::primitive primitive, const memory::desc& scratchpad,
                        std::vector<Operand> operands) {
    return std::make_unique<OneDnnPass>(device, std::move(primitive), scratchpad,
                                        std::move(operands));
  };
  switch (direction) {
    case Direction::forward: {
      if (is_slow(forward)) return nullptr;
      return make(dnnl::convolution_forward(forward), forward.scratchpad_desc(),
                  {{DNNL_ARG_SRC, false, x_outside, forward.src_desc(), {}},
                   {DNNL_ARG_WEIGHTS, false, w_outside, forward.weights_desc(), {}},
                   {DNNL_ARG_DST, true, y_outside, forward.dst_desc(), {}}});
    }
    case Direction::backward_data: {
      const BackwardDataDesc pd = describe_backward_data(engine, arguments, forward, attributes);
      if (is_slow(pd)) return nullptr;
      return make(dnnl::convolution_backward_data(pd), pd.scratchpad_desc(),
                  {{DNNL_ARG_DIFF_DST, false, y_outside, pd.diff_dst_desc(), {}},
                   {DNNL_ARG_WEIGHTS, false, w_outside, pd.weights_desc(), {}},
                   {DNNL_ARG_DIFF_SRC, true, x_outside, pd.diff_src_desc(), {}}});
    }
    case Direction::backward_weights: {
      arguments.weights = w_gradient;
      const BackwardWeightsDesc pd =
          describe_backward_weights(engine, arguments, forward, attributes);
      if (is_slow(pd)) return nullptr;
      return make(dnnl::convolution_backward_weights(pd), pd.scratchpad_desc(),
                  {{DNNL_ARG_SRC, false, x_outside, pd.src_desc(), {}},
                   {DNNL_ARG_DIFF_DST, false, y_outside, pd.diff_dst_desc(), {}},
                   {DNNL_ARG_DIFF_WEIGHTS, true, w_outside, pd.diff_weights_desc(), {}}});
    }
  }
  return nullptr;
}

}  // namespace dp::cpu
