// Outline of encode():
//   1. Find the largest magnitude of each block of 256 values and of the segment (BlockMaxima).
//   2. If dense bits are requested, write a dense payload and stop.
//   3. Choose the step: the one that is set, the segment's own, or a blend of both. If all values
//      are too small to be sent, or one is not finite, write only the step 0.
//   4. Quantise block by block. Nonzero codes go to CodeBlocks, the dropped part to the residual.
//   5. Entropy-code the CodeBlocks; if that takes more than n bytes, write plain codes.
// decode_add() branches by the form byte. Scratch memory is the unused part of the payload buffer:
// head, n bytes of body, n bytes of `room` for the entropy coder, CodeBlocks, BlockMaxima.
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

constexpr float kMostCode = 127.0f;
constexpr float kLeastStep = 0x1p-100f, kMostStep = 0x1p119f;
constexpr std::size_t kHeadBytes = sizeof(float) + 1;
enum class Form : std::uint8_t { plain = 0, bf16 = 2, fp32 = 3, q4 = 4, q8 = 5 };

void write_head(std::byte* payload, float step, Form form) {
  std::memcpy(payload, &step, sizeof step);
  payload[sizeof step] = std::byte{static_cast<std::uint8_t>(form)};
}

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

// The largest magnitude of partial + residual in each block, stored as a bit pattern. The memory
// need not be aligned.
class BlockMaxima {
 public:
  BlockMaxima(std::span<const float> partial, const float* residual, std::byte* memory)
      : memory_(memory) {
    const std::size_t n = partial.size();
    for (std::size_t begin = 0; begin < n; begin += kBlock, memory += sizeof largest_) {
      const std::uint32_t bits = largest_magnitude_bits(
          partial.data() + begin, residual == nullptr ? nullptr : residual + begin,
          std::min(kBlock, n - begin));
      std::memcpy(memory, &bits, sizeof bits);
      largest_ = std::max(largest_, bits);
    }
  }

  [[nodiscard]] std::uint32_t largest() const { return largest_; }
  [[nodiscard]] float of(std::size_t block) const {
    float magnitude = 0.0f;
    std::memcpy(&magnitude, memory_ + block * sizeof magnitude, sizeof magnitude);
    return magnitude;
  }

 private:
  const std::byte* memory_;
  std::uint32_t largest_ = 0;
};

