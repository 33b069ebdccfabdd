// Outline: the CRC instruction updates a remainder with the next eight bytes. It has a latency of
// three cycles and a throughput of one per cycle. To use the throughput, the input is divided into
// three parts, which are computed at the same time.
//
// The parts are joined as follows. Let a be the remainder over A, and b the remainder over B,
// started with 0. The remainder over A followed by B is then b xor c. Here c is a after as many
// further zero bytes as B is long. For a fixed length, the step from a to c is linear in the 32
// bits. It is computed with four tables, one for each byte of a.
#include "kernels/base/crc32c.hpp"

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#endif

namespace dp {
namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78u;  // reflected

using ByteTable = std::array<std::uint32_t, 256>;

constexpr std::uint32_t after_byte(std::uint32_t rest) {
  for (int bit = 0; bit < 8; ++bit) rest = (rest >> 1) ^ ((rest & 1) != 0 ? kPolynomial : 0u);
  return rest;
}

// kTables[k][b]: the remainder of byte b followed by k zero bytes.
constexpr std::array<ByteTable, 8> make_tables() {
  std::array<ByteTable, 8> tables{};
  for (std::uint32_t i = 0; i < 256; ++i) tables[0][i] = after_byte(i);
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::size_t i = 0; i < 256; ++i) {
      const std::uint32_t rest = tables[k - 1][i];
      tables[k][i] = (rest >> 8) ^ tables[0][rest & 0xFFu];
    }
  }
  return tables;
}
constexpr std::array<ByteTable, 8> kTables = make_tables();

std::uint64_t load(const std::byte* p) {
  static_assert(std::endian::native == std::endian::little);
  std::uint64_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

std::uint32_t by_tables(std::span<const std::byte> bytes) {
  std::uint32_t rest = ~0u;
  const std::byte* p = bytes.data();
  std::size_t n = bytes.size();
  for (; n >= 8; n -= 8, p += 8) {
    const std::uint64_t word = load(p) ^ rest;
    rest = 0;
    for (std::size_t k = 0; k < 8; ++k) rest ^= kTables[7 - k][(word >> (8 * k)) & 0xFFu];
  }
  for (; n > 0; --n, ++p) {
    rest = kTables[0][(rest ^ static_cast<std::uint32_t>(*p)) & 0xFFu] ^ (rest >> 8);
  }
  return ~rest;
}

#if defined(__x86_64__) || defined(__aarch64__)

// The bytes of each of the three parts, in long and in short messages.
constexpr std::size_t kLong = 4096, kShort = 256;

using Matrix = std::array<std::uint32_t, 32>;  // the image of each bit

constexpr std::uint32_t times(const Matrix& matrix, std::uint32_t vector) {
  std::uint32_t sum = 0;
  for (std::size_t bit = 0; vector != 0; ++bit, vector >>= 1) {
    if ((vector & 1) != 0) sum ^= matrix[bit];
  }
  return sum;
}

// Tables that compute a remainder after `length` further zero bytes; `length` is a power of two.
// Table [k] is for the k-th byte of the remainder.
constexpr std::array<ByteTable, 4> make_shift(std::size_t length) {
  Matrix matrix{};
  for (std::size_t bit = 0; bit < 32; ++bit) matrix[bit] = after_byte(1u << bit);
  for (; length > 1; length /= 2) {
    Matrix square{};
    for (std::size_t bit = 0; bit < 32; ++bit) square[bit] = times(matrix, matrix[bit]);
    matrix = square;
  }
  std::array<ByteTable, 4> tables{};
  for (std::size_t k = 0; k < 4; ++k) {
    for (std::uint32_t b = 0; b < 256; ++b) tables[k][b] = times(matrix, b << (8 * k));
  }
  return tables;
}
constexpr std::array<ByteTable, 4> kLongShift = make_shift(kLong), kShortShift = make_shift(kShort);

inline std::uint32_t shift(const std::array<ByteTable, 4>& tables, std::uint32_t rest) {
  return tables[0][rest & 0xFFu] ^ tables[1][(rest >> 8) & 0xFFu] ^
         tables[2][(rest >> 16) & 0xFFu] ^ tables[3][rest >> 24];
}

// Compiled for the CRC instruction; called only if the processor has it.
#if defined(__x86_64__)
#define DP_CRC_TARGET __attribute__((target("sse4.2")))
DP_CRC_TARGET inline std::uint32_t step(std::uint32_t rest, std::uint64_t word) {
  return static_cast<std::uint32_t>(_mm_crc32_u64(rest, word));
}
DP_CRC_TARGET inline std::uint32_t step(std::uint32_t rest, std::byte byte) {
  return _mm_crc32_u8(rest, static_cast<std::uint8_t>(byte));
}
bool has_instruction() { return __builtin_cpu_supports("sse4.2") != 0; }
#else
#define DP_CRC_TARGET __attribute__((target("+crc")))
DP_CRC_TARGET inline std::uint32_t step(std::uint32_t rest, std::uint64_t word) {
  return __crc32cd(rest, word);
}
DP_CRC_TARGET inline std::uint32_t step(std::uint32_t rest, std::byte byte) {
  return __crc32cb(rest, static_cast<std::uint8_t>(byte));
}
bool has_instruction() {
  constexpr unsigned long kCrc = 1ul << 7;  // HWCAP_CRC32
  return (getauxval(AT_HWCAP) & kCrc) != 0;
}
#endif

template <std::size_t kPart>
DP_CRC_TARGET const std::byte* three_parts(std::uint32_t& rest, const std::byte* p, std::size_t& n,
                                           const std::array<ByteTable, 4>& tables) {
  for (; n >= 3 * kPart; n -= 3 * kPart, p += 3 * kPart) {
    std::uint32_t a = rest, b = 0, c = 0;
    for (std::size_t i = 0; i < kPart; i += 8) {
      a = step(a, load(p + i));
      b = step(b, load(p + kPart + i));
      c = step(c, load(p + 2 * kPart + i));
    }
    rest = shift(tables, shift(tables, a) ^ b) ^ c;
  }
  return p;
}

DP_CRC_TARGET std::uint32_t by_instruction(std::span<const std::byte> bytes) {
  std::uint32_t rest = ~0u;
  const std::byte* p = bytes.data();
  std::size_t n = bytes.size();
  p = three_parts<kLong>(rest, p, n, kLongShift);
  p = three_parts<kShort>(rest, p, n, kShortShift);
  for (; n >= 8; n -= 8, p += 8) rest = step(rest, load(p));
  for (; n > 0; --n, ++p) rest = step(rest, *p);
  return ~rest;
}

#undef DP_CRC_TARGET

#else
bool has_instruction() { return false; }
constexpr auto by_instruction = by_tables;
#endif

constexpr crc32c_ways::Way kWays[] = {{"tables", by_tables}, {"instruction", by_instruction}};

}  // namespace

std::span<const crc32c_ways::Way> crc32c_ways::all() {
  static const std::size_t count = has_instruction() ? 2 : 1;
  return std::span(kWays).first(count);
}

std::uint32_t crc32c(std::span<const std::byte> bytes) {
  static const auto compute = crc32c_ways::all().back().compute;
  return compute(bytes);
}

}  // namespace dp
