// Encoding and decoding visit the same places, because both derive them from the key in the
// payload's head. Places steps through the k runs of the segment and draws one place in each run.
#include "kernels/codecs/randk.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/base/error.hpp"
#include "kernels/base/random.hpp"
#include "kernels/codecs/cpu_driver.hpp"
#include "kernels/codecs/draws.hpp"
#include "kernels/codecs/payload_errors.hpp"
#include "kernels/codecs/sparse.hpp"

namespace dp {
namespace {

using Key = std::uint64_t;
constexpr std::uint32_t kInfinityBits = 0x7F800000u;

// Generates the places of a segment in order; 1 <= k <= n.
class Places {
 public:
  Places(Key key, std::size_t n, std::size_t k)
      : rng_(key, RandomStream::codec),
        n_(n),
        k_(k),
        length_(n / k),
        left_over_(n % k),
        shift_(static_cast<std::size_t>(rng_.below(n, 0))) {}

  std::size_t next() {
    // The end of run j: floor((j + 1) n / k), counted up without a product or a division.
    std::size_t size = length_;
    fraction_ += left_over_;
    if (fraction_ >= k_) {
      fraction_ -= k_;
      ++size;
    }
    const std::size_t place =
        begin_ + shift_ + static_cast<std::size_t>(rng_.below(size, ++drawn_));
    begin_ += size;
    return place < n_ ? place : place - n_;
  }

 private:
  CounterRng rng_;
  std::size_t n_, k_, length_, left_over_;
  std::size_t shift_;
  std::size_t begin_ = 0, fraction_ = 0;
  std::uint64_t drawn_ = 0;
};

}  // namespace

RandK::RandK(const CodecSpec& codec_spec)
    : Codec(codec_spec),
      ratio_(codec_spec.number("ratio")),
      is_scaled_(codec_spec.has_choice("scale", "on")) {}

std::size_t RandK::max_payload_bytes(std::size_t n) const {
  return sizeof(Key) + sparse::share_of(n, ratio_) * sizeof(float);
}

double RandK::contraction() const { return is_scaled_ ? std::max(1.0, 1.0 / ratio_ - 1.0) : 1.0; }

EncodeResult RandK::encode(std::span<const float> partial, float* residual,
                           std::span<std::byte> payload, const EncodeContext& context) const {
  const std::size_t n = partial.size(), k = sparse::share_of(n, ratio_);
  const std::size_t bytes = max_payload_bytes(n);
  DP_ASSERT(payload.size() >= bytes, "the buffer has {} bytes, but the payload needs {}",
            payload.size(), bytes);
  EncodeContext drawn_in = context;
  if (!is_scaled_) drawn_in.rank = 0;  // the same places on all ranks
  const Key key = Draws::key_of(drawn_in);
  std::memcpy(payload.data(), &key, sizeof key);
  if (n == 0) return {.payload_bytes = bytes};
  std::byte* const values = payload.data() + sizeof key;

  const float scale =
      is_scaled_ ? static_cast<float>(static_cast<double>(n) / static_cast<double>(k)) : 1.0f;
  const std::uint32_t largest = largest_magnitude_bits(partial.data(), residual, n);
  if (largest >= kInfinityBits || !std::isfinite(std::bit_cast<float>(largest) * scale)) {
    std::memset(values, 0, bytes - sizeof key);
    return {.payload_bytes = bytes, .finite = false};
  }
  if (residual != nullptr) {
#pragma omp simd
    for (std::size_t i = 0; i < n; ++i) residual[i] += partial[i];
  }
  Places places(key, n, k);
  for (std::size_t j = 0; j < k; ++j) {
    const std::size_t at = places.next();
    const float v = residual != nullptr ? residual[at] : partial[at];
    const float sent = v * scale;
    std::memcpy(values + j * sizeof sent, &sent, sizeof sent);
    if (residual != nullptr) residual[at] = v - sent;
  }
  return {.payload_bytes = bytes};
}

void RandK::decode(std::span<const std::byte> payload, std::span<float> out) const {
  std::fill(out.begin(), out.end(), 0.0f);
  decode_values<false>(payload, out);
}

void RandK::decode_add(std::span<const std::byte> payload, std::span<float> out) const {
  decode_values<true>(payload, out);
}

template <bool kAdd>
void RandK::decode_values(std::span<const std::byte> payload, std::span<float> out) const {
  const std::size_t n = out.size(), k = sparse::share_of(n, ratio_);
  if (payload.size() != max_payload_bytes(n)) {
    throw_payload_length(spec(), payload.size(), max_payload_bytes(n), n);
  }
  if (n == 0) return;
  Key key = 0;
  std::memcpy(&key, payload.data(), sizeof key);
  Places places(key, n, k);
  for (std::size_t j = 0; j < k; ++j) {
    float v = 0.0f;
    std::memcpy(&v, payload.data() + sizeof key + j * sizeof v, sizeof v);
    if (!std::isfinite(v)) throw_payload_content(spec());
    const std::size_t at = places.next();
    if constexpr (kAdd) {
      out[at] += v;
    } else {
      out[at] = v;
    }
  }
}

}  // namespace dp
