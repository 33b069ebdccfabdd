// Outline of encode():
//   1. Find the largest magnitude of each block of 256 values and of the segment.
//   2. If dense bits are requested, write a dense payload and stop.
//   3. Choose the step: the one that is set, the segment's own, or a blend of both. If all values
//      are too small to be sent, or one is not finite, write only the step 0.
//   4. Quantise block by block. Nonzero codes go to CodeBlocks, the dropped part to the residual.
//   5. Entropy-code the CodeBlocks; if that takes more than n bytes, write plain codes.
// decode_add() branches by the form byte. Scratch memory is the unused part of the payload buffer:
// head, n bytes of body, n bytes of `room` for the entropy coder, CodeBlocks, the blocks' largest
// magnitudes.
#include "kernels/codecs/ecq.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/base/error.hpp"
#include "kernels/codecs/bf16.hpp"
#include "kernels/codecs/code_layout.hpp"
#include "kernels/codecs/cpu_driver.hpp"
#include "kernels/codecs/entropy_coder.hpp"
#include "kernels/codecs/lane_sum.hpp"
#include "kernels/codecs/linear.hpp"
#include "kernels/codecs/payload_errors.hpp"
#include "kernels/codecs/scaled_blocks.hpp"

namespace dp {

namespace {

constexpr float kLeastStep = 0x1p-100f, kMostStep = 0x1p119f;
constexpr std::size_t kHeadBytes = sizeof(float) + 1;

// write_halves() and write_floats() return the length of the body.
std::size_t write_halves(std::span<const float> partial, float* residual, std::byte* body) {
  code_layout::encode<16, 0>(body, partial.data(), residual, partial.size(),
                             [](float v, std::size_t) { return bfloat16::Format::code_of(v, {}); });
  return partial.size() * sizeof(std::uint16_t);
}

std::size_t write_floats(std::span<const float> partial, float* residual, std::byte* body) {
  const std::size_t n = partial.size();
  if (residual == nullptr) {
    std::memcpy(body, partial.data(), n * sizeof(float));
  } else {
    for (std::size_t i = 0; i < n; ++i) {
      const float v = partial[i] + residual[i];
      std::memcpy(body + i * sizeof v, &v, sizeof v);
      residual[i] = 0.0f;
    }
  }
  return n * sizeof(float);
}

// Returns false if a value is not finite.
bool add_floats(std::span<const std::byte> body, bool is_half, std::span<float> out) {
  const std::size_t n = out.size();
  if (is_half) {
    return code_layout::decode_halves<true>(body.data(), n, out.data(), [](std::uint16_t half) {
             return bfloat16::to_float(half);
           }) < 0x7F80u;
  }
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < n; ++i) {
    float v = 0.0f;
    std::memcpy(&v, body.data() + i * sizeof v, sizeof v);
    largest = std::max(largest, std::bit_cast<std::uint32_t>(v) & 0x7FFFFFFFu);
    out[i] += v;
  }
  return largest < BlockScales::kNonFiniteFrom;
}

constexpr std::size_t kBlock = entropy::kBlock;

std::size_t blocks_of(std::size_t n) { return (n + kBlock - 1) / kBlock; }

// Makes the codes of m <= kBlock values and leaves the dropped part in `residual`, if there is one.
// Adding kRound rounds to whole numbers, because floats of that size are 1 apart.
template <bool kHasResidual>
void quantise_block(const float* partial, float* residual, std::size_t m, float step,
                    std::int8_t* codes) {
  constexpr float kRound = 0x1.8p23f;
  constexpr auto kZero = std::bit_cast<std::int32_t>(kRound);
  constexpr auto kMost = static_cast<std::int32_t>(Ecq::kMostCode);
  const float inverse = 1.0f / step;
#pragma omp simd
  for (std::size_t i = 0; i < m; ++i) {
    const float v = kHasResidual ? partial[i] + residual[i] : partial[i];
    const auto rounded = std::bit_cast<std::int32_t>(v * inverse + kRound);
    const std::int32_t code = std::min(std::max(rounded, kZero - kMost), kZero + kMost);
    codes[i] = static_cast<std::int8_t>(code);
    if (kHasResidual) residual[i] = v - (std::bit_cast<float>(code) - kRound) * step;
  }
}

// At few bits a value, most blocks contain only zeros. A block's largest magnitude shows this
// before any code is computed, because values of up to half a step become zero.
template <bool kHasResidual>
void quantise_blocks(std::span<const float> partial, float* residual, float step,
                     const std::byte* maxima, entropy::CodeBlocks& blocks) {
  const std::size_t n = partial.size();
  const float inverse = 1.0f / step;
  for (std::size_t begin = 0; begin < n; begin += kBlock, maxima += sizeof(float)) {
    const float* const p = partial.data() + begin;
    float* const r = kHasResidual ? residual + begin : nullptr;
    const std::size_t m = std::min(kBlock, n - begin);
    float largest = 0.0f;
    std::memcpy(&largest, maxima, sizeof largest);
    if (largest * inverse <= 0.5f) {
      if constexpr (kHasResidual) {
#pragma omp simd
        for (std::size_t i = 0; i < m; ++i) r[i] += p[i];
      }
      blocks.add_empty();
      continue;
    }
    std::int8_t codes[kBlock];
    if (m == kBlock) {
      quantise_block<kHasResidual>(p, r, kBlock, step, codes);
    } else {
      std::ranges::fill(codes, std::int8_t{0});
      quantise_block<kHasResidual>(p, r, m, step, codes);
    }
    blocks.add(codes);
  }
}

void write_plain(const entropy::CodeBlocks& blocks, std::byte* body) {
  std::memset(body, 0, blocks.codes());
  blocks.for_each_backwards([body](const entropy::CodeBlocks::Block& block, std::size_t b) {
    for (std::size_t j = 0; j < block.count; ++j) {
      body[b * kBlock + block.places[j]] = std::byte{static_cast<std::uint8_t>(block.codes[j])};
    }
    return true;
  });
}

}  // namespace

