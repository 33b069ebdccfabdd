// The wire formats may not drift: a hash over the payload of a fixed input, for every codec of the
// list, and one example byte by byte. (More examples: dense_codec_test.cpp, topk_test.cpp.)
#include <xxhash.h>

#include <set>

#include "tests/codecs/codec_testing.hpp"

namespace dp {
namespace {

using namespace test;

struct Pinned {
  const char* spec;
  std::uint64_t hash;
  EncodeContext context = {};
};
constexpr EncodeContext kContext{.seed = 1, .step = 2, .bucket = 3, .rank = 4, .offset = 5};

// A codec that is added gets its row here: the test fails and names the hash.
constexpr Pinned kPinned[] = {
    {"none", 0xC64B780418050924u},
    {"fp16", 0x4A326B4433C3DA10u},
    {"bf16", 0x02B867D84051DC68u},
    {"q16", 0x61AB386D4152E556u},
    {"q8", 0xE9E9873E19F49514u},
    {"q4", 0xD7ACA13E406772F7u},
    {"q4:block=64", 0x3F274FD2B6242161u},
    {"q16:round=stochastic", 0xA5B56C1C8B84E6E8u},
    {"q8:round=stochastic", 0xA60E5B98E5121EAAu},
    {"q4:round=stochastic", 0x6418327F83E31DC6u},
    {"q2", 0x27A1F4469A92BDF6u},
    {"q8n", 0xA4567EB451DA2FB3u},
    {"q4n", 0x1E5EDDA270480A08u},
    {"fp8", 0xB520D168F871694Bu},
    {"sign", 0x028E6EBAF50E37E2u},
    {"ternary", 0xA76588F6F6BF0E63u},
    {"ternary:round=stochastic", 0x699CFC22E3FB55E0u},
    {"ecq:step=16",
     0xD74A51A9B957928Au,
     {.quantiser_step = 0x1.fcp-7f}},  // few codes that are not zero
    {"ecq:step=16", 0x5E02AA4505B26AA0u, {.quantiser_step = 0x1.6p-7f}},  // two states
    {"ecq:step=3", 0x9B522C69C0FE342Bu},                                  // lanes
    {"ecq:step=0.02", 0xFAC0A4EE66586784u},
    {"ecq", 0xB462E7779289B7C5u, {.dense_bits = 4}},
    {"ecq", 0x466C8CA38D6CEDFBu, {.dense_bits = 8}},
    {"ecq", 0x24CA6EBB528AE8A7u, {.dense_bits = 16}},
    {"ecq", 0x6A4F488A1C3B2660u, {.dense_bits = 32}},
    {"threshold:alpha=0.007", 0x670F0000FDC144F3u},
    {"topk:ratio=0.01", 0x469367D05CC2889Eu},
    {"topk:ratio=0.25,value=bf16", 0x0B29031614033E0Fu},
    {"dgc:ratio=0.01", 0x469367D05CC2889Eu},
    {"randk:ratio=0.01", 0x141A64FA2DD6ACB0u, kContext},
    {"randk:ratio=0.01,scale=on", 0x209A4A0DEE199D84u, kContext},
};

// Input that depends on nothing but integer arithmetic and one exact scaling.
std::uint64_t hash_of(std::string_view spec, const EncodeContext& context) {
  std::vector<float> v(5003);
  const CounterRng rng(1, RandomStream::test);
  for (std::size_t i = 0; i < v.size(); ++i) {
    v[i] = static_cast<float>(static_cast<std::int32_t>(rng.bits(i) >> 40) - (1 << 23)) * 0x1p-30f;
  }
  const auto payload = encode(*make_codec(parse_codec_spec(spec)), v, nullptr, nullptr, context);
  return XXH3_64bits(payload.data(), payload.size());
}

TEST(WireFormat, IsPinned) {
  for (const Pinned& pinned : kPinned) {
    const std::uint64_t hash = hash_of(pinned.spec, pinned.context);
    EXPECT_EQ(hash, pinned.hash) << fmt::format("{}, {} dense bits, has 0x{:016X}u", pinned.spec,
                                                pinned.context.dense_bits, hash);
  }
}

// Every codec with payloads, and every spec of one that rounds at random.
TEST(WireFormat, OfEveryCodecIsPinned) {
  std::set<std::string, std::less<>> pinned;
  for (const Pinned& row : kPinned) {
    const CodecSpec spec = parse_codec_spec(row.spec);
    pinned.insert(fmt::format("{} {}", spec.name, spec.is_biased()));
  }
  for (const CodecInfo& info : codec_list()) {
    if (info.is_exchange) continue;
    std::vector<std::string> specs = {std::string(info.name)};
    if (!info.unbiased_when.empty()) {
      specs.push_back(fmt::format("{}:{}", info.name, info.unbiased_when));
    }
    for (const std::string& spec : specs) {
      EXPECT_TRUE(
          pinned.contains(fmt::format("{} {}", info.name, parse_codec_spec(spec).is_biased())))
          << fmt::format("{{\"{}\", 0x{:016X}u}}, is missing in kPinned", spec, hash_of(spec, {}));
    }
  }
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

}  // namespace
}  // namespace dp
