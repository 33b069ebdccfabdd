#include "kernels/codecs/entropy_coder.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/base/error.hpp"
#include "kernels/codecs/entropy_stream.hpp"
#include "kernels/codecs/entropy_tables.hpp"

namespace dp::entropy {
namespace {

constexpr std::uint32_t kMostLevel = 126;

// What a block holds.
struct BlockCounts {
  std::uint16_t count, level_sum;
};

// The places of the codes that are not zero, ascending; returns how many.
std::size_t find_places(std::span<const std::int8_t> block, std::uint8_t* places) {
  std::size_t count = 0, i = 0;
  for (; i + 8 <= block.size(); i += 8) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, block.data() + i, sizeof eight);
    if (eight == 0) continue;
    for (std::size_t k = i; k < i + 8; ++k) {
      places[count] = static_cast<std::uint8_t>(k);
      count += block[k] != 0 ? 1 : 0;
    }
  }
  for (; i < block.size(); ++i) {
    places[count] = static_cast<std::uint8_t>(i);
    count += block[i] != 0 ? 1 : 0;
  }
  return count;
}

BlockCounts counts_of(std::span<const std::int8_t> block) {
  std::uint32_t count = 0, sum = 0;
#pragma omp simd reduction(+ : count, sum)
  for (std::size_t i = 0; i < block.size(); ++i) {
    const int code = block[i];
    count += code != 0 ? 1u : 0u;
    sum += static_cast<std::uint32_t>(code < 0 ? -code : code);
  }
  return {.count = static_cast<std::uint16_t>(count),
          .level_sum = static_cast<std::uint16_t>(sum - count)};
}

std::size_t blocks_of(std::size_t n) { return (n + kBlock - 1) / kBlock; }

// A symbol at the end of a table, as often as needed, then the rest: backwards.
template <std::uint32_t kSymbols>
void put_long(Encoder& encoder, const Table& table, std::uint32_t value) {
  encoder.put(table, value % (kSymbols - 1));
  for (; value >= kSymbols - 1; value -= kSymbols - 1) encoder.put(table, kSymbols - 1);
}

// A value above `most` is returned as one above it.
template <std::uint32_t kSymbols>
std::uint32_t get_long(Decoder& decoder, const Table& table, std::uint32_t most) {
  std::uint32_t value = 0;
  while (true) {
    const auto symbol = static_cast<std::uint32_t>(decoder.get(table));
    value += symbol;
    if (symbol < kSymbols - 1 || value > most) return std::min(value, most + 1);
  }
}

// The contexts in which a block is coded: buckets of the blocks before it.
struct Context {
  std::size_t count = 0, size = 0;
};

void put_block(Encoder& encoder, std::span<const std::int8_t> block, BlockCounts counts,
               Context before) {
  const Tables& t = tables();
  const std::size_t bucket = t.bucket_of_count[counts.count];
  if (counts.count > 0) {
    const std::size_t size = size_bucket(counts.count, counts.level_sum);
    const unsigned shift = t.shift[bucket];
    std::array<std::uint8_t, kBlock + 8> places;
    const std::size_t count = find_places(block, places.data());
    for (std::size_t j = count; j-- > 0;) {
      const int code = block[places[j]];
      const std::uint32_t gap =
          j == 0 ? places[0] : static_cast<std::uint32_t>(places[j] - places[j - 1] - 1);
      const auto level = static_cast<std::uint32_t>((code < 0 ? -code : code) - 1);
      if (size > 0) put_long<kLevelSymbols>(encoder, t.level[size], level);
      encoder.put_plain((gap & ((1u << shift) - 1)) << 1 | (code < 0 ? 1u : 0u), shift + 1);
      put_long<kGapSymbols>(encoder, t.gap[bucket], gap >> shift);
    }
    encoder.put(t.size[before.size], size);
  }
  const auto [first, bits] = kCountBuckets[bucket];
  encoder.put_plain(static_cast<std::uint32_t>(counts.count - first), bits);
  encoder.put(t.count[before.count], bucket);
}