// ---- the wire format --------------------------------------------------------------------------

Ecq::Ecq(const CodecSpec& codec_spec)
    : Codec(codec_spec),
      step_(static_cast<float>(codec_spec.number("step"))),
      quarters_(codec_spec.whole("blend")) {}

// The buffer must have room for the payload, scratch memory for the entropy coder, and the blocks'
// largest magnitudes.
std::size_t Ecq::max_payload_bytes(std::size_t n) const {
  return kHeadBytes + 2 * n + entropy::CodeBlocks::bytes(n) + blocks_of(n) * sizeof(std::uint32_t);
}

std::size_t Ecq::expected_payload_bytes(std::size_t n) const {
  // The formula is fitted to measurements: steps of 2, 3, 4 and 5 took 0.79, 0.35, 0.12 and 0.061
  // bits per value. Fine steps take 2.05 - log2(step) bits, as for a Gaussian.
  const double step = spec().number("step");
  const double bits =
      std::min(2.05 - std::log2(std::min(step, 4.0)), 0.35 * std::exp(-0.87 * (step - 3.0)));
  return kHeadBytes + static_cast<std::size_t>(std::ceil(static_cast<double>(n) * bits / 8.0));
}

double Ecq::contraction() const { return std::sqrt(1.0 - 0.75 / static_cast<double>(kMostFloats)); }

float Ecq::own_step(Values values, float largest) const {
  const double mean = squares(values, 1.0f / largest) / static_cast<double>(values.size());
  const auto share = static_cast<float>(std::sqrt(mean));  // of `largest`
  return std::clamp(step_ * share, 1.0f / kMostCode, 1.0f) * largest;
}

float Ecq::blended(float set, float own) const {
  // Takes the root of each factor, because the product of both might overflow.
  const float half = std::sqrt(set) * std::sqrt(own);
  return quarters_ == 1 ? std::sqrt(set) * std::sqrt(half) : half;
}

