#include "kernels/base/crc32c.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/base/random.hpp"

namespace dp {
namespace {

std::uint32_t crc_of(const crc32c_ways::Way& way, const std::string& text) {
  return way.compute(std::as_bytes(std::span(text)));
}

// RFC 3720, appendix B.4, and the usual check of a CRC.
TEST(Crc32c, KnownValues) {
  std::string ascending, descending;
  for (int i = 0; i < 32; ++i) {
    ascending += static_cast<char>(i);
    descending += static_cast<char>(31 - i);
  }
  for (const auto& way : crc32c_ways::all()) {
    SCOPED_TRACE(way.name);
    EXPECT_EQ(crc_of(way, ""), 0u);
    EXPECT_EQ(crc_of(way, "123456789"), 0xE3069283u);
    EXPECT_EQ(crc_of(way, std::string(32, '\0')), 0x8A9136AAu);
    EXPECT_EQ(crc_of(way, std::string(32, '\xff')), 0x62A8AB43u);
    EXPECT_EQ(crc_of(way, ascending), 0x46DD794Eu);
    EXPECT_EQ(crc_of(way, descending), 0x113FDB5Cu);
  }
}

// Bit by bit, as the polynomial is defined.
std::uint32_t plainly(std::span<const std::byte> bytes) {
  std::uint32_t rest = ~0u;
  for (const std::byte byte : bytes) {
    rest ^= static_cast<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) rest = (rest >> 1) ^ ((rest & 1) != 0 ? 0x82F63B78u : 0u);
  }
  return ~rest;
}

// Every length around the lengths at which another loop takes over, from every alignment.
TEST(Crc32c, AllWaysGiveTheSame) {
  constexpr std::size_t kLongest = 30'000;
  const CounterRng rng(3, RandomStream::test);
  std::vector<std::byte> bytes(kLongest + 8);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(rng.below(256, i));
  std::vector<std::size_t> lengths;
  for (std::size_t n = 0; n < 40; ++n) lengths.push_back(n);
  for (const std::size_t whole : {3 * 256, 6 * 256, 3 * 4096, 3 * 4096 + 3 * 256, 6 * 4096}) {
    for (const std::size_t n : {whole - 9, whole - 1, whole, whole + 1, whole + 7, whole + 8}) {
      lengths.push_back(n);
    }
  }
  lengths.push_back(kLongest);
  for (const std::size_t n : lengths) {
    const std::size_t begin = n % 8;
    const auto part = std::span(bytes).subspan(begin, n);
    const std::uint32_t expected = plainly(part);
    for (const auto& way : crc32c_ways::all()) {
      EXPECT_EQ(way.compute(part), expected) << way.name << ", " << n << " bytes";
    }
    EXPECT_EQ(crc32c(part), expected);
  }
}

}  // namespace
}  // namespace dp
