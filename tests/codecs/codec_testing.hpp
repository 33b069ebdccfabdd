// What the tests of codecs share: specs of every codec of the list, input, encoding and decoding
// with guards, norms.
//
// A new row in codec_rows.hpp is tested without a word here: what a test must know of a codec it
// takes from the interface (codec.hpp), and specs come from the table of keys.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/error.hpp"
#include "kernels/base/random.hpp"
#include "kernels/codecs/codec.hpp"

namespace dp::test {

// ---- specs --------------------------------------------------------------------------------------

// The values of a key that are tried, but for the preset: every other choice; the ends of a range,
// or `blocks` where it is about blocks.
inline std::vector<std::string> tried_values(const CodecParameter& parameter,
                                             std::span<const std::size_t> blocks) {
  std::vector<std::string> values;
  if (parameter.kind == CodecParameter::Kind::choice) {
    std::string_view rest = parameter.choices;
    for (double place = 0.0; !rest.empty(); place += 1.0) {
      const std::size_t end = std::min(rest.find('|'), rest.size());
      if (place != parameter.preset) values.emplace_back(rest.substr(0, end));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  } else if (parameter.key == "block") {
    for (const std::size_t block : blocks) values.push_back(fmt::format("{}", block));
  } else {
    if (!parameter.is_above_least) values.push_back(fmt::format("{}", parameter.least));
    values.push_back(fmt::format("{}", parameter.most));
  }
  return values;
}

inline constexpr std::size_t kTriedBlocks[] = {kMinBlock, 64, 200, kMaxBlock};

// Every codec with payloads: as it is by default, with each tried value of each key, with each
// choice in small blocks, and with feedback as it is not by default.
inline std::vector<std::string> all_codec_specs(
    std::span<const std::size_t> blocks = kTriedBlocks) {
  std::vector<std::string> specs;
  for (const CodecInfo& info : codec_list()) {
    if (info.is_exchange) continue;
    specs.emplace_back(info.name);
    for (const CodecParameter& parameter : info.parameters) {
      if (parameter.key == "ef") continue;
      for (const std::string& value : tried_values(parameter, blocks)) {
        const std::string spec = fmt::format("{}:{}={}", info.name, parameter.key, value);
        specs.push_back(spec);
        if (parameter.kind == CodecParameter::Kind::choice && info.find("block") != nullptr) {
          specs.push_back(spec + ",block=64");
        }
        if (info.can_feedback() && !parse_codec_spec(spec).is_biased()) {
          specs.push_back(spec + ",ef=force");
        }
      }
    }
    if (info.can_feedback()) specs.push_back(fmt::format("{}:ef=off", info.name));
  }
  return specs;
}

// The specs of all_codec_specs whose codec `is_wanted` accepts.
template <class IsWanted>
std::vector<std::string> codec_specs_where(IsWanted is_wanted,
                                           std::span<const std::size_t> blocks = kTriedBlocks) {
  std::vector<std::string> specs = all_codec_specs(blocks);
  std::erase_if(specs, [&](const std::string& spec) {
    return !is_wanted(*make_codec(parse_codec_spec(spec)));
  });
  return specs;
}

inline std::string codec_test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}

// ---- input --------------------------------------------------------------------------------------

// Normal deviates times `scale`. Drawing takes longer than most of what is tested: they are parts
// of one array.
inline std::vector<float> normals(std::size_t n, std::uint64_t seed, double scale = 1.0) {
  static const std::vector<double> pool = [] {
    const CounterRng rng(1, RandomStream::test);
    std::vector<double> values(1'000'003);  // a prime, so that no block fits it
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = normal(rng, i);
    return values;
  }();
  const std::size_t first = CounterRng(seed, RandomStream::test).below(pool.size(), 0);
  std::vector<float> v(n);
  for (std::size_t i = 0; i < n; ++i) {
    v[i] = static_cast<float>(scale * pool[(first + i) % pool.size()]);
  }
  return v;
}

// Heavy tails, runs of zeros, many equal values, denormals, and some far above all.
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

// ---- encoding and decoding ----------------------------------------------------------------------

using Payload = std::vector<std::byte>;

// Fails where something is written behind the payload, its length is not what the codec promises,
// or, unless `finite` asks for it, the input was not finite.
inline Payload encode(const Codec& codec, std::span<const float> v, float* residual = nullptr,
                      bool* finite = nullptr, const EncodeContext& context = {}) {
  constexpr std::size_t kGuard = 64;
  constexpr std::byte kMark{0xA5};
  const std::size_t most = codec.max_payload_bytes(v.size());
  Payload payload(most + kGuard, kMark);
  const EncodeResult result = codec.encode(v, residual, std::span(payload).first(most), context);
  EXPECT_EQ(std::count(payload.end() - kGuard, payload.end(), kMark), std::ptrdiff_t{kGuard})
      << "written behind the payload";
  EXPECT_LE(result.payload_bytes, most);
  EXPECT_EQ(result.payload_bytes,
            codec.fixed_payload_bytes(v.size()).value_or(result.payload_bytes));
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

inline std::vector<float> round_trip(const Codec& codec, std::span<const float> v) {
  return decode(codec, encode(codec, v), v.size());
}

// From memory of exactly the payload's size, so that a sanitiser sees its end.
inline void expect_throws(const Codec& codec, std::span<const std::byte> payload, std::size_t n) {
  const std::unique_ptr<std::byte[]> exact(new std::byte[payload.size()]);
  std::copy(payload.begin(), payload.end(), exact.get());
  const std::span<const std::byte> bytes(exact.get(), payload.size());
  std::vector<float> out(n);
  try {
    codec.decode(bytes, out);
    ADD_FAILURE() << "decoded " << payload.size() << " bytes";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::communication);
  }
  EXPECT_THROW(codec.decode_add(bytes, out), Error);
}

// ---- errors -------------------------------------------------------------------------------------

inline double squares(std::span<const float> v) {
  double sum = 0.0;
  for (const float x : v) sum += static_cast<double>(x) * static_cast<double>(x);
  return sum;
}
inline double squared_error(std::span<const float> v, std::span<const float> out) {
  double sum = 0.0;
  for (std::size_t i = 0; i < v.size(); ++i) {
    const double error = static_cast<double>(v[i]) - static_cast<double>(out[i]);
    sum += error * error;
  }
  return sum;
}
inline double relative_error(std::span<const float> v, std::span<const float> out) {
  return std::sqrt(squared_error(v, out) / squares(v));
}

}  // namespace dp::test