EncodeResult Ecq::encode(std::span<const float> partial, float* residual,
                         std::span<std::byte> payload, const EncodeContext& context) const {
  const Values values = {partial, residual};
  const std::size_t n = values.size();
  DP_ASSERT(n <= kMostFloats, "a segment of {} floats", n);
  DP_ASSERT(payload.size() >= max_payload_bytes(n),
            "the buffer has {} bytes, but a payload may need {}", payload.size(),
            max_payload_bytes(n));
  std::byte* const body = payload.data() + kHeadBytes;
  std::byte* const room = body + n;
  std::byte* const sparse = room + n;
  std::byte* const maxima = sparse + entropy::CodeBlocks::bytes(n);
  const bool is_set = context.quantiser_step > 0.0f && quarters_ == 0 && context.dense_bits == 0;
  const float likely_step =
      is_set ? std::clamp(context.quantiser_step, kLeastStep, kMostStep) : 0.0f;
  const auto [largest_bits, is_quantised] = scan(values, maxima, likely_step);
  const bool is_finite = largest_bits < BlockScales::kNonFiniteFrom;
  const auto write_head = [&](float step, Form form) {
    std::memcpy(payload.data(), &step, sizeof step);
    payload[sizeof step] = std::byte{static_cast<std::uint8_t>(form)};
  };
  if (is_finite && largest_bits > 0 && context.dense_bits != 0) {
    const Form form = context.dense_bits == 4    ? Form::q4
                      : context.dense_bits == 8  ? Form::q8
                      : context.dense_bits == 16 ? Form::bf16
                                                 : Form::fp32;
    const std::size_t bytes = write_dense(form, values, payload.subspan(kHeadBytes), context);
    write_head(1.0f, form);
    return {.payload_bytes = kHeadBytes + bytes, .finite = true};
  }
  float step = 0.0f;
  if (is_finite && largest_bits >= BlockScales::kTiny) {
    const auto largest = std::bit_cast<float>(largest_bits);
    const float set = context.quantiser_step;
    if (set <= 0.0f || quarters_ > 0) step = own_step(values, largest);
    if (set > 0.0f) {
      step = std::max(quarters_ > 0 ? blended(set, step) : set, largest / kMostCode);
    }
    step = std::clamp(step, kLeastStep, kMostStep);
  }
  std::memcpy(payload.data(), &step, sizeof step);
  if (step == 0.0f) {
    // Values too small to be sent stay in the residual.
    if (is_finite && residual != nullptr) keep(values);
    return {.payload_bytes = sizeof step, .finite = is_finite};
  }
  DP_ASSERT(!is_quantised || step == likely_step, "step {} instead of {}", step, likely_step);
  const entropy::CodeBlocks blocks = quantise(values, step, maxima, sparse);
  const auto coded = entropy::encode(blocks, payload.data() + sizeof step, room);
  if (coded) return {.payload_bytes = sizeof step + *coded, .finite = true};
  write_plain(blocks, body);
  write_head(step, Form::plain);
  return {.payload_bytes = kHeadBytes + n, .finite = true};
}

void Ecq::decode(std::span<const std::byte> payload, std::span<float> out) const {
  clear(out);
  decode_add(payload, out);
}

void Ecq::decode_add(std::span<const std::byte> payload, std::span<float> out) const {
  float step = 0.0f;
  if (payload.size() < sizeof step) throw_payload_content(spec());
  std::memcpy(&step, payload.data(), sizeof step);
  if (std::bit_cast<std::uint32_t>(step) == 0 && payload.size() == sizeof step) return;
  // Written so that NaN is refused.
  if (!(step >= kLeastStep && step <= kMostStep) || payload.size() < kHeadBytes) {
    throw_payload_content(spec());
  }
  const std::span<const std::byte> body = payload.subspan(kHeadBytes);
  bool is_valid = false;
  switch (const auto form = Form{std::to_integer<std::uint8_t>(payload[sizeof step])}; form) {
    case Form::plain:
      is_valid = body.size() == out.size();
      if (is_valid) add_plain(body, step, out);
      break;
    case Form::bf16:
    case Form::fp32:
    case Form::q4:
    case Form::q8:
      is_valid = step == 1.0f && add_dense(form, body, out);
      break;
    default:
      is_valid = body.size() < out.size() && add_coded(payload.subspan(sizeof step), step, out);
  }
  if (!is_valid) throw_payload_content(spec());
}

