// Encoding: the residual becomes v = partial + residual, and the codec's cut selects the values to
// send. Their places are collected as u32 in the memory for the values. One pass then goes through
// the places in order. It replaces each place by its value, and writes the gap before that value as
// a Rice code behind the memory for the values. The rest of the value (zero, or the rounding error
// of bf16) stays in the residual. Values in bf16 need only half of their memory, so the gaps are
// moved up to follow the last value.
//
// Decoding reads a gap and a value at a time.
#include "kernels/codecs/sparse.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/base/error.hpp"
#include "kernels/codecs/bf16.hpp"
#include "kernels/codecs/cpu_driver.hpp"
#include "kernels/codecs/payload_errors.hpp"

namespace dp {
namespace {

using sparse::most_gap_bits;
using sparse::rice_parameter;

constexpr std::uint32_t kInfinity = 0x7F800000u;
constexpr std::size_t kCountBytes = sizeof(std::uint32_t);
// BitWriter stores whole words.
constexpr std::size_t kSlackBytes = sizeof(std::uint64_t);

constexpr std::uint32_t magnitude_bits(std::uint32_t bits) { return bits & 0x7FFFFFFFu; }

void add(const float* values, float* sums, std::size_t n) {
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) sums[i] += values[i];
}

// Writes bits, the first lowest. Needs kSlackBytes of room after the last byte.
class BitWriter {
 public:
  explicit BitWriter(std::byte* out) : begin_(out), out_(out) {}

  void put_rice(std::size_t value, unsigned parameter) {
    std::size_t zeros = value >> parameter;
    for (; zeros > kMostZeros; zeros -= kMostZeros) put(0, kMostZeros);
    const std::uint64_t low = value & ((std::uint64_t{1} << parameter) - 1);
    const std::uint64_t end_and_low = low << 1 | 1u;
    if (zeros + parameter < kMostBits) {
      put(end_and_low << zeros, static_cast<unsigned>(zeros) + parameter + 1);
    } else {
      put(0, static_cast<unsigned>(zeros));
      put(end_and_low, parameter + 1);
    }
  }
  // Returns the number of bytes written.
  std::size_t finish() { return static_cast<std::size_t>(out_ - begin_) + (bits_ > 0 ? 1 : 0); }

 private:
  static constexpr unsigned kMostZeros = 32;
  // The most bits that one put() can take. Up to 7 earlier bits may still be in the 64-bit word.
  static constexpr unsigned kMostBits = 56;

  // count <= kMostBits.
  void put(std::uint64_t value, unsigned count) {
    word_ |= value << bits_;
    bits_ += count;
    std::memcpy(out_, &word_, sizeof word_);
    const unsigned whole = bits_ / 8;
    out_ += whole;
    word_ >>= 8 * whole;
    bits_ -= 8 * whole;
  }

  std::byte* begin_;
  std::byte* out_;
  std::uint64_t word_ = 0;
  unsigned bits_ = 0;
};

// Reads the bits written by BitWriter, and never beyond the end.
class BitReader {
 public:
  explicit BitReader(std::span<const std::byte> in)
      : next_(in.data()), end_(in.data() + in.size()) {}

  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  // Reads one Rice code. Returns kNone if its value is above `most` or the input ends first.
  std::size_t get_rice(unsigned parameter, std::size_t most) {
    if (bits_ < kFull) refill();
    auto zeros = static_cast<std::size_t>(std::countr_zero(word_));  // 64 if no bit is set
    if (zeros + 1 + parameter <= bits_) {
      drop(static_cast<unsigned>(zeros));
    } else {
      // The code is longer than the bits at hand, or the input has ended.
      for (zeros = 0;; refill()) {
        if (bits_ == 0) return kNone;
        const unsigned run = std::min(static_cast<unsigned>(std::countr_zero(word_)), bits_);
        zeros += run;
        const bool has_ended = run < bits_;
        drop(run);
        if (has_ended) break;
      }
      refill();
      if (bits_ < 1 + parameter || zeros > most >> parameter) return kNone;
    }
    const std::size_t low = (word_ >> 1) & ((std::uint64_t{1} << parameter) - 1);
    drop(1 + parameter);
    const std::size_t value = zeros << parameter | low;
    return value <= most ? value : kNone;
  }
  // Whether nothing is left except zero bits in the last byte.
  [[nodiscard]] bool is_at_end() const {
    return next_ == end_ && bits_ < 8 && (word_ & ((1u << bits_) - 1)) == 0;
  }

