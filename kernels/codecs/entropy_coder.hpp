// An entropy coder for whole numbers from -127 to 127 of which most are zero: how `ecq` writes its
// codes.
//
// Codes go in blocks of 256, the last one shorter. A block says how many of its codes are not zero
// and how large they are; for each of these then follow the number of zeros before it (its gap),
// its level (magnitude - 1) and its sign. Blocks differ much in how full they are, layers even
// more. So the count chooses the table of the gaps, and nothing has to be learnt or sent: on
// gradients with their residuals the built-in tables cost 1 to 2 % more than the best ones, and all
// of it 6 to 25 % less than the entropy of the codes taken one by one.
//
//   count   its bucket (kCountBuckets) by a table that the last block's bucket chooses, then its
//           place in the bucket as plain bits
//   size    if the count is not 0: the bucket of the levels' mean (kSizeBuckets), by a table that
//           the last one chooses
//   gap     by the count's table, without its lowest `shift` bits; these and the sign as plain bits
//   level   by the size's table; not if all levels of the block are 0
//
// A symbol that ends a table stands for all further ones, and the rest follows (kGapSymbols - 1
// zeros, or kLevelSymbols - 1, are taken off). Table entries are probabilities in 1/2048: of
// geometric distributions for gaps and levels, falling with the distance for buckets.
//
// Symbols are coded by range asymmetric numeral systems (rANS; Duda 2013) with one state of 32 bits
// or two that are taken in turn, which exchange 16-bit words with memory. The encoder goes
// backwards through the codes, and the decoder forwards. Plain bits form a string of their own,
// which is read from the end of the payload towards its beginning, so that neither string needs a
// length.
//
// Wire format, little-endian:
//     u8 head         bits 0-4: how many plain bits (less than 32) are not in words; bit 5: one
//                     state; bit 6: 1; bit 7: 0
//     u32 state[2]    the decoder begins with the second one; or state[1]
//     u16 words[]
//     u32 plain[]     further plain bits, from the last word to the first one
//     u8 first[]      the first plain bits: as many bytes as they need
// Plain bits are taken from the lowest bit on. Only whole-number operations decide the bytes, but
// for the tables, which are made by IEEE sums and products of doubles: they are the same on every
// machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

namespace dp::entropy {

inline constexpr std::size_t kBlock = 256;
inline constexpr std::size_t kMostCodes = std::size_t{1} << 24;

// The codes of a piece that are not zero, block by block, in the caller's memory at any address.
class CodeBlocks {
 public:
  struct Block {
    std::uint32_t count = 0;               // of the codes that are not zero
    std::uint32_t level_sum = 0;           // of their levels
    const std::uint8_t* places = nullptr;  // in the block, ascending
    const std::int8_t* codes = nullptr;
  };

  // The memory for n <= kMostCodes codes, in bytes.
  [[nodiscard]] static std::size_t bytes(std::size_t n);
  CodeBlocks(std::byte* memory, std::size_t n);

  // Adds the next block. The last one is filled up with zeros.
  void add(const std::int8_t (&codes)[kBlock]);
  // Adds a block of zeros.
  void add_empty() { append({}); }

  // Codes of the piece, and those that are not zero.
  [[nodiscard]] std::size_t codes() const { return all_codes_; }
  [[nodiscard]] std::size_t not_zero() const { return not_zero_; }
  // Blocks that were added.
  [[nodiscard]] std::size_t size() const { return size_; }
  // A block without places and codes.
  [[nodiscard]] Block head(std::size_t block) const {
    Head of_block;
    std::memcpy(&of_block, heads_ + block * sizeof of_block, sizeof of_block);
    return {.count = of_block.count, .level_sum = of_block.level_sum};
  }
  // Calls use(block, its number) from the last block to the first, as long as it returns true;
  // returns whether it always did.
  template <class Use>
  bool for_each_backwards(Use use) const {
    std::size_t begin = not_zero_;
    for (std::size_t b = size_; b-- > 0;) {
      Block block = head(b);
      begin -= block.count;
      block.places = places_ + begin;
      block.codes = codes_ + begin;
      if (!use(block, b)) return false;
    }
    return true;
  }

 private:
  struct Head {
    std::uint16_t count = 0, level_sum = 0;
  };

  void append(Head head) {
    std::memcpy(heads_ + size_++ * sizeof head, &head, sizeof head);
    not_zero_ += head.count;
  }

  std::byte* heads_;
  std::uint8_t* places_;
  std::int8_t* codes_;
  std::size_t all_codes_, size_ = 0, not_zero_ = 0;
};

// Encodes the n = blocks.codes() codes into `out`, which has room for n bytes, and returns how many
// bytes it took; nothing if they would be more than n, and `out` is then undefined. `room` is
// scratch memory of n bytes at any address, and overlaps with nothing.
[[nodiscard]] std::optional<std::size_t> encode(const CodeBlocks& blocks, std::byte* out,
                                                std::byte* room);

// out[i] += code i times step. False for bytes that encode() does not write, as far as they can be
// told; a part of `out` may then have changed. Reads nothing outside of `in`, whatever it holds.
[[nodiscard]] bool decode_add(std::span<const std::byte> in, float step, std::span<float> out);

}  // namespace dp::entropy
