// Codes the nonzero codes of a block in lanes, eight at once (entropy_coder.hpp has the format).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "kernels/codecs/entropy_coder.hpp"
#include "kernels/codecs/entropy_lanes.hpp"
#include "kernels/codecs/entropy_stream.hpp"
#include "kernels/codecs/entropy_tables.hpp"

namespace dp::entropy {

// The base's state codes the counts and sizes of blocks, and the lanes code the codes.
struct LaneEncoder : Encoder<1> {
  using Encoder<1>::Encoder;
  std::optional<std::size_t> finish(std::byte* out, std::size_t room) {
    return Encoder<1>::finish(out, room, values_of(lanes));
  }

  Lanes lanes = least_lanes();
};

class LaneDecoder : public Decoder<1> {
 public:
  // As for Decoder: `in` excludes the head.
  LaneDecoder(std::uint32_t head, std::span<const std::byte> in)
      : Decoder<1>(head, in.subspan(std::min(in.size(), sizeof(Eight)))) {
    if (in.size() < sizeof(Eight)) return;  // the base has failed
    Eight states;
    std::memcpy(states.data(), in.data(), sizeof states);
    are_valid_ = std::ranges::all_of(
        states, [](std::uint32_t state) { return state >= kLeastLane && state >> 31 == 0; });
    lanes = lanes_of(states);
  }
  [[nodiscard]] bool has_failed() const { return !are_valid_ || Decoder<1>::has_failed(); }
  [[nodiscard]] bool is_at_end() const {
    return are_valid_ && Decoder<1>::is_at_end() && values_of(lanes) == values_of(least_lanes());
  }

  Lanes lanes = least_lanes();

 private:
  bool are_valid_ = false;
};

// Eight bytes, one for each lane, as one number; lane 0 is the lowest byte.
using EightBytes = std::uint64_t;
inline constexpr EightBytes kOnes = 0x0101'0101'0101'0101;

inline EightBytes bytes_at(const void* at) {
  EightBytes bytes = 0;
  std::memcpy(&bytes, at, sizeof bytes);
  return bytes;
}

// The top bit of each byte that is at least `least` <= 128.
inline EightBytes at_least(EightBytes bytes, std::uint32_t least) {
  constexpr EightBytes kTop = 0x80 * kOnes;
  return (((bytes & ~kTop) + (128 - least) * kOnes) | bytes) & kTop;
}

inline Lanes widened(EightBytes bytes) {
#ifdef __AVX2__
  return _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(bytes)));
#else
  Lanes wide;
  for (std::size_t k = 0; k < kLanes; ++k) wide[k] = static_cast<std::uint8_t>(bytes >> 8 * k);
  return wide;
#endif
}

// The plain bits of four codes, `count` bits from each of four bytes, and back.
inline constexpr std::size_t kPlainAtOnce = 4;
inline std::uint32_t together(std::uint32_t bytes, unsigned count) {
  const std::uint32_t pairs =
      (bytes & 0x00FF'00FF) | (bytes >> (8 - count) & (0x00FF'00FF << count));
  return (pairs & 0xFFFF) | pairs >> 16 << 2 * count;
}
inline std::uint32_t apart(std::uint32_t bits, unsigned count) {
  const std::uint32_t both = (1u << 2 * count) - 1, one = ((1u << count) - 1) * 0x0001'0001;
  const std::uint32_t pairs = (bits & both) | (bits >> 2 * count) << 16;
  return (pairs & one) | (pairs >> count & one) << 8;
}

// The rest of a value above the escape symbol is written in plain digits, which are added up. The
// digit 31 means that another digit follows.
inline constexpr unsigned kDigitBits = 5;
inline constexpr std::uint32_t kMoreDigits = (1u << kDigitBits) - 1;

