// Outline: CodeBlocks::add() collects the nonzero codes of each block. encode() then visits blocks
// and codes from the last to the first, because rANS decodes in the reverse order of encoding.
// encode() writes the level, the plain bits and the gap of each code, then the size of the block,
// then the block's count. decode_add() reads forwards: count, size, then gap, plain bits and level
// of each code.
//
// Both sides handle usual codes by the fast path of entropy_stream.hpp while there is room. Codes
// with escapes, and codes near the end of the room, take the checked functions (put_long,
// get_long). Segments with many nonzero codes use lanes instead (entropy_lane_codes.hpp).
#include "kernels/codecs/entropy_coder.hpp"

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "kernels/base/error.hpp"
#include "kernels/codecs/entropy_lane_codes.hpp"
#include "kernels/codecs/entropy_stream.hpp"
#include "kernels/codecs/entropy_tables.hpp"

namespace dp::entropy {
namespace {

// Segments with fewer nonzero codes than this use one rANS state. The second state costs 4 bytes
// (0.5 % at 0.1 bits a value), but decoding is 1.4 to 1.6 times as fast.
constexpr std::size_t kTwoStatesFrom = 1024;
// Segments with at least this many nonzero codes use lanes. The lanes' states cost 23 bytes (0.8 %
// at 0.35 bits a value), which shorter escapes outweigh in larger segments. On an AMD EPYC of the
// first generation (AVX2), encoding is 1.5 to 2 times as fast and decoding 1.3 to 1.7 times.
constexpr std::size_t kLanesFrom = 2048;

constexpr std::size_t kWord = 64;
constexpr std::size_t kAtOnce = 4;  // codes that CodeBlocks::add() writes between two checks
constexpr std::size_t kSpare = 8;   // codes that may be written or read after the last one

// Bit k is set if code k of 64 is not zero.
std::uint64_t not_zero_in(const std::int8_t* codes) {
#ifdef __AVX2__
  const auto zeros = [codes](std::size_t at) {
    const __m256i some = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + at));
    return static_cast<std::uint32_t>(
        _mm256_movemask_epi8(_mm256_cmpeq_epi8(some, _mm256_setzero_si256())));
  };
  return ~(std::uint64_t{zeros(kWord / 2)} << 32 | zeros(0));
#else
  constexpr std::uint64_t kLow = 0x7F7F'7F7F'7F7F'7F7F, kHigh = ~kLow;
  std::uint64_t all = 0;
  for (std::size_t at = 0; at < kWord; at += 8) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, codes + at, sizeof eight);
    const std::uint64_t flags = (((eight & kLow) + kLow) | eight) & kHigh;  // in a byte's top bit
    all |= ((flags >> 7) * 0x0102'0408'1020'4080 >> 56) << at;
  }
  return all;
#endif
}

#ifdef __AVX2__
// For each byte: the positions of its set bits in ascending order, one in each byte from the lowest
// on.
constexpr std::array<std::uint64_t, 256> kPackedOrders = [] {
  std::array<std::uint64_t, 256> orders{};
  for (std::size_t byte = 0; byte < orders.size(); ++byte) {
    unsigned at = 0;
    for (std::uint64_t bit = 0; bit < 8; ++bit) {
      if ((byte >> bit & 1) != 0) orders[byte] |= bit << 8 * at++;
    }
  }
  return orders;
}();
#endif

// The sum of the magnitudes of a block's codes.
std::uint32_t sum_of_magnitudes(const std::int8_t (&codes)[kBlock]) {
#ifdef __AVX2__
  __m256i sums = _mm256_setzero_si256();
  for (std::size_t at = 0; at < kBlock; at += sizeof sums) {
    const __m256i some = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + at));
    sums = _mm256_add_epi64(sums, _mm256_sad_epu8(_mm256_abs_epi8(some), _mm256_setzero_si256()));
  }
  const __m128i half =
      _mm_add_epi64(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
  return static_cast<std::uint32_t>(_mm_cvtsi128_si32(half) + _mm_extract_epi32(half, 2));
#else
  std::uint32_t sum = 0;
  for (const std::int8_t code : codes) sum += static_cast<std::uint32_t>(code < 0 ? -code : code);
  return sum;
#endif
}

