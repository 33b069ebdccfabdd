// The built-in tables of the entropy coder, and what decides which one is used (entropy_coder.hpp).
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
  std::uint16_t first;  // the least count
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

// A symbol's share of the table: [start, start + share).
struct Symbol {
  std::uint32_t start = 0, share = 0;
};

struct Table {
  std::array<Symbol, kGapSymbols> symbols;
  // For each place of the table: the symbol in bits 0-7, its share in 8-19, the place within its
  // share in 20-31.
  std::array<std::uint32_t, kTableSize> places;
};

struct Tables {
  std::array<Table, kCountBuckets.size()> count;  // by the last block's bucket
  std::array<Table, kSizeBuckets> size;           // by the last block's bucket that has one
  std::array<Table, kCountBuckets.size()> gap;    // by the count's bucket
  std::array<Table, kSizeBuckets> level;          // by the size's bucket
  std::array<std::uint8_t, kCountBuckets.size()> shift{};
  std::array<std::uint8_t, kBlock + 1> bucket_of_count{};

  Tables();
};

// Made once.
[[nodiscard]] const Tables& tables();

// The bucket of the mean of `count` levels with that sum: 0 if all are 0, else by factors of 1.5
// from 1/16 on.
[[nodiscard]] std::size_t size_bucket(std::uint32_t count, std::uint32_t sum);

}  // namespace dp::entropy
