// One interface for the convolution descriptors of oneDNN's v2 and v3 APIs: v3 has no separate
// operation descriptors. Everything else that dptrain uses is alike in both.
#pragma once

#include <oneapi/dnnl/dnnl.hpp>

namespace dp::cpu {

struct ConvolutionArguments {
  dnnl::prop_kind propagation;  // of the forward pass
  dnnl::algorithm algorithm;
  dnnl::memory::desc x, weights, y;
  dnnl::memory::dims strides, padding;
};

using ForwardDesc = dnnl::convolution_forward::primitive_desc;
using BackwardDataDesc = dnnl::convolution_backward_data::primitive_desc;
using BackwardWeightsDesc = dnnl::convolution_backward_weights::primitive_desc;

// The functions below throw dnnl::error if oneDNN has no implementation for the arguments.
#if DNNL_VERSION_MAJOR >= 3

inline ForwardDesc describe_forward(const dnnl::engine& engine, const ConvolutionArguments& a,
                                    const dnnl::primitive_attr& attributes) {
  return {engine, a.propagation, a.algorithm, a.x,       a.weights,
          a.y,    a.strides,     a.padding,   a.padding, attributes};
}
inline BackwardDataDesc describe_backward_data(const dnnl::engine& engine,
                                               const ConvolutionArguments& a,
                                               const ForwardDesc& hint,
                                               const dnnl::primitive_attr& attributes) {
  return {engine,    a.algorithm, a.x,       a.weights, a.y,
          a.strides, a.padding,   a.padding, hint,      attributes};
}
inline BackwardWeightsDesc describe_backward_weights(const dnnl::engine& engine,
                                                     const ConvolutionArguments& a,
                                                     const ForwardDesc& hint,
                                                     const dnnl::primitive_attr& attributes) {
  return {engine,    a.algorithm, a.x,       a.weights, a.y,
          a.strides, a.padding,   a.padding, hint,      attributes};
}

#else

inline ForwardDesc describe_forward(const dnnl::engine& engine, const ConvolutionArguments& a,
                                    const dnnl::primitive_attr& attributes) {
  const dnnl::convolution_forward::desc desc(a.propagation, a.algorithm, a.x, a.weights, a.y,
                                             a.strides, a.padding, a.padding);
  return {desc, attributes, engine};
}
inline BackwardDataDesc describe_backward_data(const dnnl::engine& engine,
                                               const ConvolutionArguments& a,
                                               const ForwardDesc& hint,
                                               const dnnl::primitive_attr& attributes) {
  const dnnl::convolution_backward_data::desc desc(a.algorithm, a.x, a.weights, a.y, a.strides,
                                                   a.padding, a.padding);
  return {desc, attributes, engine, hint};
}
inline BackwardWeightsDesc describe_backward_weights(const dnnl::engine& engine,
                                                     const ConvolutionArguments& a,
                                                     const ForwardDesc& hint,
                                                     const dnnl::primitive_attr& attributes) {
  const dnnl::convolution_backward_weights::desc desc(a.algorithm, a.x, a.weights, a.y, a.strides,
                                                      a.padding, a.padding);
  return {desc, attributes, engine, hint};
}

#endif

}  // namespace dp::cpu