std::size_t blocks_of(std::size_t n) { return (n + kBlock - 1) / kBlock; }

// Writes `value` as a symbol of the table, after as many escapes as needed. The encoder runs
// backwards, so the final symbol is put first.
template <std::uint32_t kSymbols, std::size_t kStates>
void put_long(Encoder<kStates>& encoder, const Table& table, std::uint32_t value) {
  encoder.put(table, value % (kSymbols - 1));
  for (; value >= kSymbols - 1; value -= kSymbols - 1) encoder.put(table, kSymbols - 1);
}

// Puts the block's codes, the last one first.
template <std::size_t kStates>
void put_codes(Encoder<kStates>& encoder, const CodeBlocks::Block& block, const CodeTables& t) {
  const std::uint32_t plain_gaps = (1u << t.shift) - 1;
  bool has_room = encoder.has_room(block.count);
  typename Encoder<kStates>::Fast fast = encoder.fast();
  for (std::size_t j = block.count; j-- > 0;) {
    const int code = block.codes[j];
    const auto gap = static_cast<std::uint32_t>(j == 0 ? block.places[0]
                                                       : block.places[j] - block.places[j - 1] - 1);
    const std::uint32_t high = gap >> t.shift;
    const auto level = static_cast<std::uint32_t>((code < 0 ? -code : code) - 1);
    const std::uint32_t plain = (gap & plain_gaps) << 1 | (code < 0 ? 1u : 0u);
    if (level < kLevelSymbols - 1 && high < kGapSymbols - 1 && has_room) [[likely]] {
      if (t.level != nullptr) fast.put(t.level->symbols[level]);
      fast.put_plain(plain, t.shift + 1);
      fast.put(t.gap.symbols[high]);
      continue;
    }
    encoder.go_on_from(fast);
    if (t.level != nullptr) put_long<kLevelSymbols>(encoder, *t.level, level);
    encoder.put_plain(plain, t.shift + 1);
    put_long<kGapSymbols>(encoder, t.gap, high);
    has_room = encoder.has_room(j);
    fast = encoder.fast();
  }
  encoder.go_on_from(fast);
}

// The context in which a block is coded: the count bucket and the size bucket of earlier blocks.
struct Context {
  std::size_t count = 0, size = 0;
};

template <class AnEncoder>
void put_block(AnEncoder& encoder, const CodeBlocks::Block& block, Context before) {
  const Tables& t = tables();
  const std::size_t bucket = t.bucket_of_count[block.count];
  if (block.count > 0) {
    const std::size_t size = size_bucket(block.count, block.level_sum);
    put_codes(encoder, block,
              {t.gap[bucket], size > 0 ? &t.level[size] : nullptr, t.shift[bucket]});
    encoder.put(t.size[before.size], size);
  }
  const auto [first, bits] = kCountBuckets[bucket];
  encoder.put_plain(static_cast<std::uint32_t>(block.count - first), bits);
  encoder.put(t.count[before.count], bucket);
}

// Reads a value written by put_long. A value above `most` is returned as most + 1.
template <std::uint32_t kSymbols, std::size_t kStates>
std::uint32_t get_long(Decoder<kStates>& decoder, const Table& table, std::uint32_t most) {
  std::uint32_t value = 0;
  while (true) {
    const std::uint32_t symbol = decoder.get(table);
    value += symbol;
    if (symbol < kSymbols - 1 || value > most) return std::min(value, most + 1);
  }
}

