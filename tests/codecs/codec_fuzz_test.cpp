// Payloads that were damaged on the way: whatever the bytes, a decoder throws Error(communication)
// or gives floats, and touches nothing but its payload and its output (AddressSanitizer watches,
// and guards stand around the output). Every codec of the list with a payload is tried.
//
// DP_FUZZ_MUTATIONS says how many damaged payloads there are in all; default 40,000. The test
// preset "asan" sets a million.
#include <cstdlib>
#include <cstring>

#include "tests/codecs/codec_testing.hpp"
#include "tests/codecs/gradients.hpp"

namespace dp {
namespace {

using namespace test;

std::size_t mutations() {
  const char* text = std::getenv("DP_FUZZ_MUTATIONS");
  return text == nullptr ? 40'000 : static_cast<std::size_t>(std::strtoull(text, nullptr, 10));
}

// Random numbers in a row.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : rng_(seed, RandomStream::test) {}
  std::size_t below(std::size_t n) {
    return n == 0 ? 0 : static_cast<std::size_t>(rng_.below(n, position_++));
  }
  std::byte byte() { return static_cast<std::byte>(below(256)); }

 private:
  CounterRng rng_;
  std::uint64_t position_ = 0;
};

// What a network, or a fault in a sender, may do to a payload.
void damage(std::vector<std::byte>& payload, Dice& dice) {
  const std::size_t n = payload.size();
  switch (dice.below(7)) {
    case 0:  // one bit
      if (n > 0) payload[dice.below(n)] ^= std::byte{1} << static_cast<int>(dice.below(8));
      break;
    case 1:  // some bytes
      for (std::size_t i = 0; n > 0 && i < 1 + dice.below(8); ++i) {
        payload[dice.below(n)] = dice.byte();
      }
      break;
    case 2:  // a word at the front, where counts and scales stand
      for (std::size_t i = 0; i < std::min<std::size_t>(n, 4); ++i) payload[i] = dice.byte();
      break;
    case 3:
      payload.resize(dice.below(n + 1));
      break;
    case 4:  // longer
      for (std::size_t i = 0, more = 1 + dice.below(40); i < more; ++i) {
        payload.push_back(dice.byte());
      }
      break;
    case 5: {  // a part of it at another place
      const std::size_t count = dice.below(n + 1), from = dice.below(n - count + 1);
      if (count > 0) {
        std::memmove(payload.data() + dice.below(n - count + 1), payload.data() + from, count);
      }
      break;
    }
    default:  // an extreme value
      const std::byte extreme = dice.below(2) == 0 ? std::byte{0xFF} : std::byte{0x80};
      for (std::size_t i = dice.below(n), end = std::min(n, i + 1 + dice.below(9)); i < end; ++i) {
        payload[i] = extreme;
      }
  }
}

// Where a quantiser's step may be set, it is every second time: from few large codes to many small
// ones; and now and then the values are sent dense.
EncodeContext context(std::uint64_t number, const std::vector<float>& v, Dice& dice) {
  EncodeContext context{.step = number};
  float largest = 0.0f;
  for (const float value : v) largest = std::max(largest, std::abs(value));
  if (number % 2 == 1) context.quantiser_step = largest / static_cast<float>(1 + dice.below(126));
  constexpr unsigned kDenseBits[] = {4, 8, 16, 32};
  if (number % 16 == 15) context.dense_bits = kDenseBits[dice.below(4)];
  return context;
}

// Decodes, from memory of exactly the payload's size; true where it was taken.
bool is_taken(const Codec& codec, const std::vector<std::byte>& payload, std::size_t n, bool adds) {
  constexpr std::size_t kGuard = 16;
  constexpr float kMark = -12345.5f;
  const std::unique_ptr<std::byte[]> exact(new std::byte[payload.size()]);
  std::copy(payload.begin(), payload.end(), exact.get());
  std::vector<float> out(n + 2 * kGuard, kMark);
  std::fill_n(out.begin() + kGuard, n, 0.0f);
  const std::span<const std::byte> bytes(exact.get(), payload.size());
  const std::span<float> values(out.data() + kGuard, n);
  bool taken = true;
  try {
    adds ? codec.decode_add(bytes, values) : codec.decode(bytes, values);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::communication) << error.what();
    taken = false;
  }
  for (std::size_t i = 0; i < kGuard; ++i) {
    EXPECT_EQ(out[i], kMark);
    EXPECT_EQ(out[kGuard + n + i], kMark);
  }
  if (taken &&
      !std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); })) {
    ADD_FAILURE() << "a value that is not finite was taken";
  }
  return taken;
}

TEST(CodecFuzz, DamagedPayloadsAreRefusedOrHarmless) {
  const auto specs = all_codec_specs();
  // Drawing takes longer than decoding: inputs are parts of one array.
  const auto pool = heavy_tailed_gradient(1 << 14, 1);
  const std::size_t each = mutations() / specs.size() + 1;
  for (std::size_t s = 0; s < specs.size(); ++s) {
    SCOPED_TRACE(specs[s]);
    const auto codec = make_codec(parse_codec_spec(specs[s]));
    Dice dice(s);
    std::size_t refused = 0;
    for (std::size_t i = 0; i < each && !testing::Test::HasFailure(); ++i) {
      constexpr std::size_t kSizes[] = {1, 5, 8, 63, 64, 200, 513, 2049};
      const std::size_t n = i % 50 == 0 ? 0 : kSizes[dice.below(std::size(kSizes))];
      // Parts of gradients, equal values, and the largest that blocks carry: beside their scales a
      // damaged code may stand for a value that overflows.
      const auto* const begin = pool.data() + pool.size() - n - 97 * (i % 16);
      std::vector<float> v(begin, begin + n);
      if (i % 3 == 1) std::fill(v.begin(), v.end(), static_cast<float>(i));
      if (i % 3 == 2) std::fill(v.begin(), v.end(), 0x1.fffffep125f);
      std::vector<std::byte> payload(codec->max_payload_bytes(n));
      payload.resize(codec->encode(v, nullptr, payload, context(i, v, dice)).payload_bytes);
      ASSERT_TRUE(is_taken(*codec, payload, n, false)) << "an undamaged payload of " << n;
      for (std::size_t times = 1 + dice.below(3); times > 0; --times) damage(payload, dice);
      refused += is_taken(*codec, payload, n, i % 2 == 0) ? 0 : 1;
    }
    if (HasFailure()) return;
    // Wrong lengths at least are seen.
    EXPECT_GT(refused, each / 10);
  }
}

}  // namespace
}  // namespace dp