// Replaces each value without a symbol of its own by the escape symbol, and puts the digits of its
// rest. Begins with the last lane, because the encoder runs backwards.
template <class Fast>
EightBytes put_digits(Fast& fast, EightBytes values, std::uint32_t escape) {
  for (std::size_t k = kLanes; k-- > 0;) {
    const auto value = static_cast<std::uint8_t>(values >> 8 * k);
    if (value < escape) continue;
    const std::uint32_t rest = value - escape;
    fast.put_plain(rest % kMoreDigits, kDigitBits);
    for (std::uint32_t left = rest; left >= kMoreDigits; left -= kMoreDigits) {
      fast.put_plain(kMoreDigits, kDigitBits);
    }
    values -= EightBytes{rest} << 8 * k;
  }
  return values;
}

// A rest above `most` is returned as most + 1.
template <std::size_t kStates>
std::uint32_t get_digits(Decoder<kStates>& decoder, std::uint32_t most) {
  std::uint32_t rest = 0;
  while (true) {
    const std::uint32_t digit = decoder.get_plain(kDigitBits);
    rest += digit;
    if (digit < kMoreDigits || rest > most) return std::min(rest, most + 1);
  }
}

// Puts `count` codes from number `begin` on, one in each of the first lanes.
template <bool kHasLevels>
[[gnu::always_inline]] inline void put_eight(typename Encoder<1>::Fast& fast, Lanes& lanes,
                                             const CodeBlocks::Block& block, const CodeTables& t,
                                             std::size_t begin, std::size_t count) {
  const unsigned plain_count = t.shift + 1;
  const EightBytes low = ((1u << t.shift) - 1) * kOnes, all = (0xFFu >> t.shift) * kOnes;
  const EightBytes used = ~EightBytes{0} >> 8 * (kLanes - count);
  const EightBytes places = bytes_at(block.places + begin), codes = bytes_at(block.codes + begin);
  // The first place that may follow the previous code. The unused bytes above may
  // become anything.
  const EightBytes next =
      (places << 8) + (kOnes << 8) + (begin == 0 ? 0 : block.places[begin - 1] + 1u);
  const EightBytes gaps = (places - next) & used;
  const EightBytes signs = codes >> 7 & kOnes;
  if constexpr (kHasLevels) {
    EightBytes levels = ((codes ^ signs * 0xFF) - (kOnes - signs)) & used;  // ~code is -code - 1
    if (at_least(levels, kLevelSymbols - 1) != 0) [[unlikely]] {
      levels = put_digits(fast, levels, kLevelSymbols - 1);
    }
    put_symbols<kLevelSymbols>(lanes, fast.words, *t.level, widened(levels), count);
  }
  EightBytes high = gaps >> t.shift & all;
  if (at_least(high, kGapSymbols - 1) != 0) [[unlikely]] {
    high = put_digits(fast, high, kGapSymbols - 1);
  }
  const EightBytes plain = ((gaps & low) << 1 | signs) & used;
  if (count > kPlainAtOnce) {
    fast.put_plain(together(static_cast<std::uint32_t>(plain >> 32), plain_count),
                   plain_count * static_cast<unsigned>(count - kPlainAtOnce));
  }
  fast.put_plain(together(static_cast<std::uint32_t>(plain), plain_count),
                 plain_count * static_cast<unsigned>(std::min(count, kPlainAtOnce)));
  put_symbols<kGapSymbols>(lanes, fast.words, t.gap, widened(high), count);
}

template <bool kHasLevels>
void put_codes_of(LaneEncoder& encoder, const CodeBlocks::Block& block, const CodeTables& t) {
  typename Encoder<1>::Fast fast = encoder.fast();
  Lanes lanes = encoder.lanes;
  std::size_t begin = block.count / kLanes * kLanes;
  if (const std::size_t rest = block.count - begin; rest > 0) {
    put_eight<kHasLevels>(fast, lanes, block, t, begin, rest);
  }
  while (begin > 0) {
    begin -= kLanes;
    put_eight<kHasLevels>(fast, lanes, block, t, begin, kLanes);
  }
  encoder.lanes = lanes;
  encoder.go_on_from(fast);
}

inline void put_codes(LaneEncoder& encoder, const CodeBlocks::Block& block, const CodeTables& t) {
  if (!encoder.has_room(block.count + kLanes)) {
    encoder.give_up();
  } else if (t.level != nullptr) {
    put_codes_of<true>(encoder, block, t);
  } else {
    put_codes_of<false>(encoder, block, t);
  }
}

