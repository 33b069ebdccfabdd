// The built-in tables of the entropy coder, and the rules that select them (entropy_coder.hpp).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/codecs/entropy_coder.hpp"

namespace dp::entropy {

inline constexpr unsigned kTableBits = 11;
inline constexpr std::uint32_t kTableSize = 1u << kTableBits;
inline constexpr std::uint32_t kGapSymbols = 24, kLevelSymbols = 16;
inline constexpr std::size_t kSizeBuckets = 12;

struct CountBucket {
  std::uint16_t first;  // the smallest count
  std::uint8_t bits;    // the bucket has 2^bits counts
};
inline constexpr std::array<CountBucket, 18> kCountBuckets{{{0, 0},
                                                            {1, 0},
                                                            {2, 0},
                                                            {3, 0},
                                                            {4, 0},
                                                            {5, 1},
                                                            {7, 1},
                                                            {9, 2},
                                                            {13, 2},
                                                            {17, 3},
                                                            {25, 3},
                                                            {33, 4},
                                                            {49, 4},
                                                            {65, 5},
                                                            {97, 5},
                                                            {129, 5},
                                                            {161, 5},
                                                            {193, 6}}};
static_assert(kCountBuckets.back().first + (1u << kCountBuckets.back().bits) == kBlock + 1);

// A symbol's share of the table: [start, start + share), 1 <= share < kTableSize. A state x becomes
//
//     (x / share << kTableBits) + x % share + start = x + x / share * (kTableSize - share) + start
//
// with x / share = x * reciprocal >> 64, which is exact for states of 32 bits (Granlund and
// Montgomery 1994): reciprocal = ceil(2^64 / share). For a share of 1 the reciprocal would take 65
// bits. Then 2^64 - 1 is used, which gives x - 1 instead of x, and `bias` makes up for the
// difference.
struct Symbol {
  Symbol() = default;
  Symbol(std::uint32_t start, std::uint32_t share);
  [[nodiscard]] std::uint32_t share() const { return kTableSize - complement; }
  // The state after the symbol. Requires state < limit.
  [[nodiscard]] std::uint32_t coded(std::uint32_t state) const {
    __extension__ using Product = unsigned __int128;
    const auto quotient =
        static_cast<std::uint32_t>(static_cast<Product>(reciprocal) * state >> 64);
    return state + quotient * complement + bias;
  }

  std::uint64_t reciprocal = 0;
  std::uint32_t limit = 0;       // states from here on write a word first
  std::uint32_t bias = 0;        // start; plus kTableSize - 1 if the share is 1
  std::uint32_t complement = 0;  // kTableSize - share
};

// The same for a state of a lane (entropy_lanes.hpp), which is below 2^31. There
//
//     x / share = (x * reciprocal >> 32) >> shift
//
// is exact with reciprocal = ceil(2^(32 + shift) / share) and 2^shift < share <= 2^(shift + 1). A
// share of 1 is treated as above.
struct LaneSymbol {
  static constexpr unsigned kLimitBits = 31 - kTableBits;
  // The bits at which the parts of `rest` begin. The lowest bits hold the bias.
  static constexpr unsigned kComplementFrom = 12, kShiftFrom = kComplementFrom + kTableBits;
  static constexpr std::uint32_t kMostBias = (1u << kComplementFrom) - 1;

  LaneSymbol() = default;
  LaneSymbol(std::uint32_t start, std::uint32_t share);

  std::uint32_t reciprocal = 0;
  std::uint32_t rest = 0;  // bias, complement, shift
};

// The part that a decoder without lanes reads is kept small, because layers evict the tables from
// the caches between two segments. With tables that had an entry for every place (8 KB each),
// waiting for memory took half of the decoder's time in training.
struct Table {
  static constexpr unsigned kGroupBits = 2;
  struct Found {
    std::uint32_t symbol, start, share;
  };

  // The symbol at a place of the table. The search begins at the symbol of the first place in its
  // group.
  [[nodiscard, gnu::always_inline]] Found at(std::uint32_t place) const {
    std::uint32_t symbol = first_of_group[place >> kGroupBits];
    std::uint32_t part = parts[symbol];
    while (place - (part & 0xFFFFu) >= part >> 16) [[unlikely]] part = parts[++symbol];
    return {.symbol = symbol, .start = part & 0xFFFFu, .share = part >> 16};
  }

  // The symbol at each place. Only lanes read it: their segments are long enough to pay for the
  // cache misses, and a search would have to wait for the slowest of eight lanes.
  std::array<std::uint8_t, kTableSize> symbol_of;
  std::array<std::uint8_t, (kTableSize >> kGroupBits)> first_of_group;
  std::array<std::uint32_t, kGapSymbols> parts{};  // start in bits 0-15, share in 16-31
  std::array<std::uint32_t, kGapSymbols> lane_reciprocals{}, lane_rests{};  // of LaneSymbol
  std::array<Symbol, kGapSymbols> symbols;
};

struct Tables {
  std::array<Table, kCountBuckets.size()> count;  // by the previous block's bucket
  std::array<Table, kSizeBuckets> size;           // by the last nonempty block's bucket
  std::array<Table, kCountBuckets.size()> gap;    // by the count's bucket
  std::array<Table, kSizeBuckets> level;          // by the size's bucket
  std::array<std::uint8_t, kCountBuckets.size()> shift{};
  std::array<std::uint8_t, kBlock + 1> bucket_of_count{};

  Tables();
};

// The tables for a block's codes.
struct CodeTables {
  const Table& gap;
  const Table* level;  // null: all levels are 0
  unsigned shift;      // number of low bits of a gap that are plain
};

// The tables, which are built on the first call.
[[nodiscard]] const Tables& tables();

// The size bucket for `count` levels with the sum `sum`. It is 0 if the sum is 0, otherwise it
// depends on the mean level. The upper bounds of the other buckets are 1/16, 1.5/16, 1.5^2/16 and
// so on; the last bucket has none.
[[nodiscard]] std::size_t size_bucket(std::uint32_t count, std::uint32_t sum);

}  // namespace dp::entropy
