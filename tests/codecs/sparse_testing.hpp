// What the tests of the sparse codecs share beside codec_testing.hpp: specs and bits.
#pragma once

#include <bit>
#include <cstring>
#include <numeric>

#include "kernels/codecs/sparse.hpp"
#include "tests/codecs/codec_testing.hpp"

namespace dp {

using namespace test;
using Bytes = Payload;

// Around the strides of the selection (32, 64), and up to more than a segment.
inline constexpr std::size_t kSizes[] = {0,  1,  2,  3,   7,   31,  32,   33,     63,    64,
                                         65, 95, 97, 127, 129, 999, 4097, 16'383, 70'001};
// With as many values sent as tests look at; codec_test.cpp has the ends of the keys' ranges.
inline const std::string kSpecs[] = {"topk",
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

inline std::uint32_t bits_of(float v) { return std::bit_cast<std::uint32_t>(v); }
inline std::uint32_t magnitude_bits(float v) { return bits_of(v) & 0x7FFFFFFFu; }

inline Bytes bytes_of(std::initializer_list<unsigned> values) {
  Bytes bytes;
  for (const unsigned v : values) bytes.push_back(static_cast<std::byte>(v));
  return bytes;
}

}  // namespace dp
