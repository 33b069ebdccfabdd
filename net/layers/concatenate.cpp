#include "net/layers/concatenate.hpp"

#include "kernels/base/error.hpp"
#include "kernels/concatenate.hpp"

namespace dp::net {

Shape ConcatenateLayer::output_shape(std::span<const Shape> inputs) const {
  Shape y = inputs[0];
  for (const Shape& x : inputs.subspan(1)) {
    DP_ASSERT(x.n == y.n && x.h == y.h && x.w == y.w,
              "inputs of {}x{} and {}x{} pixels cannot be concatenated", y.h, y.w, x.h, x.w);
    y.c += x.c;
  }
  return y;
}

TensorDesc ConcatenateLayer::plan(const PlanContext& context, std::span<const TensorDesc> inputs) {
  device_ = &context.device;
  std::vector<Shape> shapes;
  for (const TensorDesc& x : inputs) shapes.push_back(x.shape);
  const Shape y = output_shape(shapes);
  return {y, inputs[0].type, context.device.channel_block(y.c)};
}

void ConcatenateLayer::forward(const ForwardArguments& a) { concatenate(*device_, a.x, a.y); }

void ConcatenateLayer::backward(const BackwardArguments& a) { split(*device_, a.dy, a.dx); }

}  // namespace dp::net