template <std::size_t kSymbols>
[[gnu::always_inline]] inline Lanes get_eight(Decoder<1>& decoder, Lanes& lanes, const Table& table,
                                              std::size_t count) {
  return decoder.get_words<kWordsOfEight>(
      [&](const std::byte*& words) { return get_symbols<kSymbols>(lanes, words, table, count); });
}

inline bool has_any(const Eight& values, std::uint32_t value) {
  std::uint32_t any = 0;
  for (const std::uint32_t one : values) any |= one == value ? 1u : 0u;
  return any != 0;
}

// Reads the digits after escape symbols in the first `count` lanes, and adds them to the values.
inline void add_digits(Decoder<1>& decoder, Eight& values, std::size_t count, std::uint32_t escape,
                       std::uint32_t most) {
  for (std::size_t k = 0; k < count; ++k) {
    if (values[k] == escape) values[k] += get_digits(decoder, most);
  }
}

// Decodes the codes of the first `count` lanes, and moves `next` behind the place of the last one.
// Returns false for bytes that no encoder writes.
template <bool kHasLevels, class Target>
[[gnu::always_inline]] inline bool add_eight(Decoder<1>& decoder, Lanes& lanes, const CodeTables& t,
                                             std::size_t count, Target target,
                                             std::uint32_t& next) {
  const unsigned plain_count = t.shift + 1;
  const auto plain_of = [&](std::size_t codes) {
    return apart(decoder.get_plain(plain_count * static_cast<unsigned>(codes)), plain_count);
  };
  Eight gaps = values_of(get_eight<kGapSymbols>(decoder, lanes, t.gap, count));
  EightBytes plain = plain_of(std::min(count, kPlainAtOnce));
  if (count > kPlainAtOnce) plain |= EightBytes{plain_of(count - kPlainAtOnce)} << 32;
  if (has_any(gaps, kGapSymbols - 1)) [[unlikely]] {
    add_digits(decoder, gaps, count, kGapSymbols - 1, kBlock);
  }
  Eight levels{};
  if constexpr (kHasLevels) {
    levels = values_of(get_eight<kLevelSymbols>(decoder, lanes, *t.level, count));
    if (has_any(levels, kLevelSymbols - 1)) [[unlikely]] {
      add_digits(decoder, levels, count, kLevelSymbols - 1, kMostLevel);
      for (std::size_t k = 0; k < count; ++k) {
        if (levels[k] > kMostLevel) return false;
      }
    }
  }
  const Eight bits = values_of(widened(plain));
  std::array<typename Target::Value, kLanes> values;
  for (std::size_t k = 0; k < kLanes; ++k) {
    gaps[k] = gaps[k] << t.shift | bits[k] >> 1;
    values[k] = target.value(levels[k], bits[k] & 1u);
  }
  Eight places;
  for (std::size_t k = 0; k < count; ++k) {
    places[k] = next + gaps[k];
    next = places[k] + 1;
  }
  if (next > target.size()) return false;
  for (std::size_t k = 0; k < count; ++k) target.add_now(places[k], values[k]);
  return true;
}

template <bool kHasLevels, class Target>
bool add_codes_of(LaneDecoder& decoder, const CodeTables& t, std::size_t count, Target target) {
  std::uint32_t next = 0;  // the first place that may follow
  Lanes lanes = decoder.lanes;
  for (; count >= kLanes; count -= kLanes) {
    if (!add_eight<kHasLevels>(decoder, lanes, t, kLanes, target, next)) return false;
  }
  if (count > 0 && !add_eight<kHasLevels>(decoder, lanes, t, count, target, next)) return false;
  decoder.lanes = lanes;
  return !decoder.has_failed();
}

// Decodes the `count` codes of a block. Returns false for bytes that no encoder writes.
template <class Target>
bool add_codes(LaneDecoder& decoder, const CodeTables& t, std::size_t count, const Target& target) {
  return t.level != nullptr ? add_codes_of<true>(decoder, t, count, target)
                            : add_codes_of<false>(decoder, t, count, target);
}

}  // namespace dp::entropy
