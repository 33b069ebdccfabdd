// The entropy coder of ecq: what is written is read, in how many bytes, and what is no encoder's.
#include "kernels/codecs/entropy_coder.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/base/error.hpp"
#include "kernels/base/random.hpp"
#include "kernels/codecs/codec.hpp"
#include "kernels/codecs/entropy_tables.hpp"
#include "tests/codecs/gradients.hpp"

namespace dp::entropy {
namespace {

using Codes = std::vector<std::int8_t>;
using Bytes = std::vector<std::byte>;

// A list's memory, with a guard behind it.
struct ListMemory {
  explicit ListMemory(std::size_t n)
      : memory(CodeList::bytes(n) / sizeof(std::uint64_t) + 2, kGuard),
        list(reinterpret_cast<std::byte*>(memory.data()), n) {}
  ~ListMemory() { EXPECT_EQ(memory.back(), kGuard); }
  ListMemory(const ListMemory&) = delete;
  ListMemory& operator=(const ListMemory&) = delete;

  static constexpr std::uint64_t kGuard = 0xA5A5'A5A5'A5A5'A5A5;
  std::vector<std::uint64_t> memory;
  CodeList list;
};

// The codes as a GPU may list them: the last block first.
std::optional<Bytes> encoded_from_list(const Codes& codes) {
  const std::size_t n = codes.size();
  const ListMemory of(n);
  const CodeList& list = of.list;
  std::uint32_t listed = 0;
  for (std::size_t b = list.blocks.size(); b-- > 0;) {
    CodeList::Block& block = list.blocks[b] = {.first = listed};
    for (std::size_t place = 0; place < std::min(kBlock, n - b * kBlock); ++place) {
      const int code = codes[b * kBlock + place];
      if (code == 0) continue;
      list.codes[listed++] = static_cast<std::uint16_t>(static_cast<unsigned>(code) << 8 | place);
      ++block.count;
      block.level_sum = static_cast<std::uint16_t>(block.level_sum + std::abs(code) - 1);
    }
  }
  Bytes out(n), room(n), sparse(CodeBlocks::bytes(n));
  CodeBlocks blocks(sparse.data(), n);
  for (std::size_t b = 0; b < list.blocks.size(); ++b) blocks.add(list, b);
  const auto bytes = encode(blocks, out.data(), room.data());
  if (!bytes) return std::nullopt;
  out.resize(*bytes);
  return out;
}

std::optional<Bytes> encoded(const Codes& codes) {
  // At odd addresses, between guards.
  constexpr auto kGuard = std::byte{0xA5};
  const std::size_t n = codes.size();
  Bytes out(n + 3, kGuard), room(n + 3, kGuard), sparse(CodeBlocks::bytes(n) + 3, kGuard);
  CodeBlocks blocks(sparse.data() + 1, n);
  for (std::size_t begin = 0; begin < n; begin += kBlock) {
    std::int8_t block[kBlock] = {};
    std::copy_n(codes.data() + begin, std::min(kBlock, n - begin), block);
    blocks.add(block);
  }
  const auto bytes = encode(blocks, out.data() + 1, room.data() + 1);
  for (const Bytes* memory : {&out, &room, &sparse}) {
    EXPECT_TRUE(memory->front() == kGuard && (*memory)[memory->size() - 2] == kGuard);
  }
  const std::optional<Bytes> from_list = encoded_from_list(codes);
  EXPECT_EQ(from_list.has_value(), bytes.has_value());
  if (!bytes) return std::nullopt;
  Bytes written(out.begin() + 1, out.begin() + 1 + static_cast<std::ptrdiff_t>(*bytes));
  EXPECT_EQ(from_list, written);
  return written;
}

// Nothing for bytes that the decoder refuses.
std::optional<Codes> decoded_to_list(const Bytes& bytes, std::size_t n) {
  const ListMemory of(n);
  if (!decode(bytes, n, of.list)) return std::nullopt;
  Codes codes(n);
  for (std::size_t b = 0; b < of.list.blocks.size(); ++b) {
    const CodeList::Block& block = of.list.blocks[b];
    for (std::size_t k = 0; k < block.count; ++k) {
      const std::uint16_t listed = of.list.codes[block.first + k];
      codes[b * kBlock + listed % 256] = static_cast<std::int8_t>(listed >> 8);
    }
  }
  return codes;
}

// Nothing for bytes that the decoder refuses.
std::optional<Codes> decoded(const Bytes& bytes, std::size_t n) {
  std::vector<float> out(n + 2, 1000.0f);
  const bool is_good = decode_add(bytes, 1.0f, std::span(out).subspan(1, n));
  EXPECT_TRUE(out.front() == 1000.0f && out.back() == 1000.0f);
  const std::optional<Codes> listed = decoded_to_list(bytes, n);
  EXPECT_EQ(listed.has_value(), is_good);
  if (!is_good) return std::nullopt;
  Codes codes;
  for (std::size_t i = 1; i <= n; ++i) codes.push_back(static_cast<std::int8_t>(out[i] - 1000.0f));
  EXPECT_EQ(listed, codes);
  return codes;
}

// Values of heavy tails in multiples of `step` root mean squares.
Codes gradient_codes(std::size_t n, double step, std::uint64_t seed) {
  const std::vector<float> v = test::heavy_tailed_gradient(n, seed);
  double sum = 0;
  for (const float x : v) sum += static_cast<double>(x) * x;
  const double unit = step * std::sqrt(sum / static_cast<double>(n));
  Codes codes;
  for (const float x : v) {
    codes.push_back(static_cast<std::int8_t>(std::clamp(std::nearbyint(x / unit), -127.0, 127.0)));
  }
  return codes;
}

TEST(EntropyCoder, ReadsWhatItWrote) {
  for (const std::size_t n : {16, 200, 255, 256, 257, 511, 513, 5'003, 65'536}) {
    for (const double step : {0.3, 1.0, 2.0, 3.0, 5.0, 12.0}) {
      const Codes codes = gradient_codes(n, step, n);
      const auto bytes = encoded(codes);
      if (!bytes) continue;  // short, or too dense to become shorter
      EXPECT_LE(bytes->size(), n);
      EXPECT_EQ(decoded(*bytes, n), codes) << n << " codes, step " << step;
    }
  }
}

// Whatever their share and size: one in a thousand to all of them, 1 to 127.
TEST(EntropyCoder, ReadsEveryDensityAndSize) {
  const CounterRng rng(1, RandomStream::test);
  std::uint64_t draw = 0;
  std::size_t coded = 0;
  for (const std::uint64_t of_thousand : {0, 1, 10, 100, 300, 600, 1'000}) {
    for (const std::uint64_t most : {1, 2, 5, 30, 127}) {
      Codes codes(10'000);
      for (std::int8_t& code : codes) {
        if (rng.below(1'000, draw++) >= of_thousand) continue;
        const auto magnitude = static_cast<int>(rng.below(most, draw++)) + 1;
        code = static_cast<std::int8_t>(rng.below(2, draw++) != 0 ? magnitude : -magnitude);
      }
      const auto bytes = encoded(codes);
      if (!bytes) continue;
      ++coded;
      EXPECT_EQ(decoded(*bytes, codes.size()), codes) << of_thousand << " " << most;
    }
  }
  EXPECT_GE(coded, 28u);
}

TEST(EntropyCoder, SingleValuesAtEveryPlace) {
  for (std::size_t place = 0; place < 300; ++place) {
    for (const int code : {1, -1, 16, -127, 127}) {
      Codes codes(300);
      codes[place] = static_cast<std::int8_t>(code);
      const auto bytes = encoded(codes);
      ASSERT_TRUE(bytes);
      ASSERT_EQ(decoded(*bytes, codes.size()), codes) << place << " " << code;
    }
  }
}

TEST(EntropyCoder, DenseCodesAreLeftToTheCaller) {
  const CounterRng rng(2, RandomStream::test);
  Codes codes(4'096);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    codes[i] = static_cast<std::int8_t>(static_cast<int>(rng.below(255, i)) - 127);
  }
  EXPECT_FALSE(encoded(codes));
  EXPECT_FALSE(encoded(Codes(8, 1)));  // the states alone are longer
}

// From 2,048 nonzero codes on, codes are coded in lanes.
constexpr std::size_t kLanesFrom = 2'048;
std::size_t not_zero_in(const Codes& codes) {
  return codes.size() - static_cast<std::size_t>(std::ranges::count(codes, 0));
}

// The plain bits after an escape symbol of a lane: 5 for each digit, of which 31 says that another
// one follows.
std::size_t digit_bits(std::size_t value, std::size_t symbols) {
  return value < symbols - 1 ? 0 : 5 * ((value - (symbols - 1)) / 31 + 1);
}

// The bits that the tables give to these codes.
double model_bits(const Codes& codes) {
  const Tables& t = tables();
  const bool has_lanes = not_zero_in(codes) >= kLanesFrom;
  double bits = 0;
  const auto add = [&](const Table& table, std::size_t symbol) {
    bits += kTableBits - std::log2(table.symbols[symbol].share());
  };
  const auto add_long = [&](const Table& table, std::size_t value, std::size_t symbols) {
    if (has_lanes) {
      add(table, std::min(value, symbols - 1));
      bits += static_cast<double>(digit_bits(value, symbols));
      return;
    }
    for (; value >= symbols - 1; value -= symbols - 1) add(table, symbols - 1);
    add(table, value);
  };
  std::size_t last_count = 0, last_size = 0;
  for (std::size_t begin = 0; begin < codes.size(); begin += kBlock) {
    std::vector<std::size_t> places;
    std::uint32_t levels = 0;
    for (std::size_t i = begin; i < std::min(begin + kBlock, codes.size()); ++i) {
      if (codes[i] == 0) continue;
      places.push_back(i - begin);
      levels += static_cast<std::uint32_t>(std::abs(codes[i]) - 1);
    }
    const std::size_t bucket = t.bucket_of_count[places.size()];
    add(t.count[last_count], bucket);
    bits += kCountBuckets[bucket].bits;
    last_count = bucket;
    if (places.empty()) continue;
    const std::size_t size = size_bucket(static_cast<std::uint32_t>(places.size()), levels);
    add(t.size[last_size], size);
    last_size = size;
    std::size_t next = 0;
    for (const std::size_t place : places) {
      add_long(t.gap[bucket], (place - next) >> t.shift[bucket], kGapSymbols);
      bits += t.shift[bucket] + 1;
      if (size > 0) {
        add_long(t.level[size], static_cast<std::size_t>(std::abs(codes[begin + place]) - 1),
                 kLevelSymbols);
      }
      next = place + 1;
    }
  }
  return bits;
}

double entropy_of(const Codes& codes) {
  std::map<std::int8_t, double> counts;
  for (const std::int8_t code : codes) counts[code] += 1;
  double bits = 0;
  for (const auto& [code, count] : counts) {
    bits -= count * std::log2(count / static_cast<double>(codes.size()));
  }
  return bits;
}

// The head, the states and the filling of the last plain bits are at most 10 bytes; 6 with fewer
// than 1,024 nonzero codes, and 38 with lanes. The rest is within 1 % of the tables' probabilities.
TEST(EntropyCoder, TakesTheBitsOfItsTables) {
  for (const std::size_t n : {20'000, 200'000}) {
    for (const double step : {0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 9.0}) {
      const Codes codes = gradient_codes(n, step, 7);
      const auto bytes = encoded(codes);
      ASSERT_TRUE(bytes);
      const std::size_t count = not_zero_in(codes);
      const double bits = 8.0 * static_cast<double>(bytes->size()), model = model_bits(codes);
      EXPECT_GE(bits, model) << n << " codes, step " << step;
      EXPECT_LE(bits, 1.01 * model + 8 * (count < 1'024        ? 6
                                          : count < kLanesFrom ? 10
                                                               : 38))
          << n << ", step " << step;
    }
  }
}

TEST(EntropyCoder, HasASecondStateFromAThousandCodesOn) {
  constexpr auto kHasOneState = std::byte{32};
  for (const std::size_t count : {1'022, 1'023, 1'024, 1'025}) {
    Codes codes(20'000);
    for (std::size_t i = 0; i < count; ++i)
      codes[19 * i] = i % 3 == 0 ? std::int8_t{-2} : std::int8_t{1};
    const Bytes bytes = encoded(codes).value();
    EXPECT_EQ((bytes[0] & kHasOneState) != std::byte{0}, count < 1'024) << count;
    EXPECT_EQ(decoded(bytes, codes.size()), codes) << count;
  }
}

TEST(EntropyCoder, HasLanesFromTwoThousandCodesOn) {
  constexpr auto kHasLanes = std::byte{128};
  for (const std::size_t count : {2'046, 2'047, 2'048, 2'049}) {
    Codes codes(20'000);
    for (std::size_t i = 0; i < count; ++i) {
      codes[9 * i] = i % 3 == 0 ? std::int8_t{-2} : std::int8_t{1};
    }
    const Bytes bytes = encoded(codes).value();
    EXPECT_EQ((bytes[0] & kHasLanes) != std::byte{0}, count >= 2'048) << count;
    EXPECT_EQ(decoded(bytes, codes.size()), codes) << count;
  }
}

// Reads a payload with lanes as entropy_coder.hpp describes it, one symbol after the other, with
// divisions and without any table of the decoder but the shares.
class LaneReader {
 public:
  explicit LaneReader(const Bytes& bytes) : bytes_(bytes) {
    const auto head = std::to_integer<std::uint32_t>(bytes[0]);
    EXPECT_EQ(head & ~31u, 128u + 64u + 32u);
    first_bits_ = head & 31u;
    for (std::uint64_t& state : states_) state = number(4);  // the last one is for the heads
    plain_ = bytes.size() - (first_bits_ + 7) / 8;
    for (std::size_t bit = 0; bit < first_bits_; ++bit) bits_.push_back(bit_at(8 * plain_ + bit));
  }

  Codes codes(std::size_t n) {
    const Tables& t = tables();
    Codes codes(n);
    std::size_t bucket = 0, size = 0;
    for (std::size_t begin = 0; begin < n; begin += kBlock) {
      bucket = symbol(kHeads, t.count[bucket]);
      const std::size_t count = kCountBuckets[bucket].first + plain(kCountBuckets[bucket].bits);
      if (count == 0) continue;
      size = symbol(kHeads, t.size[size]);
      std::size_t next = begin;
      for (std::size_t done = 0; done < count; done += 8) {
        const std::size_t m = std::min<std::size_t>(8, count - done);
        std::size_t gaps[8] = {}, levels[8] = {}, low[8] = {};
        for (std::size_t k = 0; k < m; ++k) gaps[k] = symbol(k, t.gap[bucket]);
        for (std::size_t k = 0; k < m; ++k) low[k] = plain(t.shift[bucket] + 1u);
        for (std::size_t k = 0; k < m; ++k) gaps[k] += digits(gaps[k], kGapSymbols);
        for (std::size_t k = 0; k < m && size > 0; ++k) levels[k] = symbol(k, t.level[size]);
        for (std::size_t k = 0; k < m; ++k) levels[k] += digits(levels[k], kLevelSymbols);
        for (std::size_t k = 0; k < m; ++k) {
          const std::size_t place = next + (gaps[k] << t.shift[bucket] | low[k] >> 1);
          const int magnitude = static_cast<int>(levels[k]) + 1;
          codes.at(place) = static_cast<std::int8_t>((low[k] & 1) != 0 ? -magnitude : magnitude);
          next = place + 1;
        }
      }
    }
    return codes;
  }
  // Whether all words and plain bits were read and all states are back at their first values.
  bool is_at_end() const {
    return at_ == plain_ && bits_.empty() && states_[kHeads] == 1u << 16 &&
           std::ranges::count(std::span(states_).first(8), 1u << 15) == 8;
  }

 private:
  static constexpr std::size_t kHeads = 8;

  std::uint64_t number(std::size_t count) {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < count; ++i) {
      value |= std::to_integer<std::uint64_t>(bytes_.at(at_++)) << 8 * i;
    }
    return value;
  }
  bool bit_at(std::size_t bit) const {
    return (bytes_.at(bit / 8) >> static_cast<int>(bit % 8) & std::byte{1}) != std::byte{0};
  }
  std::size_t plain(std::size_t count) {
    if (bits_.size() < count) {
      plain_ -= 4;
      for (std::size_t bit = 0; bit < 32; ++bit) bits_.push_back(bit_at(8 * plain_ + bit));
    }
    std::size_t value = 0;
    for (std::size_t i = 0; i < count; ++i, bits_.pop_front()) value |= std::size_t{bits_[0]} << i;
    return value;
  }
  std::size_t symbol(std::size_t lane, const Table& table) {
    std::uint64_t& state = states_[lane];
    const std::uint64_t place = state % kTableSize;
    std::uint64_t start = 0;
    std::size_t symbol = 0;
    while (place >= start + table.symbols[symbol].share()) start += table.symbols[symbol++].share();
    state = table.symbols[symbol].share() * (state / kTableSize) + place - start;
    if (state < (lane == kHeads ? 1u << 16 : 1u << 15)) state = state << 16 | number(2);
    return symbol;
  }
  std::size_t digits(std::size_t value, std::size_t symbols) {
    if (value != symbols - 1) return 0;
    std::size_t all = 0;
    while (true) {
      const std::size_t digit = plain(5);
      all += digit;
      if (digit < 31) return all;
    }
  }

  const Bytes& bytes_;
  std::size_t at_ = 1, plain_ = 0, first_bits_ = 0;
  std::uint64_t states_[9] = {};
  std::deque<bool> bits_;
};

TEST(EntropyCoder, WritesLanesAsDescribed) {
  std::vector<Codes> all;
  for (const double step : {0.3, 1.0, 2.5, 4.0}) all.push_back(gradient_codes(60'001, step, 3));
  const CounterRng rng(3, RandomStream::test);
  Codes far(80'000);  // gaps and levels that need several digits
  for (std::size_t i = 0; i < 3'000; ++i) {
    far[rng.below(far.size(), 2 * i)] =
        static_cast<std::int8_t>(rng.below(2, 2 * i + 1) != 0 ? 127 : -90);
  }
  all.push_back(far);
  for (const Codes& codes : all) {
    const auto bytes = encoded(codes);
    ASSERT_TRUE(bytes);
    ASSERT_GE(not_zero_in(codes), kLanesFrom);
    LaneReader reader(*bytes);
    EXPECT_EQ(reader.codes(codes.size()), codes);
    EXPECT_TRUE(reader.is_at_end());
  }
}

// Where some regions hold more than others, as layers of a gradient do, blocks tell them apart.
TEST(EntropyCoder, TakesLessThanTheEntropyOfSingleCodes) {
  for (const double step : {3.0, 4.0, 6.0}) {
    Codes codes;
    for (std::uint64_t layer = 0; layer < 20; ++layer) {
      const double finer = layer % 4 == 0 ? 0.5 : 1.5;
      const Codes more = gradient_codes(10'000, step * finer, layer);
      codes.insert(codes.end(), more.begin(), more.end());
    }
    const auto bytes = encoded(codes);
    ASSERT_TRUE(bytes);
    EXPECT_LT(8.0 * static_cast<double>(bytes->size()), 0.95 * entropy_of(codes)) << step;
  }
}

// Few codes with one state, more with two, and many with lanes; the last two have levels.
std::vector<Codes> sparse_and_dense() {
  return {gradient_codes(3'000, 3.0, 5), gradient_codes(3'000, 0.5, 5),
          gradient_codes(5'000, 0.5, 5)};
}

TEST(EntropyCoder, CutOrLongerBytesAreRefused) {
  for (const Codes& codes : sparse_and_dense()) {
    const Bytes bytes = encoded(codes).value();
    for (std::size_t length = 0; length < bytes.size(); ++length) {
      const auto end = bytes.begin() + static_cast<std::ptrdiff_t>(length);
      ASSERT_FALSE(decoded(Bytes(bytes.begin(), end), codes.size())) << length;
    }
    Bytes longer = bytes;
    longer.resize(bytes.size() + 2);
    EXPECT_FALSE(decoded(longer, codes.size()));
    for (const std::size_t n : {std::size_t{0}, std::size_t{1}, codes.size() - 256,
                                codes.size() + 256, 2 * codes.size()}) {
      EXPECT_FALSE(decoded(bytes, n)) << n;
    }
  }
}

// How many plain bits these codes have: they are the last bytes of the payload.
std::size_t plain_bits(const Codes& codes) {
  const Tables& t = tables();
  std::size_t bits = 0;
  for (std::size_t begin = 0; begin < codes.size(); begin += kBlock) {
    const auto first = codes.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto length = static_cast<std::ptrdiff_t>(std::min(kBlock, codes.size() - begin));
    const auto count = static_cast<std::size_t>(length - std::count(first, first + length, 0));
    const std::size_t bucket = t.bucket_of_count[count];
    bits += kCountBuckets[bucket].bits + count * (t.shift[bucket] + 1);
    if (not_zero_in(codes) < kLanesFrom) continue;
    std::ptrdiff_t next = 0;
    for (std::ptrdiff_t i = 0; i < length; ++i) {
      if (first[i] == 0) continue;
      bits += digit_bits(static_cast<std::size_t>(i - next) >> t.shift[bucket], kGapSymbols);
      bits += digit_bits(static_cast<std::size_t>(std::abs(first[i]) - 1), kLevelSymbols);
      next = i + 1;
    }
  }
  return bits;
}

// Almost every changed bit of a symbol leads to other final states or another end of the strings,
// which are checked. Plain bits are not covered: signs, places in a bucket of counts, and low bits
// of gaps. So of all bits of these payloads 30 % and 20 % may change unnoticed.
TEST(EntropyCoder, ChangedBitsOfSymbolsAreNoticed) {
  for (const Codes& codes : sparse_and_dense()) {
    const Bytes bytes = encoded(codes).value();
    const std::size_t plain_bytes = (plain_bits(codes) + 7) / 8;
    ASSERT_GT(bytes.size(), 2 * plain_bytes);
    const std::size_t symbol_bits = 8 * (bytes.size() - plain_bytes);
    std::size_t unnoticed = 0;
    for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
      Bytes damaged = bytes;
      damaged[bit / 8] ^= std::byte{1} << static_cast<int>(bit % 8);
      const auto read = decoded(damaged, codes.size());
      if (!read) continue;
      if (bit < symbol_bits) ++unnoticed;
      EXPECT_NE(*read, codes) << bit;
    }
    EXPECT_LE(unnoticed, symbol_bits / 100);  // measured: none, and 0.7 %
  }
}

// ---- ecq, which uses it -------------------------------------------------------------------------

// Values of very different sizes, as one step for all tensors meets them.
TEST(Ecq, ASetStepNeitherCutsNorExceedsItsError) {
  const std::unique_ptr<Codec> codec = make_codec(parse_codec_spec("ecq"));
  std::vector<float> values = test::heavy_tailed_gradient(3000, 5);
  float largest = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i % 100 == 0) values[i] *= 300.0f;
    largest = std::max(largest, std::abs(values[i]));
  }
  for (const float wanted : {largest * 2.1f, largest / 3, largest / 126, largest / 5000, 1e-30f}) {
    const float step = std::max(wanted, largest / 127);
    std::vector<float> residual(values.size()), decoded(values.size());
    std::vector<std::byte> payload(codec->max_payload_bytes(values.size()));
    const EncodeResult result =
        codec->encode(values, residual.data(), payload, {.quantiser_step = wanted});
    ASSERT_TRUE(result.finite);
    codec->decode(std::span(payload).first(result.payload_bytes), decoded);
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_LE(std::abs(values[i] - decoded[i]), 0.5001f * step) << wanted << " at " << i;
      ASSERT_NEAR(values[i] - decoded[i], residual[i], 1e-6f * largest);
    }
  }
}

// Ties to even, in blocks that have codes and in those that have none, whatever their length.
TEST(Ecq, RoundsToTheNearestStep) {
  const std::unique_ptr<Codec> codec = make_codec(parse_codec_spec("ecq"));
  for (const std::size_t n : {1, 255, 256, 257, 1000, 1500}) {
    for (const float step : {1.0f, 0.25f, 0x1p-90f}) {
      std::vector<float> values(n), residual(n), decoded(n, NAN);
      for (std::size_t i = 0; i < n; ++i) {
        // Every second block has halves of a step alone, which all become zero.
        const bool is_empty = i / entropy::kBlock % 2 == 1;
        const int halves = static_cast<int>(i * 37 % 509) - 254;
        values[i] =
            (is_empty ? static_cast<float>(halves % 2) : static_cast<float>(halves)) * 0.25f * step;
        residual[i] = static_cast<float>(is_empty ? halves % 2 : halves) * 0.25f * step;
      }
      std::vector<float> sums(n);
      for (std::size_t i = 0; i < n; ++i) sums[i] = values[i] + residual[i];
      std::vector<std::byte> payload(codec->max_payload_bytes(n));
      const EncodeResult result =
          codec->encode(values, residual.data(), payload, {.quantiser_step = step});
      ASSERT_TRUE(result.finite);
      codec->decode(std::span(payload).first(result.payload_bytes), decoded);
      for (std::size_t i = 0; i < n; ++i) {
        ASSERT_EQ(decoded[i], std::nearbyint(sums[i] / step) * step)
            << n << ", step " << step << " at " << i;
        ASSERT_EQ(residual[i], sums[i] - decoded[i]) << n << ", step " << step << " at " << i;
      }
    }
  }
}

// Where they are asked for: every value, or its upper half, and nothing that is not finite.
TEST(Ecq, SendsFloats) {
  const std::unique_ptr<Codec> codec = make_codec(parse_codec_spec("ecq"));
  const std::vector<float> values = test::heavy_tailed_gradient(1001, 6);
  for (const unsigned bits : {16u, 32u}) {
    std::vector<float> residual(values.size(), 0.25f), decoded(values.size(), NAN);
    std::vector<std::byte> payload(codec->max_payload_bytes(values.size()));
    const EncodeResult result =
        codec->encode(values, residual.data(), payload, {.quantiser_step = 1, .dense_bits = bits});
    ASSERT_TRUE(result.finite);
    ASSERT_EQ(result.payload_bytes, 5 + values.size() * bits / 8);
    payload.resize(result.payload_bytes);
    codec->decode(payload, decoded);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float v = values[i] + 0.25f;
      EXPECT_EQ(v - decoded[i], residual[i]);
      EXPECT_LE(std::abs(residual[i]), bits == 32 ? 0.0f : 0x1p-8f * std::abs(v));
    }
    std::vector<float> sums(values.size(), 1.0f);
    codec->decode_add(payload, sums);
    EXPECT_EQ(sums[7], 1.0f + decoded[7]);
    EXPECT_THROW(codec->decode(std::span(payload).first(payload.size() - 1), decoded), Error);
    std::vector<std::byte> damaged = payload;
    damaged[3] = std::byte{0};  // another step
    EXPECT_THROW(codec->decode(damaged, decoded), Error);
    damaged = payload;
    damaged[payload.size() - 1] = std::byte{0x7F};
    damaged[payload.size() - 2] = std::byte{0xFF};
    EXPECT_THROW(codec->decode(damaged, decoded), Error);
  }
}

// As q4 and q8 themselves would send them, residuals included.
TEST(Ecq, SendsBlocksOfBins) {
  const std::unique_ptr<Codec> codec = make_codec(parse_codec_spec("ecq"));
  const std::vector<float> values = test::heavy_tailed_gradient(5001, 6);
  for (const unsigned bits : {4u, 8u}) {
    const std::unique_ptr<Codec> bins = make_codec(parse_codec_spec(bits == 4 ? "q4" : "q8"));
    std::vector<float> residual(values.size(), 0.25f), of_bins = residual;
    std::vector<std::byte> payload(codec->max_payload_bytes(values.size())), expected = payload;
    const EncodeResult result =
        codec->encode(values, residual.data(), payload, {.quantiser_step = 1, .dense_bits = bits});
    const std::size_t bytes = bins->encode(values, of_bins.data(), expected, {}).payload_bytes;
    ASSERT_TRUE(result.finite);
    ASSERT_EQ(result.payload_bytes, 5 + bytes);
    EXPECT_EQ(residual, of_bins);
    payload.resize(result.payload_bytes);
    expected.resize(bytes);
    EXPECT_TRUE(std::ranges::equal(std::span(payload).subspan(5), expected));
    std::vector<float> sums(values.size(), 1.0f), sums_of_bins = sums;
    codec->decode_add(payload, sums);
    bins->decode_add(expected, sums_of_bins);
    EXPECT_EQ(sums, sums_of_bins);
    EXPECT_THROW(codec->decode(std::span(payload).first(payload.size() - 1), sums), Error);
    payload[3] = std::byte{0};  // another step
    EXPECT_THROW(codec->decode(payload, sums), Error);
  }
}

// With blend= a segment of small values has a finer step than one step for all, and one of large
// values a coarser one.
TEST(Ecq, BlendsASegmentsOwnStepIntoThatOfAll) {
  const auto step_of = [](const char* spec, float scale) {
    const std::unique_ptr<Codec> codec = make_codec(parse_codec_spec(spec));
    const CounterRng rng(3, RandomStream::test);
    std::vector<float> values(2000);
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = scale * static_cast<float>(normal(rng, i));
    }
    std::vector<std::byte> payload(codec->max_payload_bytes(values.size()));
    static_cast<void>(codec->encode(values, nullptr, payload, {.quantiser_step = 3.0f}));
    float step = 0.0f;
    std::memcpy(&step, payload.data(), sizeof step);
    return step;
  };
  EXPECT_EQ(step_of("ecq:blend=0", 0.01f), 3.0f);
  for (const float scale : {0.01f, 1.0f, 16.0f}) {
    // The segment's own step is 3 times its root mean square, which is the scale.
    EXPECT_NEAR(step_of("ecq:blend=0.5", scale), 3 * std::sqrt(scale), 0.1f * std::sqrt(scale));
    EXPECT_NEAR(step_of("ecq:blend=0.25", scale), 3 * std::pow(scale, 0.25f),
                0.1f * std::pow(scale, 0.25f));
  }
}

}  // namespace
}  // namespace dp::entropy