// Prefetches the cache line of each sum, and adds later, when the line has arrived. This pays at
// few bits per value, because almost every sum is then in another cache line.
class LateSums {
 public:
  LateSums() { places_.fill(&nothing_); }
  void add(float& place, float value) {
    __builtin_prefetch(&place, 1);
    const std::size_t at = next_++ % kMost;
    *std::exchange(places_[at], &place) += std::exchange(values_[at], value);
  }
  void finish() {
    for (std::size_t at = 0; at < kMost; ++at) *places_[at] += values_[at];
  }

 private:
  static constexpr std::size_t kMost = 32;
  float nothing_ = 0.0f;
  std::array<float*, kMost> places_;
  std::array<float, kMost> values_ = {};
  std::size_t next_ = 0;
};

// The destination of one block's decoded codes: they are added to a part of the sums.
struct SumTarget {
  using Value = float;
  std::span<float> out;
  float step;
  LateSums& sums;

  [[nodiscard]] std::size_t size() const { return out.size(); }
  [[nodiscard]] Value value(std::uint32_t level, std::uint32_t sign) const {
    return value_of(level, sign, step);
  }
  void add(std::size_t place, Value value) const { sums.add(out[place], value); }
  void add_now(std::size_t place, Value value) const { out[place] += value; }
};

// The other destination: codes are listed.
struct ListTarget {
  using Value = std::uint16_t;  // the code in the upper byte
  std::size_t places;           // of the block
  CodeList::Block& block;
  std::uint16_t* codes;

  [[nodiscard]] std::size_t size() const { return places; }
  [[nodiscard]] Value value(std::uint32_t level, std::uint32_t sign) const {
    return static_cast<Value>((sign == 0 ? level + 1 : ~level) << 8);
  }
  void add(std::size_t place, Value value) const {
    codes[block.count++] = static_cast<std::uint16_t>(value | place);
  }
  void add_now(std::size_t place, Value value) const { add(place, value); }
};

// Decodes the next codes of a block by the fast path, while there is enough input and no symbol is
// an escape. Returns the place after the last code, and decrements `count` for each code.
template <bool kHasLevels, std::size_t kStates, class Target>
std::size_t add_usual_codes(Decoder<kStates>& decoder, const CodeTables& t, std::size_t next,
                            const Target& target, std::size_t& count) {
  typename Decoder<kStates>::Fast fast = decoder.fast();
  for (; count > 0 && decoder.has_room(fast); --count) {
    typename Decoder<kStates>::Fast then = fast;
    const std::uint32_t high = then.get(t.gap);
    const std::uint32_t plain = then.get_plain(t.shift + 1);
    const std::uint32_t level = kHasLevels ? then.get(*t.level) : 0;
    const std::size_t place = next + (high << t.shift | plain >> 1);
    if (high == kGapSymbols - 1 || (kHasLevels && level == kLevelSymbols - 1) ||
        place >= target.size()) [[unlikely]] {
      break;
    }
    target.add(place, target.value(level, plain & 1u));
    next = place + 1;
    fast = then;
  }
  decoder.go_on_from(fast);
  return next;
}

// Decodes `count` codes. Returns false for bytes that no encoder writes.
template <std::size_t kStates, class Target>
bool add_codes(Decoder<kStates>& decoder, const CodeTables& t, std::size_t count,
               const Target& target) {
  std::size_t next = 0;  // the first place that may follow
  while (true) {
    next = t.level != nullptr ? add_usual_codes<true>(decoder, t, next, target, count)
                              : add_usual_codes<false>(decoder, t, next, target, count);
    if (count == 0) return !decoder.has_failed();
    const std::uint32_t high = get_long<kGapSymbols>(decoder, t.gap, kBlock);
    const std::uint32_t plain = decoder.get_plain(t.shift + 1);
    const std::uint32_t level =
        t.level != nullptr ? get_long<kLevelSymbols>(decoder, *t.level, kMostLevel) : 0;
    const std::size_t place = next + (high << t.shift | plain >> 1);
    if (place >= target.size() || level > kMostLevel) return false;
    target.add(place, target.value(level, plain & 1u));
    next = place + 1;
    --count;
  }
}