// False for bytes that no encoder writes.
bool add_block(Decoder& decoder, Context& context, float step, std::span<float> out) {
  const Tables& t = tables();
  const std::size_t bucket = decoder.get(t.count[context.count]);
  const auto [first, bits] = kCountBuckets[bucket];
  const std::size_t count = first + decoder.get_plain(bits);
  context.count = bucket;
  if (count > out.size()) return false;
  if (count == 0) return true;
  const std::size_t size = decoder.get(t.size[context.size]);
  context.size = size;
  const unsigned shift = t.shift[bucket];
  std::size_t next = 0;  // the first place that may come
  for (std::size_t j = 0; j < count; ++j) {
    const std::uint32_t high = get_long<kGapSymbols>(decoder, t.gap[bucket], kBlock);
    const std::uint32_t plain = decoder.get_plain(shift + 1);
    const std::size_t place = next + (high << shift | plain >> 1);
    const std::uint32_t level =
        size > 0 ? get_long<kLevelSymbols>(decoder, t.level[size], kMostLevel) : 0;
    if (place >= out.size() || level > kMostLevel) return false;
    const auto magnitude = static_cast<float>(static_cast<std::int32_t>(level) + 1);
    out[place] += ((plain & 1u) != 0 ? -magnitude : magnitude) * step;
    next = place + 1;
  }
  return !decoder.has_failed();
}

}  // namespace

// Per block its counts, and room for as many bytes of plain bits and of words as may be used.
std::size_t scratch_bytes(std::size_t n) { return blocks_of(n) * sizeof(BlockCounts) + 2 * n; }

std::optional<std::size_t> encode(std::span<const std::int8_t> codes, std::byte* out,
                                  std::byte* scratch) {
  const std::size_t n = codes.size(), blocks = blocks_of(n);
  DP_ASSERT(n <= kMostCodes, "{} codes in one piece", n);
  const auto block = [&](std::size_t b) {
    return codes.subspan(b * kBlock, std::min(kBlock, n - b * kBlock));
  };
  std::byte* const counts = scratch;
  std::byte* const room = scratch + blocks * sizeof(BlockCounts);
  const auto counts_at = [&](std::size_t b) {
    BlockCounts of_block{};
    std::memcpy(&of_block, counts + b * sizeof of_block, sizeof of_block);
    return of_block;
  };
  for (std::size_t b = 0; b < blocks; ++b) {
    const BlockCounts of_block = counts_of(block(b));
    std::memcpy(counts + b * sizeof of_block, &of_block, sizeof of_block);
  }
  // Each block's size context is that of the last block before it that is not empty.
  Encoder encoder({room, n}, {room + n, n});
  const Tables& t = tables();
  std::size_t before = blocks;  // the size context comes from block before - 1
  const auto context_of = [&](std::size_t b) {
    Context context;
    if (b > 0) context.count = t.bucket_of_count[counts_at(b - 1).count];
    before = std::min(before, b);
    while (before > 0 && counts_at(before - 1).count == 0) --before;
    if (before > 0) {
      const BlockCounts last = counts_at(before - 1);
      context.size = size_bucket(last.count, last.level_sum);
    }
    return context;
  };
  for (std::size_t b = blocks; b-- > 0;) {
    put_block(encoder, block(b), counts_at(b), context_of(b));
    if (encoder.is_full()) return std::nullopt;
  }
  return encoder.finish(out, n);
}

bool decode_add(std::span<const std::byte> in, float step, std::span<float> out) {
  Decoder decoder(in);
  if (decoder.has_failed()) return false;
  Context context;
  for (std::size_t begin = 0; begin < out.size(); begin += kBlock) {
    const std::size_t m = std::min(kBlock, out.size() - begin);
    if (!add_block(decoder, context, step, out.subspan(begin, m))) return false;
  }
  return decoder.is_at_end();
}

}  // namespace dp::entropy