// ---- passes over the host's memory ------------------------------------------------------------

HostEcq::HostEcq(const CodecSpec& codec_spec)
    : Ecq(codec_spec),
      four_(std::make_unique<CpuCodec<linear::Format<4>>>(parse_codec_spec("q4"))),
      eight_(std::make_unique<CpuCodec<linear::Format<8>>>(parse_codec_spec("q8"))) {}

Ecq::Scan HostEcq::scan(Values values, std::byte* maxima, float) const {
  std::uint32_t largest = 0;
  for (std::size_t begin = 0; begin < values.size(); begin += kBlock, maxima += sizeof largest) {
    const std::uint32_t bits =
        largest_magnitude_bits(values.partial.data() + begin,
                               values.residual == nullptr ? nullptr : values.residual + begin,
                               std::min(kBlock, values.size() - begin));
    std::memcpy(maxima, &bits, sizeof bits);
    largest = std::max(largest, bits);
  }
  return {.largest_bits = largest};
}

double HostEcq::squares(Values values, float factor) const {
  const float* const p = values.partial.data();
  const float* const r = values.residual;
  if (r == nullptr) {
    return tiled_sum<float>(values.size(), [=](std::size_t i) {
      const float x = p[i] * factor;
      return x * x;
    });
  }
  return tiled_sum<float>(values.size(), [=](std::size_t i) {
    const float x = (p[i] + r[i]) * factor;
    return x * x;
  });
}

void HostEcq::keep(Values values) const {
  float* const r = values.residual;
  const float* const p = values.partial.data();
#pragma omp simd
  for (std::size_t i = 0; i < values.size(); ++i) r[i] += p[i];
}

entropy::CodeBlocks HostEcq::quantise(Values values, float step, const std::byte* maxima,
                                      std::byte* memory) const {
  entropy::CodeBlocks blocks(memory, values.size());
  if (values.residual != nullptr) {
    quantise_blocks<true>(values.partial, values.residual, step, maxima, blocks);
  } else {
    quantise_blocks<false>(values.partial, nullptr, step, maxima, blocks);
  }
  return blocks;
}

std::size_t HostEcq::write_dense(Form form, Values values, std::span<std::byte> body,
                                 const EncodeContext& context) const {
  switch (form) {
    case Form::q4:
      return four_->encode(values.partial, values.residual, body, context).payload_bytes;
    case Form::q8:
      return eight_->encode(values.partial, values.residual, body, context).payload_bytes;
    case Form::bf16:
      return write_halves(values.partial, values.residual, body.data());
    default:
      return write_floats(values.partial, values.residual, body.data());
  }
}

void HostEcq::clear(std::span<float> out) const { std::ranges::fill(out, 0.0f); }

void HostEcq::add_plain(std::span<const std::byte> body, float step, std::span<float> out) const {
  code_layout::decode<8, true>(body.data(), out.size(), out.data(), [=](std::uint32_t code) {
    return static_cast<float>(static_cast<std::int8_t>(code)) * step;
  });
}

bool HostEcq::add_coded(std::span<const std::byte> coded, float step, std::span<float> out) const {
  return entropy::decode_add(coded, step, out);
}

bool HostEcq::add_dense(Form form, std::span<const std::byte> body, std::span<float> out) const {
  if (form == Form::q4 || form == Form::q8) {
    (form == Form::q4 ? four_ : eight_)->decode_add(body, out);
    return true;
  }
  const bool is_half = form == Form::bf16;
  const std::size_t bytes = out.size() * (is_half ? sizeof(std::uint16_t) : sizeof(float));
  return body.size() == bytes && add_floats(body, is_half, out);
}

}  // namespace dp
