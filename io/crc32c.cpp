#include "io/crc32c.hpp"

#include <array>

namespace dp {
namespace {

// What the remainder of each byte becomes, for the reflected polynomial.
constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t rest = i;
    for (int bit = 0; bit < 8; ++bit) rest = (rest >> 1) ^ ((rest & 1) != 0 ? 0x82F63B78u : 0u);
    table[i] = rest;
  }
  return table;
}
constexpr std::array<std::uint32_t, 256> kTable = make_table();

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t rest = 0xFFFFFFFFu;
  for (const char c : bytes) {
    rest = kTable[(rest ^ static_cast<unsigned char>(c)) & 0xFFu] ^ (rest >> 8);
  }
  return rest ^ 0xFFFFFFFFu;
}

}  // namespace dp