// Makes the codes of m <= kBlock values and leaves the dropped part in `residual`, if there is one.
// Adding kRound rounds to whole numbers, because floats of that size are 1 apart.
template <bool kHasResidual>
void quantise_block(const float* partial, float* residual, std::size_t m, float step,
                    std::int8_t* codes) {
  constexpr float kRound = 0x1.8p23f;
  constexpr auto kZero = std::bit_cast<std::int32_t>(kRound);
  constexpr auto kMost = static_cast<std::int32_t>(kMostCode);
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
entropy::CodeBlocks quantise(std::span<const float> partial, float* residual, float step,
                             const BlockMaxima& maxima, std::byte* memory) {
  const std::size_t n = partial.size();
  const float inverse = 1.0f / step;
  entropy::CodeBlocks blocks(memory, n);
  for (std::size_t begin = 0; begin < n; begin += kBlock) {
    const float* const p = partial.data() + begin;
    float* const r = kHasResidual ? residual + begin : nullptr;
    const std::size_t m = std::min(kBlock, n - begin);
    if (maxima.of(begin / kBlock) * inverse <= 0.5f) {
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
  return blocks;
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

Ecq::Ecq(const CodecSpec& codec_spec)
    : Codec(codec_spec),
      step_(static_cast<float>(codec_spec.number("step"))),
      quarters_(codec_spec.whole("blend")),
      four_(std::make_unique<CpuCodec<linear::Format<4>>>(parse_codec_spec("q4"))),
      eight_(std::make_unique<CpuCodec<linear::Format<8>>>(parse_codec_spec("q8"))) {}

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

float Ecq::own_step(const float* partial, const float* residual, std::size_t n,
                    float largest) const {
  const float inverse = 1.0f / largest;
  constexpr std::size_t kTile = 2048;
  double sum = 0;
  for (std::size_t begin = 0; begin < n; begin += kTile) {
    const float* p = partial + begin;
    const float* r = residual == nullptr ? nullptr : residual + begin;
    const std::size_t m = std::min(kTile, n - begin);
    sum += r == nullptr ? lane_sum<float>(m,
                                          [=](std::size_t i) {
                                            const float x = p[i] * inverse;
                                            return x * x;
                                          })
                        : lane_sum<float>(m, [=](std::size_t i) {
                            const float x = (p[i] + r[i]) * inverse;
                            return x * x;
                          });
  }
  const auto share = static_cast<float>(std::sqrt(sum / static_cast<double>(n)));  // of `largest`
  return std::clamp(step_ * share, 1.0f / kMostCode, 1.0f) * largest;
}

float Ecq::blended(float set, float own) const {
  // Takes the root of each factor, because the product of both might overflow.
  const float half = std::sqrt(set) * std::sqrt(own);
  return quarters_ == 1 ? std::sqrt(set) * std::sqrt(half) : half;
}

// Returns the length of the payload.
std::size_t Ecq::write_dense(std::span<const float> partial, float* residual,
                             std::span<std::byte> payload, const EncodeContext& context) const {
  const std::span<std::byte> body = payload.subspan(kHeadBytes);
  const auto write = [&](Form form, std::size_t bytes) {
    write_head(payload.data(), 1.0f, form);
    return kHeadBytes + bytes;
  };
  switch (context.dense_bits) {
    case 4:
      return write(Form::q4, four_->encode(partial, residual, body, context).payload_bytes);
    case 8:
      return write(Form::q8, eight_->encode(partial, residual, body, context).payload_bytes);
    case 16:
      return write(Form::bf16, write_halves(partial, residual, body.data()));
    default:
      return write(Form::fp32, write_floats(partial, residual, body.data()));
  }
}

EncodeResult Ecq::encode(std::span<const float> partial, float* residual,
                         std::span<std::byte> payload, const EncodeContext& context) const {
  const std::size_t n = partial.size();
  DP_ASSERT(n <= kMostFloats, "a segment of {} floats", n);
  DP_ASSERT(payload.size() >= max_payload_bytes(n),
            "the buffer has {} bytes, but a payload may need {}", payload.size(),
            max_payload_bytes(n));
  std::byte* const body = payload.data() + kHeadBytes;
  std::byte* const room = body + n;
  std::byte* const sparse = room + n;
  const BlockMaxima maxima(partial, residual, sparse + entropy::CodeBlocks::bytes(n));
  const std::uint32_t largest_bits = maxima.largest();
  const bool is_finite = largest_bits < BlockScales::kNonFiniteFrom;
  if (is_finite && largest_bits > 0 && context.dense_bits != 0) {
    return {.payload_bytes = write_dense(partial, residual, payload, context), .finite = true};
  }
  float step = 0.0f;
  if (is_finite && largest_bits >= BlockScales::kTiny) {
    const float largest = std::bit_cast<float>(largest_bits);
    const float set = context.quantiser_step;
    if (set <= 0.0f || quarters_ > 0) step = own_step(partial.data(), residual, n, largest);
    if (set > 0.0f) {
      step = std::max(quarters_ > 0 ? blended(set, step) : set, largest / kMostCode);
    }
    step = std::clamp(step, kLeastStep, kMostStep);
  }
  const auto write_step = [&](float value) {
    std::memcpy(payload.data(), &value, sizeof value);
    return EncodeResult{.payload_bytes = sizeof value, .finite = is_finite};
  };
  if (step == 0.0f) {
    // Values too small to be sent stay in the residual.
    if (is_finite && residual != nullptr) {
#pragma omp simd
      for (std::size_t i = 0; i < n; ++i) residual[i] += partial[i];
    }
    return write_step(0.0f);
  }

  const entropy::CodeBlocks blocks = residual != nullptr
                                         ? quantise<true>(partial, residual, step, maxima, sparse)
                                         : quantise<false>(partial, nullptr, step, maxima, sparse);
  std::memcpy(payload.data(), &step, sizeof step);
  const auto coded = entropy::encode(blocks, payload.data() + sizeof step, room);
  if (coded) return {.payload_bytes = sizeof step + *coded, .finite = true};
  write_plain(blocks, body);
  write_head(payload.data(), step, Form::plain);
  return {.payload_bytes = kHeadBytes + n, .finite = true};
}

void Ecq::decode(std::span<const std::byte> payload, std::span<float> out) const {
  std::fill(out.begin(), out.end(), 0.0f);
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
  const auto form = std::to_integer<std::uint8_t>(payload[sizeof step]);
  const std::span<const std::byte> body = payload.subspan(kHeadBytes);
  if (form == static_cast<std::uint8_t>(Form::plain)) {
    if (body.size() != out.size()) throw_payload_content(spec());
    code_layout::decode<8, true>(body.data(), out.size(), out.data(), [=](std::uint32_t code) {
      return static_cast<float>(static_cast<std::int8_t>(code)) * step;
    });
    return;
  }
  const bool is_half = form == static_cast<std::uint8_t>(Form::bf16);
  if (is_half || form == static_cast<std::uint8_t>(Form::fp32)) {
    const std::size_t bytes = out.size() * (is_half ? sizeof(std::uint16_t) : sizeof(float));
    if (step != 1.0f || body.size() != bytes || !add_floats(body, is_half, out)) {
      throw_payload_content(spec());
    }
    return;
  }
  const bool is_four = form == static_cast<std::uint8_t>(Form::q4);
  if (is_four || form == static_cast<std::uint8_t>(Form::q8)) {
    if (step != 1.0f) throw_payload_content(spec());
    (is_four ? four_ : eight_)->decode_add(body, out);
    return;
  }
  if (body.size() >= out.size() || !entropy::decode_add(payload.subspan(sizeof step), step, out)) {
    throw_payload_content(spec());
  }
}

}  // namespace dp
