// An entropy coder for whole numbers from -127 to 127, most of which are zero. `ecq` writes its
// codes with it.
//
// Codes are grouped into blocks of 256, the last one shorter. For each block the coder writes the
// number of nonzero codes and their *size* (how large they are on average). Then, for each nonzero
// code, it writes the number of zeros before it (the *gap*), its *level* (magnitude - 1) and its
// sign.
//
// Blocks differ much in how many codes are nonzero, and layers differ even more. The count
// therefore selects the table for the gaps, and no table is learnt or sent. For gradients with
// their residuals added, payloads are 1 to 2 % longer than with the best possible tables. Payloads
// are still 6 to 25 % shorter than the entropy of the codes, if each code is taken by itself.
//
//   count   its bucket (kCountBuckets), coded with a table that the previous block's bucket
//           selects; then its position in the bucket, as plain bits
//   size    only if the count is not 0: the bucket of the mean level (kSizeBuckets), coded with a
//           table that the previous size selects
//   gap     without its lowest `shift` bits, coded with a table that the count selects; these bits
//           and the sign follow as plain bits
//   level   coded with a table that the size selects; omitted if all levels of the block are 0
//
// The last symbol of a gap or level table is an escape: it adds kGapSymbols - 1 (kLevelSymbols - 1)
// to the value, and another symbol follows (without lanes). Table entries are probabilities in
// units of 1/2048. Gaps and levels have geometric distributions; probabilities of buckets fall with
// the distance from the previous bucket.
//
// Symbols are coded by range asymmetric numeral systems (rANS; Duda 2013) with one 32-bit state, or
// with two that alternate; a state exchanges 16-bit words with memory. The encoder processes the
// codes backwards, the decoder forwards. Plain bits form a separate string, which is read from the
// payload's end towards its beginning, so neither string needs a length.
//
// Segments with many nonzero codes use *lanes*, so that vector instructions code eight symbols at
// once. The one state then codes counts and sizes only. The codes of a block are divided into
// groups of eight, of which the last one may be smaller; code k of a group belongs to lane k. For
// each group the decoder reads
//   1. the gap symbol of each code, from its lane's state;
//   2. the plain bits of each code;
//   3. for each gap symbol that is an escape, the rest of the gap as plain digits of 5 bits, which
//      are added up: 31 means that another digit follows;
//   4. unless all levels of the block are 0: the level symbol of each code, from its lane's state,
//      and then the rest of each level in digits.
// A lane's state is between 2^15 and 2^31; the others are between 2^16 and 2^32.
//
// Wire format, little-endian:
//     u8 head         bits 0-4: the number of plain bits in `first` (less than 32); bit 5: one
//                     state; bit 6: 1; bit 7: lanes (bit 5 is then set, too)
//     u32 lane[8]     only with lanes: their states
//     u32 state[2]    the decoder begins with the second one; if there is one state: u32 state[1]
//     u16 words[]
//     u32 plain[]     further plain bits, from the last word to the first one
//     u8 first[]      the first plain bits: as many bytes as they need
// Plain bits are taken from the lowest bit on. The bytes are the same on every machine: coding uses
// integers only, and the tables are built with IEEE sums and products of doubles.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

namespace dp::entropy {

inline constexpr std::size_t kBlock = 256;
inline constexpr std::size_t kMostCodes = std::size_t{1} << 24;

// The nonzero codes of a segment in the form in which a GPU writes and reads them. Blocks need not
// follow each other in `codes`.
struct CodeList {
  struct Block {
    std::uint32_t first = 0;                 // in `codes`
    std::uint16_t count = 0, level_sum = 0;  // as in CodeBlocks::Block
  };

  // The memory for n codes, aligned for Block.
  [[nodiscard]] static std::size_t bytes(std::size_t n);
  CodeList(std::byte* memory, std::size_t n);

  std::span<Block> blocks;
  std::uint16_t* codes;  // the place in the block in the lower byte, the code in the upper one
};

// The nonzero codes of a segment, block by block. They are stored in the caller's memory, at any
// address.
class CodeBlocks {
 public:
  struct Block {
    std::uint32_t count = 0;               // number of nonzero codes
    std::uint32_t level_sum = 0;           // sum of their levels
    const std::uint8_t* places = nullptr;  // positions in the block, ascending
    const std::int8_t* codes = nullptr;
  };

  // The memory for n <= kMostCodes codes, in bytes.
  [[nodiscard]] static std::size_t bytes(std::size_t n);
  CodeBlocks(std::byte* memory, std::size_t n);

  // Adds the next block. The last block must be padded with zeros.
  void add(const std::int8_t (&codes)[kBlock]);
  // Adds a block of zeros.
  void add_empty() { append({}); }
  // Adds a block of `list`.
  void add(const CodeList& list, std::size_t block);

  // The number of all codes of the segment, and the number of its nonzero codes.
  [[nodiscard]] std::size_t codes() const { return all_codes_; }
  [[nodiscard]] std::size_t not_zero() const { return not_zero_; }
  // The number of blocks added.
  [[nodiscard]] std::size_t size() const { return size_; }
  // A block's count and level sum, without places and codes.
  [[nodiscard]] Block head(std::size_t block) const {
    Head of_block;
    std::memcpy(&of_block, heads_ + block * sizeof of_block, sizeof of_block);
    return {.count = of_block.count, .level_sum = of_block.level_sum};
  }
  // Calls use(block, index) for the blocks from last to first, and stops when `use` returns false.
  // Returns whether `use` always returned true.
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

// Encodes the n = blocks.codes() codes into `out`, which has room for n bytes, and returns the
// number of bytes. Returns nothing if that would be more than n; the content of `out` is then
// undefined. `room` is scratch memory of n bytes, which may be at any address and must not overlap
// with anything else.
[[nodiscard]] std::optional<std::size_t> encode(const CodeBlocks& blocks, std::byte* out,
                                                std::byte* room);

// For every i, adds code i times `step` to out[i]. Returns false if it detects that encode() cannot
// have written these bytes; part of `out` may then have changed. Reads nothing outside of `in`,
// whatever bytes `in` holds.
[[nodiscard]] bool decode_add(std::span<const std::byte> in, float step, std::span<float> out);
// The same for n codes, which are written into `list` instead; level sums are left 0.
[[nodiscard]] bool decode(std::span<const std::byte> in, std::size_t n, const CodeList& list);

}  // namespace dp::entropy