// Decodes one block. Returns false for bytes that no encoder writes.
template <class ADecoder, class Target>
bool add_block(ADecoder& decoder, Context& context, const Target& target) {
  const Tables& t = tables();
  const std::size_t bucket = decoder.get(t.count[context.count]);
  const auto [first, bits] = kCountBuckets[bucket];
  const std::size_t count = first + decoder.get_plain(bits);
  context.count = bucket;
  if (count > target.size()) return false;
  if (count == 0) return true;
  const std::size_t size = decoder.get(t.size[context.size]);
  context.size = size;
  return add_codes(decoder, {t.gap[bucket], size > 0 ? &t.level[size] : nullptr, t.shift[bucket]},
                   count, target);
}

template <class AnEncoder>
std::optional<std::size_t> encode_with(const CodeBlocks& blocks, std::byte* out, std::byte* room) {
  const std::size_t n = blocks.codes();
  AnEncoder encoder({room, n}, {out, n});
  const Tables& t = tables();
  // A block's size context is the size bucket of the last nonempty block before it.
  std::size_t before = blocks.size();  // the size context comes from block before - 1
  const auto context_of = [&](std::size_t b) {
    Context context;
    if (b > 0) context.count = t.bucket_of_count[blocks.head(b - 1).count];
    before = std::min(before, b);
    while (before > 0 && blocks.head(before - 1).count == 0) --before;
    if (before > 0) {
      const CodeBlocks::Block last = blocks.head(before - 1);
      context.size = size_bucket(last.count, last.level_sum);
    }
    return context;
  };
  const bool has_room =
      blocks.for_each_backwards([&](const CodeBlocks::Block& block, std::size_t b) {
        put_block(encoder, block, context_of(b));
        return !encoder.is_full();
      });
  return has_room ? encoder.finish(out, n) : std::nullopt;
}

// target_of(begin, m): the destination of the m codes of the block from `begin` on. With everything
// inlined, decoding is a tenth faster.
template <class ADecoder, class TargetOf>
[[gnu::flatten]] bool decode_with(std::span<const std::byte> in, std::size_t n,
                                  const TargetOf& target_of) {
  ADecoder decoder(std::to_integer<std::uint32_t>(in.front()), in.subspan(1));
  if (decoder.has_failed()) return false;
  Context context;
  for (std::size_t begin = 0; begin < n; begin += kBlock) {
    if (!add_block(decoder, context, target_of(begin, std::min(kBlock, n - begin)))) return false;
  }
  return decoder.is_at_end();
}

template <class TargetOf>
bool decode_into(std::span<const std::byte> in, std::size_t n, const TargetOf& target_of) {
  if (in.empty()) return false;
  switch (std::to_integer<std::uint32_t>(in.front()) & ~kHeld) {
    case kIsCoded:
      return decode_with<Decoder<2>>(in, n, target_of);
    case kIsCoded | kHasOneState:
      return decode_with<Decoder<1>>(in, n, target_of);
    case kIsCoded | kHasOneState | kHasLanes:
      return decode_with<LaneDecoder>(in, n, target_of);
    default:
      return false;
  }
}

}  // namespace

std::size_t CodeList::bytes(std::size_t n) {
  return blocks_of(n) * sizeof(Block) + n * sizeof(std::uint16_t);
}

CodeList::CodeList(std::byte* memory, std::size_t n)
    : blocks(reinterpret_cast<Block*>(memory), blocks_of(n)),
      codes(reinterpret_cast<std::uint16_t*>(memory + blocks_of(n) * sizeof(Block))) {}

// The memory holds the heads, then places, then codes. Up to kSpare places and codes after the last
// one are written or read, so there must be room for them.
std::size_t CodeBlocks::bytes(std::size_t n) {
  return blocks_of(n) * sizeof(Head) + 2 * (n + kSpare);
}

