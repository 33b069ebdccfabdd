#include "tests/cuda_on_cpu/fake_convolution.hpp"

#include "kernels/cpu/parallel.hpp"
#include "tests/cuda_on_cpu/fake_libraries.hpp"

namespace dp::cuda_on_cpu {

namespace {

using Ints = std::vector<std::int64_t>;

FakeTensor read_tensor(const FakeDescriptor& d) {
  FakeTensor t;
  t.id = d.one<std::int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID);
  const Ints dims = d.list<std::int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS);
  const Ints strides = d.list<std::int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
  demand(dims.size() == 4 && strides.size() == 4, "a tensor without four dimensions");
  std::copy(dims.begin(), dims.end(), t.dims.begin());
  demand(strides == Ints{dims[1] * dims[2] * dims[3], 1, dims[1] * dims[3], dims[1]},
         "a tensor that is not dense with channels last: this fake has no engine for it");
  const auto type = d.one<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE);
  demand(type == CUDNN_DATA_FLOAT || type == CUDNN_DATA_BFLOAT16, "neither fp32 nor bf16");
  t.type = type == CUDNN_DATA_FLOAT ? DataType::f32 : DataType::bf16;
  return t;
}

struct Names {
  cudnnBackendAttributeName_t convolution, x, w, y, alpha, beta;
};
Names names_of(FakeDirection direction) {
  switch (direction) {
    case FakeDirection::backward_data:
      return {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA};
    case FakeDirection::backward_weights:
      return {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA};
    case FakeDirection::forward:
      break;
  }
  return {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA};
}

std::vector<double> load(const FakeTensor& t, const void* data, bool is_tf32) {
  std::vector<double> values(t.elements());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float value = t.type == DataType::f32 ? static_cast<const float*>(data)[i]
                                                : cpu::load(static_cast<const bf16*>(data)[i]);
    values[i] = static_cast<double>(is_tf32 ? round_to_tf32(value) : value);
  }
  return values;
}
void store(const FakeTensor& t, const std::vector<double>& values, double noise, void* data) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto value = static_cast<float>(values[i] * (1.0 + noise));
    if (t.type == DataType::f32) {
      static_cast<float*>(data)[i] = value;
    } else {
      static_cast<bf16*>(data)[i] = cpu::store<bf16>(value);
    }
  }
}

Shape nhwc(const FakeTensor& t) {
  const auto size = [&](std::size_t i) { return static_cast<std::size_t>(t.dims[i]); };
  return {size(0), size(2), size(3), size(1)};
}

}  // namespace

FakeConvolution::FakeConvolution(const FakeDescriptor& operation) {
  switch (operation.type) {
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
      break;
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
      direction = FakeDirection::backward_data;
      break;
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
      direction = FakeDirection::backward_weights;
      break;
    default:
      refuse("an operation that this fake does not have", CUDNN_STATUS_NOT_SUPPORTED);
  }
  const Names names = names_of(direction);
  const auto tensor = [&](cudnnBackendAttributeName_t name) {
    return read_tensor(*operation.part(name, CUDNN_BACKEND_TENSOR_DESCRIPTOR));
  };
  x = tensor(names.x);
  w = tensor(names.w);
  y = tensor(names.y);
  demand(x.id != w.id && w.id != y.id && x.id != y.id, "two tensors of the same name");
  demand(operation.one<float>(names.alpha) == 1.0f && operation.one<float>(names.beta) == 0.0f,
         "alpha and beta are 1 and 0 here");

  const auto c = operation.part(names.convolution, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  demand(c->one<std::int64_t>(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS) == 2, "not two-dimensional");
  demand(c->one<cudnnDataType_t>(CUDNN_ATTR_CONVOLUTION_COMP_TYPE) == CUDNN_DATA_FLOAT,
         "sums that are not fp32");
  demand(
      c->one<cudnnConvolutionMode_t>(CUDNN_ATTR_CONVOLUTION_CONV_MODE) == CUDNN_CROSS_CORRELATION,
      "a mirrored filter");
  const auto both = [&](cudnnBackendAttributeName_t name) {
    const Ints values = c->list<std::int64_t>(name);
    demand(values.size() == 2 && values[0] == values[1], "unlike values for height and width");
    return values[0];
  };
  const Ints padding = c->list<std::int64_t>(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS);
  demand(padding.size() == 2, "paddings that are not two");
  demand(c->list<std::int64_t>(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS) == padding,
         "paddings that differ");
  const std::int64_t stride = both(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES);
  demand(both(CUDNN_ATTR_CONVOLUTION_DILATIONS) == 1, "a dilation");
  demand(x.dims[0] == y.dims[0] && x.dims[1] == w.dims[1] && y.dims[1] == w.dims[0],
         "tensors whose batches or channels do not fit together");
  for (const std::size_t i : {2u, 3u}) {
    demand(y.dims[i] == (x.dims[i] + 2 * padding[i - 2] - w.dims[i]) / stride + 1,
           "an output of another size than the convolution has");
  }
  const auto extent = [](std::int64_t h, std::int64_t w_) {
    return Extent(static_cast<std::size_t>(h), static_cast<std::size_t>(w_));
  };
  shape = {nhwc(x), nhwc(y), extent(w.dims[2], w.dims[3]), static_cast<std::size_t>(stride),
           extent(padding[0], padding[1])};
}

void FakeConvolution::run(const void* x_data, const void* w_data, const void* y_data, bool is_tf32,
                          double noise) const {
  const auto inputs = [&](const FakeTensor& t, const void* data) { return load(t, data, is_tf32); };
  const auto target = [](const void* data) { return const_cast<void*>(data); };
  if (direction == FakeDirection::forward) {
    const auto xs = inputs(x, x_data), ws = inputs(w, w_data);
    std::vector<double> out(y.elements());
    reference::conv2d_forward(shape, xs.data(), ws.data(), out.data());
    store(y, out, noise, target(y_data));
  } else if (direction == FakeDirection::backward_data) {
    const auto ys = inputs(y, y_data), ws = inputs(w, w_data);
    std::vector<double> out(x.elements());
    reference::conv2d_backward_data(shape, ys.data(), ws.data(), out.data());
    store(x, out, noise, target(x_data));
  } else {
    const auto xs = inputs(x, x_data), ys = inputs(y, y_data);
    std::vector<double> out(w.elements());
    reference::conv2d_backward_weights(shape, xs.data(), ys.data(), out.data());
    store(w, out, noise, target(w_data));
  }
}

}  // namespace dp::cuda_on_cpu
