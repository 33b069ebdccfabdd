// Every codec of the list: round trips within the bound its header derives, the same bytes twice,
// awkward sizes and values, payloads that cannot be, and golden hashes that pin the wire formats.
#include <gtest/gtest.h>
#include <xxhash.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/base/error.hpp"
#include "kernels/base/random.hpp"
#include "kernels/codecs/code_layout.hpp"
#include "kernels/codecs/codec.hpp"
#include "kernels/codecs/fp16.hpp"

namespace dp {
namespace {

constexpr std::size_t kSizes[] = {0, 1, 2, 7, 63, 64, 65, 255, 2047, 2048, 2049, 4096, 100'003};
const char* const kSpecs[] = {"none",
                              "fp16",
                              "bf16",
                              "q16",
                              "q8",
                              "q4",
                              "q2",
                              "q8n",
                              "q4n",
                              "sign",
                              "ternary",
                              "q8:block=8",
                              "q8:block=64",
                              "q4:block=64",
                              "q16:block=200",
                              "q2:block=8",
                              "q2:block=16384",
                              "q4n:block=72",
                              "sign:block=8",
                              "ternary:block=64",
                              "q16:round=stochastic",
                              "q8:round=stochastic",
                              "q4:block=64,round=stochastic",
                              "ternary:round=stochastic"};

std::vector<float> normals(std::size_t n, std::uint64_t seed, double scale = 1.0) {
  const CounterRng rng(seed, RandomStream::test);
  std::vector<float> v(n);
  for (std::size_t i = 0; i < n; ++i) v[i] = static_cast<float>(scale * normal(rng, i));
  return v;
}

std::vector<std::byte> encode(const Codec& codec, std::span<const float> v,
                              float* residual = nullptr, bool* finite = nullptr) {
  constexpr std::size_t kGuard = 64;
  constexpr std::byte kMark{0xA5};
  std::vector<std::byte> payload(codec.max_payload_bytes(v.size()) + kGuard, kMark);
  const EncodeResult result = codec.encode(
      v, residual, std::span(payload).first(codec.max_payload_bytes(v.size())), EncodePlace{});
  for (std::size_t i = payload.size() - kGuard; i < payload.size(); ++i) {
    EXPECT_EQ(payload[i], kMark) << "written behind the payload";
  }
  EXPECT_LE(result.payload_bytes, codec.max_payload_bytes(v.size()));
  if (codec.fixed_payload_bytes(v.size())) {
    EXPECT_EQ(result.payload_bytes, *codec.fixed_payload_bytes(v.size()));
  }
  if (finite != nullptr) {
    *finite = result.finite;
  } else {
    EXPECT_TRUE(result.finite);
  }
  payload.resize(result.payload_bytes);
  return payload;
}

std::vector<float> decode(const Codec& codec, std::span<const std::byte> payload, std::size_t n) {
  std::vector<float> out(n, std::numeric_limits<float>::quiet_NaN());
  codec.decode(payload, out);
  return out;
}

// The error that the codec's header promises for value v of a block with largest magnitude absmax.
double error_bound(const CodecSpec& spec, double v, double absmax) {
  if (spec.name == "none") return 0.0;
  if (spec.name == "fp16") return std::max(std::ldexp(std::abs(v), -11), 0x1p-25);
  if (spec.name == "bf16") return std::max(std::ldexp(std::abs(v), -8), 0x1p-134);
  if (absmax < 0x1p-100) return std::abs(v);
  // One level: its error is at most the largest magnitude (of a whole block: see
  // dense_codec_test.cpp).
  if (spec.name == "q2" || spec.name == "sign" || spec.name == "ternary") return absmax * 1.000001;
  const double levels = spec.name.starts_with("q16")  ? 32767
                        : spec.name.starts_with("q8") ? 127
                                                      : 7;
  if (spec.name.ends_with("n")) {
    const double t = levels * std::sqrt(std::abs(v) / absmax), scale = absmax / (levels * levels);
    return std::min(std::abs(v), (t + 0.5) * scale) + 0x1p-20 * std::abs(v);
  }
  const double half = spec.is_biased() ? 0.5 : 1.0;
  return absmax / levels * half + 0x1p-22 * std::abs(v);
}

// norm(v - decoded) / norm(v)
double relative_error(const std::vector<float>& v, const std::vector<float>& out) {
  double error = 0.0, norm = 0.0;
  for (std::size_t i = 0; i < v.size(); ++i) {
    error += std::pow(static_cast<double>(v[i]) - static_cast<double>(out[i]), 2);
    norm += std::pow(static_cast<double>(v[i]), 2);
  }
  return std::sqrt(error / norm);
}

class EveryCodec : public testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Codec> codec_ = make_codec(parse_codec_spec(GetParam()));

  void expect_round_trip(const std::vector<float>& v) {
    const auto payload = encode(*codec_, v);
    const auto out = decode(*codec_, payload, v.size());
    for (std::size_t begin = 0; begin < v.size(); begin += codec_->block()) {
      const std::size_t end = std::min(begin + codec_->block(), v.size());
      double absmax = 0.0;
      for (std::size_t i = begin; i < end; ++i) absmax = std::max<double>(absmax, std::abs(v[i]));
      for (std::size_t i = begin; i < end; ++i) {
        const double error = std::abs(static_cast<double>(v[i]) - static_cast<double>(out[i]));
        ASSERT_LE(error, error_bound(codec_->spec(), v[i], absmax)) << "at " << i << ": " << v[i];
        if (v[i] == 0.0f && (absmax == 0.0 || codec_->spec().name != "sign")) {
          ASSERT_EQ(out[i], 0.0f);
        }
      }
    }
  }
};

TEST_P(EveryCodec, RoundTripIsWithinTheBound) {
  for (const std::size_t n : kSizes) {
    expect_round_trip(normals(n, n, 1e-3));
    expect_round_trip(normals(n, n + 1, 100.0));
  }
}

TEST_P(EveryCodec, AwkwardValues) {
  const std::size_t n = 3 * 2048 + 5;
  expect_round_trip(std::vector<float>(n, 0.0f));
  expect_round_trip(std::vector<float>(n, -0.0f));
  expect_round_trip(std::vector<float>(n, 1e-41f));            // denormal
  expect_round_trip(std::vector<float>(n, 0x1p-100f));         // the smallest that is not "tiny"
  expect_round_trip(std::vector<float>(n, 0x1.fffffep-101f));  // the largest that is
  auto outlier = normals(n, 3, 1e-3);
  outlier[1000] = 6e4f;
  outlier[n - 1] = -6e4f;
  expect_round_trip(outlier);
}

TEST_P(EveryCodec, LargestMagnitudesStayFinite) {
  if (codec_->spec().name == "fp16") GTEST_SKIP() << "fp16 clamps to 65504; see Fp16.Clamps";
  const float most = codec_->is_lossless() ? std::numeric_limits<float>::max() : 0x1.fffffep125f;
  std::vector<float> v = normals(2048, 4);
  v[5] = most;
  v[6] = -most;
  expect_round_trip(v);
}

TEST_P(EveryCodec, EncodesTheSameBytesTwice) {
  for (const std::size_t n : kSizes) {
    const auto v = normals(n, 7);
    EXPECT_EQ(encode(*codec_, v), encode(*codec_, v));
  }
}

TEST_P(EveryCodec, ResidualIsExactlyWhatWasDropped) {
  if (codec_->is_lossless()) GTEST_SKIP() << "has no residual";
  for (const std::size_t n : kSizes) {
    const auto partial = normals(n, 8), before = normals(n, 9, 0.01);
    std::vector<float> sum(n), residual = before;
    for (std::size_t i = 0; i < n; ++i) sum[i] = partial[i] + before[i];
    const auto payload = encode(*codec_, partial, residual.data());
    // The same payload as that of the sum without feedback.
    EXPECT_EQ(payload, encode(*codec_, sum));
    const auto out = decode(*codec_, payload, n);
    for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(residual[i], sum[i] - out[i]) << i;
  }
}

TEST_P(EveryCodec, DecodeAddAdds) {
  for (const std::size_t n : kSizes) {
    const auto payload = encode(*codec_, normals(n, 10));
    const auto out = decode(*codec_, payload, n), base = normals(n, 11);
    auto sum = base;
    codec_->decode_add(payload, sum);
    for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(sum[i], base[i] + out[i]) << i;
  }
}

TEST_P(EveryCodec, InputThatIsNotFiniteIsZerosAndReported) {
  const float bad[] = {
      std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(),
      std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()};
  for (const std::size_t n : {std::size_t{1}, std::size_t{9}, std::size_t{5000}}) {
    for (const float value : bad) {
      for (const std::size_t at : {std::size_t{0}, n / 2, n - 1}) {
        auto v = normals(n, 12);
        const auto before = normals(n, 13);
        auto residual = before;
        v[at] = value;
        bool finite = true;
        const auto payload = encode(*codec_, v, residual.data(), &finite);
        EXPECT_FALSE(finite);
        EXPECT_EQ(residual, before);
        EXPECT_EQ(decode(*codec_, payload, n), std::vector<float>(n, 0.0f));
      }
    }
  }
  if (codec_->is_lossless()) return;
  // A sum that overflows though both parts are finite.
  std::vector<float> huge(10, std::numeric_limits<float>::max()), residual = huge;
  bool finite = true;
  (void)encode(*codec_, huge, residual.data(), &finite);
  EXPECT_FALSE(finite);
}

TEST_P(EveryCodec, PayloadsThatCannotBeThrow) {
  for (const std::size_t n : {std::size_t{1}, std::size_t{64}, std::size_t{5000}}) {
    auto payload = encode(*codec_, normals(n, 14));
    std::vector<float> out(n);
    const auto expect_throw = [&](std::span<const std::byte> bytes) {
      try {
        codec_->decode(bytes, out);
        ADD_FAILURE() << "decoded " << bytes.size() << " bytes";
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::communication);
      }
      EXPECT_THROW(codec_->decode_add(bytes, out), Error);
    };
    expect_throw(std::span(payload).first(payload.size() - 1));
    expect_throw({});
    auto longer = payload;
    longer.push_back(std::byte{0});
    expect_throw(longer);
    if (codec_->is_lossless()) continue;
    // A NaN as the first scale or value.
    payload[0] = payload[1] = payload[2] = payload[3] = std::byte{0xFF};
    expect_throw(payload);
  }
}

// The input with which a block's error comes nearest to the bound of its header; empty where no
// such input is known.
std::vector<float> worst_block(const CodecSpec& spec) {
  const std::size_t n = spec.block;
  if (spec.name == "sign") {
    std::vector<float> v(n, 0.0f);
    v[n / 2] = -3.0f;
    return v;
  }
  if (spec.name == "q16" || spec.name == "q8" || spec.name == "q4") {
    // One value at the top of the scale, all others half a bin.
    std::vector<float> v(n, 0.5f);
    v[0] = spec.name == "q16" ? 32767.0f : spec.name == "q8" ? 127.0f : 7.0f;
    return v;
  }
  if (spec.name == "q8n" || spec.name == "q4n") {
    // One value at the top, all others in the middle between two squares.
    const float levels = spec.name == "q8n" ? 127.0f : 7.0f;
    double worst = 0.0;
    std::vector<float> v(n);
    for (float k = 0.0f; k < levels; k += 1.0f) {
      const double middle = k * k + k + 0.5, error = k + 0.5;
      const auto others = static_cast<double>(n - 1);
      const double squared =
          others * error * error / (others * middle * middle + std::pow(levels, 4.0));
      if (squared <= worst) continue;
      worst = squared;
      v.assign(n, static_cast<float>(middle));
      v[0] = levels * levels;
    }
    return v;
  }
  return {};
}

TEST_P(EveryCodec, IsAContraction) {
  const double c = codec_->contraction();
  // Rounding at random is none: a small value may become a large one.
  if (!codec_->is_lossless()) {
    EXPECT_EQ(c < 1.0, codec_->spec().is_biased());
  }
  if (c >= 1.0) return;
  const std::size_t n = 4 * codec_->block() * (codec_->block() == 1 ? 2048 : 1);
  std::vector<std::vector<float>> inputs = {normals(n, 15), normals(n, 16, 1e-3)};
  auto heavy = normals(n, 17);
  for (float& v : heavy) v = v * v * v;
  inputs.push_back(heavy);
  // Every number of values sent is as good as any other for one level: sqrt(i) - sqrt(i - 1).
  std::vector<float> slow(n);
  for (std::size_t i = 0; i < n; ++i) {
    const auto place = static_cast<double>(i % std::max<std::size_t>(codec_->block(), 2));
    slow[i] = static_cast<float>(std::sqrt(place + 1.0) - std::sqrt(place));
  }
  inputs.push_back(slow);
  // One value of a block and nothing else.
  std::vector<float> lonely(n, 0.0f);
  for (std::size_t i = 0; i < n; i += std::max<std::size_t>(codec_->block(), 2)) lonely[i] = 7.0f;
  inputs.push_back(lonely);
  for (const auto& v : inputs) {
    EXPECT_LE(relative_error(v, decode(*codec_, encode(*codec_, v), v.size())), c);
  }
  const auto worst = worst_block(codec_->spec());
  if (worst.empty()) return;
  const double error = relative_error(worst, decode(*codec_, encode(*codec_, worst), worst.size()));
  EXPECT_LE(error, c);
  // Reached within a tenth: the stated c is no idle bound.
  EXPECT_GE(error, 0.9 * c);
}

TEST_P(EveryCodec, MeanErrorOfSymmetricInputIsZero) {
  const std::size_t n = 400'000;
  const auto v = normals(n, 18);
  const auto out = decode(*codec_, encode(*codec_, v), n);
  double sum = 0.0, squares = 0.0;
  for (std::size_t i = 0; i < n; ++i) {
    const double error = static_cast<double>(out[i]) - static_cast<double>(v[i]);
    sum += error;
    squares += error * error;
  }
  // 4 standard errors; the input is fixed, so this either holds or not.
  EXPECT_LE(std::abs(sum), 4.0 * std::sqrt(squares));
}

std::string test_name(const testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}
INSTANTIATE_TEST_SUITE_P(Codecs, EveryCodec, testing::ValuesIn(kSpecs), test_name);

// The wire formats may not drift: a hash over the payload of a fixed input that depends on nothing
// but integer arithmetic and one exact scaling.
TEST(WireFormat, IsPinned) {
  std::vector<float> v(5003);
  const CounterRng rng(1, RandomStream::test);
  for (std::size_t i = 0; i < v.size(); ++i) {
    v[i] = static_cast<float>(static_cast<std::int32_t>(rng.bits(i) >> 40) - (1 << 23)) * 0x1p-30f;
  }
  const auto hash = [&](const char* spec) {
    const auto payload = encode(*make_codec(parse_codec_spec(spec)), v);
    return XXH3_64bits(payload.data(), payload.size());
  };
  EXPECT_EQ(hash("none"), 0xC64B780418050924u);
  EXPECT_EQ(hash("fp16"), 0x4A326B4433C3DA10u);
  EXPECT_EQ(hash("q16"), 0x61AB386D4152E556u);
  EXPECT_EQ(hash("q8"), 0xE9E9873E19F49514u);
  EXPECT_EQ(hash("q4"), 0xD7ACA13E406772F7u);
  EXPECT_EQ(hash("bf16"), 0x02B867D84051DC68u);
  EXPECT_EQ(hash("q2"), 0x27A1F4469A92BDF6u);
  EXPECT_EQ(hash("q8n"), 0xA4567EB451DA2FB3u);
  EXPECT_EQ(hash("q4n"), 0x1E5EDDA270480A08u);
  EXPECT_EQ(hash("sign"), 0x028E6EBAF50E37E2u);
  EXPECT_EQ(hash("ternary"), 0xA76588F6F6BF0E63u);
  EXPECT_EQ(hash("q16:round=stochastic"), 0xA5B56C1C8B84E6E8u);
  EXPECT_EQ(hash("q8:round=stochastic"), 0xA60E5B98E5121EAAu);
  EXPECT_EQ(hash("q4:round=stochastic"), 0x6418327F83E31DC6u);
  EXPECT_EQ(hash("ternary:round=stochastic"), 0x699CFC22E3FB55E0u);
  EXPECT_EQ(hash("q4:block=64"), 0x3F274FD2B6242161u);
}

TEST(WireFormat, OfFourBitsIsAsDocumented) {
  const std::vector<float> v = {7.0f, -7.0f, 1.0f, 0.0f, -3.0f};
  const auto payload = encode(*make_codec(parse_codec_spec("q4")), v);
  const std::vector<int> want = {0,
                                 0,
                                 0x80,
                                 0x3F,  // scale 1.0f
                                 8 + 7 + (8 << 4),
                                 8 - 7 + ((8 - 3) << 4),
                                 8 + 1 + (8 << 4)};
  ASSERT_EQ(payload.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i)
    EXPECT_EQ(std::to_integer<int>(payload[i]), want[i]);
}

// Every width of codes: what is packed is unpacked, each index once, nothing is written behind, and
// missing codes are padding.
template <unsigned kBits>
void expect_packs() {
  constexpr std::uint32_t kMask = (1u << kBits) - 1, kPadding = kMask & 0xAu;
  for (std::size_t m = 0; m < 70; ++m) {
    const auto code = [&](std::size_t i) {
      return static_cast<std::uint32_t>(i * 2654435761u >> 7) & kMask;
    };
    const std::size_t size = code_layout::bytes(m, kBits);
    EXPECT_EQ(size, kBits < 8 ? (m + 8 / kBits - 1) / (8 / kBits) : m * kBits / 8);
    std::vector<std::byte> codes(size + 8, std::byte{0x5C});
    code_layout::pack<kBits, kPadding>(codes.data(), m, code);
    for (std::size_t i = size; i < codes.size(); ++i) EXPECT_EQ(codes[i], std::byte{0x5C});
    std::vector<int> times(m);
    code_layout::unpack<kBits>(codes.data(), m, [&](std::size_t i, std::uint32_t got) {
      EXPECT_EQ(got & kMask, code(i)) << i << " of " << m;
      ++times[i];
    });
    EXPECT_EQ(times, std::vector<int>(m, 1));
    if (kBits == 4 && m % 2 == 1) {
      EXPECT_EQ(codes[size - 1] >> 4, std::byte{kPadding});
    }
  }
}
TEST(CodeLayout, PacksCodesOfEveryWidth) {
  expect_packs<1>();
  expect_packs<2>();
  expect_packs<4>();
  expect_packs<8>();
  expect_packs<16>();
}

TEST(Fp16, Clamps) {
  const auto codec = make_codec(parse_codec_spec("fp16"));
  const std::vector<float> v = {65504.0f, 65520.0f, 1e30f, -1e30f, -65505.0f};
  EXPECT_EQ(decode(*codec, encode(*codec, v), v.size()),
            (std::vector<float>{65504.0f, 65504.0f, 65504.0f, -65504.0f, -65504.0f}));
}

// Every half precision number, its neighbours and the ties between them: the vector path of the
// codec (with the processor's instruction) and the integer arithmetic give the same bits.
TEST(Fp16, InstructionAndArithmeticAgree) {
  const auto codec = make_codec(parse_codec_spec("fp16:ef=off"));
  std::vector<float> v;
  for (std::uint32_t half = 0; half < 0x7C00u; ++half) {
    const float exact = fp16::to_float(static_cast<std::uint16_t>(half));
    const float next = fp16::to_float(static_cast<std::uint16_t>(half + 1));
    const float tie = half == 0x7BFFu ? 65519.0f : 0.5f * (exact + next);
    for (const float x : {exact, tie, std::nextafter(tie, 0.0f), std::nextafter(tie, 1e9f)}) {
      v.push_back(x);
      v.push_back(-x);
    }
  }
  const auto payload = encode(*codec, v);
  for (std::size_t i = 0; i < v.size(); ++i) {
    std::uint16_t half = 0;
    std::memcpy(&half, payload.data() + 2 * i, 2);
    ASSERT_EQ(half, fp16::from_float(fp16::clamp(v[i]))) << v[i];
  }
}

}  // namespace
}  // namespace dp