 private:
  static constexpr unsigned kFull = 56;

  // Afterwards at least kFull bits are available, unless the input has fewer left.
  void refill() {
    if (end_ - next_ >= static_cast<std::ptrdiff_t>(sizeof word_)) {
      // The word may already hold some of the next input bits above bits_. OR with the same bits
      // does not change them.
      std::uint64_t more = 0;
      std::memcpy(&more, next_, sizeof more);
      word_ |= more << bits_;
      const unsigned bytes = (63 - bits_) / 8;
      next_ += bytes;
      bits_ += 8 * bytes;
    } else {
      for (; bits_ < kFull && next_ != end_; ++next_, bits_ += 8) {
        word_ |= std::to_integer<std::uint64_t>(*next_) << bits_;
      }
    }
  }
  void drop(unsigned count) {
    word_ >>= count;
    bits_ -= count;
  }

  const std::byte* next_;
  const std::byte* end_;
  std::uint64_t word_ = 0;  // the first bit lowest
  unsigned bits_ = 0;       // how many bits of word_ are valid, at most 63
};

}  // namespace

namespace sparse {

unsigned rice_parameter(std::size_t n, std::size_t count) {
  const auto bits = [&](unsigned b) { return count * (b + 1) + ((n - count) >> b); };
  // Raising b by one adds `count` bits and halves the last term. The saving shrinks as b grows, so
  // the first b without a saving is the minimum.
  unsigned b = 0;
  while (bits(b + 1) < bits(b)) ++b;
  return b;
}

std::size_t most_gap_bits(std::size_t n, std::size_t count) {
  if (count == 0) return 0;
  const unsigned b = rice_parameter(n, count);
  return count * (b + 1) + ((n - count) >> b);
}

double expected_gap_bits(std::size_t n, std::size_t count) {
  if (count == 0) return 0.0;
  // A gap g has probability p (1 - p)^g. q is the probability that a gap is at least 2^b. If a gap
  // is at least k 2^b, q is also the probability that the gap is at least (k + 1) 2^b.
  const unsigned b = rice_parameter(n, count);
  const double p = static_cast<double>(count) / static_cast<double>(n);
  const double q = std::pow(1.0 - p, std::exp2(b));
  return static_cast<double>(count) * (b + 1.0 + q / (1.0 - q));
}

std::size_t share_of(std::size_t n, double ratio) {
  const double share = std::ceil(static_cast<double>(n) * ratio - 1e-6);
  return std::clamp(static_cast<std::size_t>(std::max(share, 1.0)), std::size_t{n > 0}, n);
}

}  // namespace sparse

SparseCodec::SparseCodec(const CodecSpec& codec_spec)
    : Codec(codec_spec),
      is_bf16_(codec_spec.settings.contains("value") && codec_spec.has_choice("value", "bf16")) {}

std::size_t SparseCodec::max_payload_bytes(std::size_t n) const {
  // Both terms grow with the count, so the largest count gives the most bytes.
  const std::size_t most = most_sent(n);
  return kCountBytes + most * sizeof(float) + (most_gap_bits(n, most) + 7) / 8 + kSlackBytes;
}

std::size_t SparseCodec::expected_payload_bytes(std::size_t n) const {
  const std::size_t count = expected_sent(n);
  const double gap_bytes = std::ceil(sparse::expected_gap_bits(n, count) / 8.0);
  return kCountBytes + count * (is_bf16_ ? 2 : 4) + static_cast<std::size_t>(gap_bytes);
}

