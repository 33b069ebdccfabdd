// What tests of the sparse codecs share: their specs, awkward input, encoding and decoding.
#pragma once

#include <gtest/gtest.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/base/error.hpp"
#include "kernels/base/random.hpp"
#include "kernels/codecs/codec.hpp"
#include "kernels/codecs/sparse.hpp"

namespace dp {

using Bytes = std::vector<std::byte>;

// Around the strides of the selection (32, 64), and up to more than a segment.
inline constexpr std::size_t kSizes[] = {0,  1,  2,  3,   7,   31,  32,   33,     63,    64,
                                         65, 95, 97, 127, 129, 999, 4097, 16'383, 70'001};
inline constexpr const char* kSpecs[] = {"topk",
                                         "topk:ratio=0.001",
                                         "topk:ratio=0.25",
                                         "topk:ratio=1",
                                         "topk:ratio=0.05,value=bf16",
                                         "threshold:alpha=1",
                                         "threshold:alpha=2.5",
                                         "threshold:alpha=1e-20",
                                         "threshold:alpha=0.3,value=bf16",
                                         "dgc:ratio=0.02",
                                         "randk",
                                         "randk:ratio=0.3",
                                         "randk:ratio=1",
                                         "randk:ratio=0.2,scale=on",
                                         "randk:ratio=0.2,scale=on,ef=force"};

inline std::vector<float> normals(std::size_t n, std::uint64_t seed, double scale = 1.0) {
  const CounterRng rng(seed, RandomStream::test);
  std::vector<float> v(n);
  for (std::size_t i = 0; i < n; ++i) v[i] = static_cast<float>(scale * normal(rng, i));
  return v;
}

// Heavy tails, runs of zeros and many equal values.
inline std::vector<float> awkward(std::size_t n, std::uint64_t seed) {
  const CounterRng rng(seed, RandomStream::test, 1);
  std::vector<float> v = normals(n, seed);
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint64_t draw = rng.below(8, i);
    if (draw == 0) v[i] = 0.0f;
    if (draw == 1) v[i] = i % 2 == 0 ? 0.5f : -0.5f;
    if (draw == 2) v[i] = v[i] * v[i] * v[i];
    if (draw == 3) v[i] *= 1e-40f;  // a denormal
    if (draw == 4 && i % 50 == 0) v[i] *= 1e30f;
  }
  return v;
}

inline Bytes encode(const Codec& codec, std::span<const float> v, float* residual = nullptr,
                    bool* finite = nullptr, const EncodePlace& place = {}) {
  constexpr std::size_t kGuard = 64;
  constexpr std::byte kMark{0xA5};
  const std::size_t most = codec.max_payload_bytes(v.size());
  Bytes payload(most + kGuard, kMark);
  const EncodeResult result = codec.encode(v, residual, std::span(payload).first(most), place);
  for (std::size_t i = most; i < payload.size(); ++i) {
    EXPECT_EQ(payload[i], kMark) << "written behind the payload";
  }
  EXPECT_LE(result.payload_bytes, most);
  if (finite != nullptr) {
    *finite = result.finite;
  } else {
    EXPECT_TRUE(result.finite);
  }
  payload.resize(result.payload_bytes);
  return payload;
}

inline std::vector<float> decode(const Codec& codec, std::span<const std::byte> payload,
                                 std::size_t n) {
  std::vector<float> out(n, std::numeric_limits<float>::quiet_NaN());
  codec.decode(payload, out);
  return out;
}

inline std::uint32_t bits_of(float v) { return std::bit_cast<std::uint32_t>(v); }
inline std::uint32_t magnitude_bits(float v) { return bits_of(v) & 0x7FFFFFFFu; }

inline Bytes bytes_of(std::initializer_list<unsigned> values) {
  Bytes bytes;
  for (const unsigned v : values) bytes.push_back(static_cast<std::byte>(v));
  return bytes;
}

inline void expect_throws(const Codec& codec, std::span<const std::byte> payload, std::size_t n) {
  std::vector<float> out(n);
  try {
    codec.decode(payload, out);
    ADD_FAILURE() << "decoded " << payload.size() << " bytes";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::communication);
  }
  EXPECT_THROW(codec.decode_add(payload, out), Error);
}

inline double norm(std::span<const float> v) {
  double squares = 0.0;
  for (const float x : v) squares += static_cast<double>(x) * static_cast<double>(x);
  return std::sqrt(squares);
}

inline double norm_of_difference(std::span<const float> a, std::span<const float> b) {
  double squares = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    squares += d * d;
  }
  return std::sqrt(squares);
}

}  // namespace dp