CodeBlocks::CodeBlocks(std::byte* memory, std::size_t n)
    : heads_(memory),
      places_(reinterpret_cast<std::uint8_t*>(memory + blocks_of(n) * sizeof(Head))),
      codes_(reinterpret_cast<std::int8_t*>(places_ + n + kSpare)),
      all_codes_(n) {
  DP_ASSERT(n <= kMostCodes, "{} codes in one piece", n);
}

// A word of 64 codes usually has few nonzero ones. Up to kAtOnce are written without a branch for
// each; more are moved together eight by eight.
void CodeBlocks::add(const std::int8_t (&codes)[kBlock]) {
  std::size_t end = not_zero_;
  for (std::size_t begin = 0; begin < kBlock; begin += kWord) {
    std::uint64_t flags = not_zero_in(codes + begin);
    const auto count = static_cast<std::size_t>(std::popcount(flags));
#ifdef __AVX2__
    if (count > kAtOnce) {
      for (std::size_t from = begin; from < begin + kWord; from += 8, flags >>= 8) {
        const std::uint64_t order = kPackedOrders[flags & 0xFF];
        const std::uint64_t places = order + from * 0x0101'0101'0101'0101;
        const __m128i packed =
            _mm_shuffle_epi8(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + from)),
                             _mm_cvtsi64_si128(static_cast<long long>(order)));
        _mm_storel_epi64(reinterpret_cast<__m128i*>(codes_ + end), packed);
        std::memcpy(places_ + end, &places, sizeof places);
        end += static_cast<std::size_t>(std::popcount(flags & 0xFF));
      }
      continue;
    }
#endif
    std::size_t at = end;
    do {
      for (std::size_t k = 0; k < kAtOnce; ++k, ++at, flags &= flags - 1) {
        const std::size_t place =
            begin + (static_cast<std::size_t>(std::countr_zero(flags)) % kWord);
        places_[at] = static_cast<std::uint8_t>(place);
        codes_[at] = codes[place];
      }
    } while (at < end + count);
    end += count;
  }
  const std::size_t count = end - not_zero_;
  append({.count = static_cast<std::uint16_t>(count),
          .level_sum = static_cast<std::uint16_t>(sum_of_magnitudes(codes) - count)});
}

void CodeBlocks::add(const CodeList& list, std::size_t block) {
  const CodeList::Block& of = list.blocks[block];
  for (std::size_t k = 0; k < of.count; ++k) {
    const std::uint32_t listed = list.codes[of.first + k];
    places_[not_zero_ + k] = static_cast<std::uint8_t>(listed);
    codes_[not_zero_ + k] = static_cast<std::int8_t>(listed >> 8);
  }
  append({.count = of.count, .level_sum = of.level_sum});
}

std::optional<std::size_t> encode(const CodeBlocks& blocks, std::byte* out, std::byte* room) {
  if (blocks.not_zero() < kTwoStatesFrom) return encode_with<Encoder<1>>(blocks, out, room);
  if (blocks.not_zero() < kLanesFrom) return encode_with<Encoder<2>>(blocks, out, room);
  return encode_with<LaneEncoder>(blocks, out, room);
}

bool decode_add(std::span<const std::byte> in, float step, std::span<float> out) {
  LateSums sums;
  const bool is_valid = decode_into(in, out.size(), [&](std::size_t begin, std::size_t m) {
    return SumTarget{out.subspan(begin, m), step, sums};
  });
  sums.finish();
  return is_valid;
}

bool decode(std::span<const std::byte> in, std::size_t n, const CodeList& list) {
  std::uint32_t listed = 0;
  return decode_into(in, n, [&](std::size_t begin, std::size_t m) {
    const std::size_t at = begin / kBlock;
    if (at > 0) listed += list.blocks[at - 1].count;
    CodeList::Block& block = list.blocks[at];
    block = {.first = listed};
    return ListTarget{m, block, list.codes + listed};
  });
}

}  // namespace dp::entropy
