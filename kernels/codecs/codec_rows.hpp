// The list of codecs, one row each. To add a codec, write its header and add a row here; then
// tests/codecs/wire_format_test.cpp asks for a hash that pins its wire format.
//
// Only two files include this one: codec_list.cpp makes the CPU's codecs from the rows, and
// cuda_codecs.cu the GPU's. A format without the functions that the GPU's driver needs (linear.hpp
// lists them) has kOnGpu = false in its row. The codec then still works with a GPU, on gradients in
// host memory.
#pragma once

#include <tuple>

#include "kernels/codecs/bf16.hpp"
#include "kernels/codecs/codec.hpp"
#include "kernels/codecs/ecq.hpp"
#include "kernels/codecs/fp16.hpp"
#include "kernels/codecs/fp8.hpp"
#include "kernels/codecs/linear.hpp"
#include "kernels/codecs/none.hpp"
#include "kernels/codecs/nonlinear.hpp"
#include "kernels/codecs/randk.hpp"
#include "kernels/codecs/sign.hpp"
#include "kernels/codecs/ternary.hpp"
#include "kernels/codecs/threshold.hpp"
#include "kernels/codecs/topk.hpp"
#include "kernels/codecs/two_bit.hpp"

namespace dp {

// The host's driver for formats made of blocks (cpu_driver.hpp).
template <class Format>
class CpuCodec;

// `Driver<F>` is the host's codec. Like F, it is constructed from a CodecSpec.
template <class F, bool kHasGpuForm = true, template <class> class Driver = CpuCodec>
struct CodecRow {
  using HostCodec = Driver<F>;
  using Format = F;
  static constexpr bool kOnGpu = kHasGpuForm;
  CodecInfo info;
};
// A codec implemented as its own class (codec.hpp). If it has a GPU form, that is a class, too
// (cuda_codecs.cu).
template <class C, bool kHasGpuForm = false>
struct ClassRow {
  using HostCodec = C;
  static constexpr bool kOnGpu = kHasGpuForm;
  CodecInfo info;
};
// A codec implemented as an exchange: it has a spec, but no format.
struct ExchangeRow {
  using HostCodec = void;
  static constexpr bool kOnGpu = false;
  CodecInfo info;
};

inline constexpr CodecParameter kFeedbackOnly[] = {feedback_parameter()};
inline constexpr CodecParameter kBlockAndFeedback[] = {block_parameter(2048), feedback_parameter()};
inline constexpr CodecParameter kBlockRoundAndFeedback[] = {
    block_parameter(2048),
    choice_parameter("round", "round to the nearest value, or at random so that the mean is exact",
                     "nearest|stochastic"),
    feedback_parameter()};

constexpr CodecParameter ratio_parameter(double preset) {
  return number_parameter("ratio", "fraction of a segment's values that is sent", preset, 1e-5,
                          1.0);
}
constexpr CodecParameter sparse_value_parameter() {
  return choice_parameter("value", "the type in which values are sent", "fp32|bf16");
}
inline constexpr CodecParameter kTopKParameters[] = {
    ratio_parameter(0.01), sparse_value_parameter(), feedback_parameter()};
inline constexpr CodecParameter kDgcParameters[] = {
    ratio_parameter(0.001),
    number_parameter("momentum",
                     "momentum of the accumulated velocity; the optimiser's momentum is 0", 0.9,
                     0.0, 0.9999),
    number_parameter("clip", "norm to which gradients are clipped, over all ranks; 0: no clipping",
                     0.0, 0.0, 1e6),
    feedback_parameter()};
inline constexpr CodecParameter kPowerSgdParameters[] = {
    whole_parameter("rank", "columns of each of the two factors", 4, 1, 64), feedback_parameter()};
inline constexpr CodecParameter kEcqParameters[] = {
    number_parameter("step", "distance between neighbouring values, in units of a segment's RMS",
                     3.0, 0.02, 16.0),
    number_parameter("bits",
                     "mean bits per value over the run; sets one step size for all tensors "
                     "(step= then applies to the first training step only); 0: use step=",
                     0.0, 0.0, 8.0),
    number_parameter("error",
                     "relative error of the values that a rank encodes, residual included; sets "
                     "the step size instead of bits=; 0: off",
                     0.0, 0.0, 0.95),
    choice_parameter("blend",
                     "weight of a segment's own step in a geometric mean with the common step",
                     "0|0.25|0.5"),
    number_parameter(
        "growth",
        "limit of norm(residual) / norm(gradient), above which more than bits= are sent; with "
        "a velocity of momentum m the limit is 1 / (1 - m) times this; in rounds of H steps "
        "it is 1 / (1 - m^H) times this; 0: no limit",
        8.0, 0.0, 1000.0),
    choice_parameter("velocity",
                     "on: velocities of SGD, or Adam's steps, are sent instead of gradients, so "
                     "that feedback applies after the momentum; masked: like on, but the velocity "
                     "of a value restarts from 0 when the value is delivered",
                     "off|on|masked"),
    feedback_parameter()};
inline constexpr std::string_view kEcqSamples[] = {"ecq", "ecq:bits=0.35", "ecq:bits=1.2"};
inline constexpr CodecParameter kRandKParameters[] = {
    ratio_parameter(0.01),
    choice_parameter("scale", "multiply values by n/k, which makes the codec unbiased", "off|on"),
    feedback_parameter()};
inline constexpr CodecParameter kThresholdParameters[] = {
    number_parameter("alpha", "least magnitude of a value that is sent", 0.001, 0.0, 1e6, true),
    sparse_value_parameter(), feedback_parameter()};

// Describes a codec that has one scale per block and error feedback, and rounds to nearest.
constexpr CodecInfo block_info(std::string_view name, std::string_view help) {
  return {.name = name, .help = help, .is_biased = true, .parameters = kBlockAndFeedback};
}
// Describes a codec of the same kind that can also round at random.
constexpr CodecInfo rounding_info(std::string_view name, std::string_view help) {
  CodecInfo info = block_info(name, help);
  info.unbiased_when = "round=stochastic";
  info.parameters = kBlockRoundAndFeedback;
  return info;
}

inline constexpr std::tuple kCodecRows{
    CodecRow<none::Format>{{.name = "none", .help = "fp32 as it is"}},
    CodecRow<fp16::Format>{{.name = "fp16",
                            .help = "half precision, clamped to 65504",
                            .is_biased = true,
                            .parameters = kFeedbackOnly}},
    CodecRow<bfloat16::Format>{{.name = "bf16",
                                .help = "the upper half of fp32, rounded",
                                .is_biased = true,
                                .parameters = kFeedbackOnly}},
    CodecRow<linear::Format<16>>{rounding_info("q16", "16-bit linear bins, one scale per block")},
    CodecRow<linear::Format<8>>{rounding_info("q8", "8-bit linear bins, one scale per block")},
    CodecRow<linear::Format<4>>{rounding_info("q4", "4-bit linear bins, one scale per block")},
    CodecRow<two_bit::Format, false>{
        block_info("q2", "each value becomes -s, 0 or s, with the best s per block")},
    CodecRow<nonlinear::Format<8>>{block_info("q8n", "8-bit bins, denser near zero")},
    CodecRow<nonlinear::Format<4>>{block_info("q4n", "4-bit bins, denser near zero")},
    CodecRow<fp8::Format>{block_info("fp8", "8-bit floats (E4M3), one scale per block")},
    CodecRow<sign::Format, false>{block_info("sign", "signs and a mean magnitude per block")},
    CodecRow<ternary::Format, false>{
        rounding_info("ternary", "as q2, but five values share a byte")},
    ClassRow<HostEcq, true>{{.name = "ecq",
                             .help = "multiples of a large step, most of them zero, entropy-coded",
                             .is_biased = true,
                             .parameters = kEcqParameters,
                             .small_codec = "q8:block=256",
                             .topology = "direct",
                             .samples = kEcqSamples}},
    ClassRow<Threshold>{{.name = "threshold",
                         .help = "values above a magnitude; the rest accumulates in the residual",
                         .is_biased = true,
                         .parameters = kThresholdParameters}},
    ClassRow<TopK>{{.name = "topk",
                    .help = "a segment's values of largest magnitude, with their places",
                    .is_biased = true,
                    .parameters = kTopKParameters}},
    ClassRow<TopK>{{.name = "dgc",
                    .help = "topk of a velocity, with momentum correction, clipping, masking",
                    .is_biased = true,
                    .parameters = kDgcParameters}},
    ClassRow<RandK>{{.name = "randk",
                     .help = "values at random places",
                     .is_biased = true,
                     .unbiased_when = "scale=on",
                     .parameters = kRandKParameters}},
    ExchangeRow{{.name = "powersgd",
                 .help = "matrices as two factors of low rank, summed in fp32",
                 .is_biased = true,
                 .parameters = kPowerSgdParameters,
                 .is_exchange = true}},
};

// Calls use(row) for the row with that name; false if there is none.
template <class Use>
bool with_codec_row(std::string_view name, Use use) {
  return std::apply(
      [&](const auto&... row) { return ((row.info.name == name && (use(row), true)) || ...); },
      kCodecRows);
}

}  // namespace dp
