// Codes eight symbols of one table at once. Each symbol has its own rANS state, a *lane*. The
// entropy coder uses lanes in segments with many nonzero codes (entropy_coder.hpp has the format).
//
// A lane's state is at least 2^15 and less than 2^31, because AVX2 compares signed numbers only.
// With AVX2 the lanes are the elements of one vector. Otherwise loops write and read the same
// bytes.
#pragma once

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/codecs/entropy_stream.hpp"
#include "kernels/codecs/entropy_tables.hpp"

namespace dp::entropy {

inline constexpr std::size_t kLanes = 8;
inline constexpr std::uint32_t kLeastLane = 1u << 15;

#ifdef __AVX2__
using Lanes = __m256i;
#else
using Lanes = std::array<std::uint32_t, kLanes>;
#endif

// One number for each lane: a state, a symbol or a value.
using Eight = std::array<std::uint32_t, kLanes>;

#define DP_LANES [[gnu::always_inline]] inline

DP_LANES Lanes lanes_of(const Eight& values) { return std::bit_cast<Lanes>(values); }
DP_LANES Lanes least_lanes() {
  Eight least;
  least.fill(kLeastLane);
  return lanes_of(least);
}
DP_LANES Eight values_of(Lanes lanes) { return std::bit_cast<Eight>(lanes); }

// The most bytes of words that eight symbols write or read. Vector instructions always touch this
// many bytes.
inline constexpr std::size_t kWordsOfEight = kLanes * sizeof(std::uint16_t);

#ifdef __AVX2__

// Orders of elements for each set of lanes. Bit k of a set stands for lane k.
struct LaneOrders {
  // take[set][k]: the place of lane k's word among the words of the set.
  // give[set]: the set's lanes in ascending order, at the end of the eight places.
  std::array<std::array<std::uint8_t, kLanes>, 256> take{}, give{};

  constexpr LaneOrders() {
    for (std::size_t set = 0; set < 256; ++set) {
      std::size_t taken = 0, given = kLanes - static_cast<std::size_t>(std::popcount(set));
      for (std::size_t k = 0; k < kLanes; ++k) {
        if ((set >> k & 1) == 0) continue;
        take[set][k] = static_cast<std::uint8_t>(taken++);
        give[set][given++] = static_cast<std::uint8_t>(k);
      }
    }
  }
};
inline constexpr LaneOrders kLaneOrders;

DP_LANES __m256i order_at(const std::array<std::uint8_t, kLanes>& order) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(order.data())));
}

// All bits set in the first `count` lanes.
DP_LANES __m256i first_lanes(std::size_t count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

DP_LANES std::uint32_t set_of(__m256i flags) {
  return static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(flags)));
}

DP_LANES __m256i chosen(__m256i otherwise, __m256i value, __m256i flags) {
  return _mm256_blendv_epi8(otherwise, value, flags);
}

// entries[symbol] for each lane.
template <std::size_t kSymbols>
DP_LANES __m256i entries_of(const std::array<std::uint32_t, kGapSymbols>& entries,
                            __m256i symbols) {
  static_assert(kSymbols == 16 || kSymbols == 24);
  const auto eight = [&](std::size_t from) {
    const auto* const at = reinterpret_cast<const __m256i*>(entries.data() + from);
    return _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(_mm256_loadu_si256(at), symbols));
  };
  // Moves the bit that selects to the sign, which blendv reads.
  const __m256 by_8 = _mm256_castsi256_ps(_mm256_slli_epi32(symbols, 28));
  __m256 found = _mm256_blendv_ps(eight(0), eight(8), by_8);
  if constexpr (kSymbols == 24) {
    const __m256 by_16 = _mm256_castsi256_ps(_mm256_slli_epi32(symbols, 27));
    found = _mm256_blendv_ps(found, eight(16), by_16);
  }
  return _mm256_castps_si256(found);
}

// x * y >> 32 for each lane.
DP_LANES __m256i high_product(__m256i x, __m256i y) {
  const __m256i even = _mm256_srli_epi64(_mm256_mul_epu32(x, y), 32);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), _mm256_srli_epi64(y, 32));
  return _mm256_blend_epi32(even, odd, 0b1010'1010);
}

// The symbol at a place of the table, for each lane. On some processors, 32-bit gathers take longer
// than these loads (AMD Zen 1: a tenth of the decoder's time).
DP_LANES __m256i symbols_at(const Table& table, __m256i places) {
  const auto two = [&](long long pair) {
    const auto both = static_cast<std::uint64_t>(pair);
    const std::uint32_t first = table.symbol_of[both & (kTableSize - 1)];
    return std::uint64_t{first | std::uint32_t{table.symbol_of[both >> 32]} << 8};
  };
  const std::uint64_t all =
      two(_mm256_extract_epi64(places, 0)) | two(_mm256_extract_epi64(places, 1)) << 16 |
      two(_mm256_extract_epi64(places, 2)) << 32 | two(_mm256_extract_epi64(places, 3)) << 48;
  return _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(all)));
}

#endif