EncodeResult SparseCodec::encode(std::span<const float> partial, float* residual,
                                 std::span<std::byte> payload, const EncodeContext&) const {
  const std::size_t n = partial.size();
  DP_ASSERT(payload.size() >= max_payload_bytes(n),
            "the buffer has {} bytes, but a payload may need {}", payload.size(),
            max_payload_bytes(n));
  DP_ASSERT(n <= 0xFFFFFFFFu, "a segment of {} floats", n);
  std::byte* const values = payload.data() + kCountBytes;
  const bool is_finite = largest_magnitude_bits(partial.data(), residual, n) < kInfinity;
  const float* const v = residual != nullptr ? residual : partial.data();
  std::size_t count = 0;
  if (is_finite && n > 0) {
    // From here on the residual holds v. The loop below subtracts the values that are sent.
    if (residual != nullptr) add(partial.data(), residual, n);
    sparse::Cut chosen = cut(v, n);
    if (chosen.least < least_sent()) chosen = {.least = least_sent()};
    count = sparse::collect(v, n, chosen, values);
  }
  const auto sent = static_cast<std::uint32_t>(count);
  std::memcpy(payload.data(), &sent, sizeof sent);
  if (count == 0) return {.payload_bytes = kCountBytes, .finite = is_finite};
  DP_ASSERT(count <= most_sent(n), "{} of {} values would be sent, more than planned", count, n);

  // Replace each place by its value. A bf16 value is half as long as a place, so bf16 values are
  // packed, and the gaps are moved up behind the last value.
  const std::size_t value_bytes = is_bf16_ ? 2 : 4;
  BitWriter gaps(values + count * sizeof(float));
  const unsigned parameter = rice_parameter(n, count);
  std::size_t next = 0;  // the first place that may follow
  for (std::size_t j = 0; j < count; ++j) {
    std::uint32_t place = 0;
    std::memcpy(&place, values + j * sizeof place, sizeof place);
    gaps.put_rice(place - next, parameter);
    next = std::size_t{place} + 1;
    float rest = 0.0f;
    if (is_bf16_) {
      const std::uint16_t half = bfloat16::from_float(v[place]);
      std::memcpy(values + j * sizeof half, &half, sizeof half);
      rest = v[place] - bfloat16::to_float(half);
    } else {
      std::memcpy(values + j * sizeof(float), &v[place], sizeof(float));
    }
    if (residual != nullptr) residual[place] = rest;
  }
  const std::size_t gap_bytes = gaps.finish();
  if (is_bf16_) {
    std::memmove(values + count * value_bytes, values + count * sizeof(float), gap_bytes);
  }
  return {.payload_bytes = kCountBytes + count * value_bytes + gap_bytes, .finite = true};
}

void SparseCodec::decode(std::span<const std::byte> payload, std::span<float> out) const {
  std::fill(out.begin(), out.end(), 0.0f);
  decode_values<false>(payload, out);
}

void SparseCodec::decode_add(std::span<const std::byte> payload, std::span<float> out) const {
  decode_values<true>(payload, out);
}

template <bool kAdd>
void SparseCodec::decode_values(std::span<const std::byte> payload, std::span<float> out) const {
  const std::size_t n = out.size(), value_bytes = is_bf16_ ? 2 : 4;
  std::uint32_t count = 0;
  if (payload.size() < sizeof count) throw_payload_content(spec());
  std::memcpy(&count, payload.data(), sizeof count);
  if (count > most_sent(n) || payload.size() < kCountBytes + count * value_bytes) {
    throw_payload_content(spec());
  }
  const std::byte* const values = payload.data() + kCountBytes;
  BitReader gaps(payload.subspan(kCountBytes + count * value_bytes));
  const unsigned parameter = count > 0 ? rice_parameter(n, count) : 0;
  // Rounding to bf16 keeps the order, so every value in the payload is at least the rounded
  // `least`.
  std::uint32_t least = least_sent();
  if (is_bf16_) least = bfloat16::from_float(std::bit_cast<float>(least)) * 0x10000u;
  std::size_t next = 0;
  for (std::size_t j = 0; j < count; ++j) {
    // This place must leave room for the places that follow.
    const std::size_t gap = gaps.get_rice(parameter, n - next - (count - j));
    // Each branch copies a fixed number of bytes. A copy of a variable length would be made byte by
    // byte.
    std::uint32_t bits = 0;
    if (is_bf16_) {
      std::uint16_t half = 0;
      std::memcpy(&half, values + j * sizeof half, sizeof half);
      bits = std::uint32_t{half} << 16;
    } else {
      std::memcpy(&bits, values + j * sizeof bits, sizeof bits);
    }
    const std::uint32_t magnitude = magnitude_bits(bits);
    if (gap == BitReader::kNone || magnitude < least || magnitude >= kInfinity) {
      throw_payload_content(spec());
    }
    const std::size_t place = next + gap;
    if constexpr (kAdd) {
      out[place] += std::bit_cast<float>(bits);
    } else {
      out[place] = std::bit_cast<float>(bits);
    }
    next = place + 1;
  }
  if (!gaps.is_at_end()) throw_payload_content(spec());
}

}  // namespace dp