// Encodes one symbol in each of the first `count` lanes, and writes words below `words`, where
// there must be room for kWordsOfEight bytes. The other elements of `symbols` must be symbols of
// the table, too.
template <std::size_t kSymbols>
DP_LANES void put_symbols(Lanes& lanes, std::byte*& words, const Table& table, Lanes symbols,
                          std::size_t count) {
#ifdef __AVX2__
  const __m256i reciprocal = entries_of<kSymbols>(table.lane_reciprocals, symbols);
  const __m256i rest = entries_of<kSymbols>(table.lane_rests, symbols);
  const __m256i complement = _mm256_and_si256(_mm256_srli_epi32(rest, LaneSymbol::kComplementFrom),
                                              _mm256_set1_epi32(kTableSize - 1));
  const __m256i bias = _mm256_and_si256(rest, _mm256_set1_epi32(LaneSymbol::kMostBias));
  const __m256i share = _mm256_sub_epi32(_mm256_set1_epi32(kTableSize), complement);
  const __m256i last =
      _mm256_sub_epi32(_mm256_slli_epi32(share, LaneSymbol::kLimitBits), _mm256_set1_epi32(1));
  __m256i gives = _mm256_cmpgt_epi32(lanes, last);
  if (count < kLanes) gives = _mm256_and_si256(gives, first_lanes(count));
  const std::uint32_t set = set_of(gives);
  const __m256i low =
      _mm256_and_si256(_mm256_permutevar8x32_epi32(lanes, order_at(kLaneOrders.give[set])),
                       _mm256_set1_epi32(0xFFFF));
  const __m128i some =
      _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(words - kWordsOfEight), some);
  words -= sizeof(std::uint16_t) * static_cast<std::size_t>(std::popcount(set));
  const __m256i state = chosen(lanes, _mm256_srli_epi32(lanes, 16), gives);
  const __m256i quotient = _mm256_srlv_epi32(high_product(state, reciprocal),
                                             _mm256_srli_epi32(rest, LaneSymbol::kShiftFrom));
  const __m256i next =
      _mm256_add_epi32(_mm256_add_epi32(state, bias), _mm256_mullo_epi32(quotient, complement));
  lanes = count < kLanes ? chosen(lanes, next, first_lanes(count)) : next;
#else
  for (std::size_t k = count; k-- > 0;) {
    const std::uint32_t rest = table.lane_rests[symbols[k]];
    const std::uint32_t complement = rest >> LaneSymbol::kComplementFrom & (kTableSize - 1);
    const auto word = static_cast<std::uint16_t>(lanes[k]);
    std::memcpy(words - sizeof word, &word, sizeof word);
    const std::uint32_t gives =
        mask_if(lanes[k] >= (kTableSize - complement) << LaneSymbol::kLimitBits);
    words -= gives & sizeof word;
    const std::uint32_t state = lanes[k] >> (gives & 16);
    const std::uint64_t product = std::uint64_t{state} * table.lane_reciprocals[symbols[k]];
    const auto quotient =
        static_cast<std::uint32_t>(product >> 32 >> (rest >> LaneSymbol::kShiftFrom));
    lanes[k] = state + quotient * complement + (rest & LaneSymbol::kMostBias);
  }
#endif
}

// Decodes one symbol from each of the first `count` lanes, and reads words at `words`, where
// kWordsOfEight bytes must be readable. The other elements of the result have no meaning.
template <std::size_t kSymbols>
DP_LANES Lanes get_symbols(Lanes& lanes, const std::byte*& words, const Table& table,
                           std::size_t count) {
#ifdef __AVX2__
  const __m256i place = _mm256_and_si256(lanes, _mm256_set1_epi32(kTableSize - 1));
  const __m256i symbols = symbols_at(table, place);
  const __m256i part = entries_of<kSymbols>(table.parts, symbols);
  const __m256i offset = _mm256_sub_epi32(place, _mm256_and_si256(part, _mm256_set1_epi32(0xFFFF)));
  const __m256i share = _mm256_srli_epi32(part, 16);
  const __m256i state =
      _mm256_add_epi32(_mm256_mullo_epi32(share, _mm256_srli_epi32(lanes, kTableBits)), offset);
  __m256i takes = _mm256_cmpgt_epi32(_mm256_set1_epi32(kLeastLane), state);
  if (count < kLanes) takes = _mm256_and_si256(takes, first_lanes(count));
  const std::uint32_t set = set_of(takes);
  const __m256i all_words =
      _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(words)));
  const __m256i word = _mm256_permutevar8x32_epi32(all_words, order_at(kLaneOrders.take[set]));
  words += sizeof(std::uint16_t) * static_cast<std::size_t>(std::popcount(set));
  const __m256i next = chosen(state, _mm256_or_si256(_mm256_slli_epi32(state, 16), word), takes);
  lanes = count < kLanes ? chosen(lanes, next, first_lanes(count)) : next;
  return symbols;
#else
  Lanes symbols{};
  for (std::size_t k = 0; k < count; ++k) {
    const std::uint32_t place = lanes[k] & (kTableSize - 1);
    symbols[k] = table.symbol_of[place];
    const std::uint32_t part = table.parts[symbols[k]];
    const std::uint32_t state = (part >> 16) * (lanes[k] >> kTableBits) + place - (part & 0xFFFF);
    std::uint16_t word = 0;
    std::memcpy(&word, words, sizeof word);
    const bool takes = state < kLeastLane;
    words += takes ? sizeof word : 0;
    lanes[k] = takes ? state << 16 | word : state;
  }
  return symbols;
#endif
}

#undef DP_LANES

}  // namespace dp::entropy
