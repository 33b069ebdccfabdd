// Every width of codes: what is packed is unpacked, each index once, nothing is written behind, and
// missing codes are padding, whose absence is seen.
#include "kernels/codecs/code_layout.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace dp {
namespace {

template <unsigned kBits>
void expect_packs() {
  constexpr std::uint32_t kMask = (1u << kBits) - 1, kPadding = kMask & 0xAu;
  for (std::size_t m = 0; m < 70; ++m) {
    const auto code = [&](std::size_t i) {
      return static_cast<std::uint32_t>(i * 2654435761u >> 7) & kMask;
    };
    const std::size_t size = code_layout::bytes(m, kBits);
    EXPECT_EQ(size, kBits < 8 ? (m + 8 / kBits - 1) / (8 / kBits) : m * kBits / 8);
    std::vector<std::byte> codes(size + 8, std::byte{0x5C});
    code_layout::pack<kBits, kPadding>(codes.data(), m, code);
    for (std::size_t i = size; i < codes.size(); ++i) EXPECT_EQ(codes[i], std::byte{0x5C});
    std::vector<int> times(m);
    code_layout::unpack<kBits>(codes.data(), m, [&](std::size_t i, std::uint32_t got) {
      EXPECT_EQ(got & kMask, code(i)) << i << " of " << m;
      ++times[i];
    });
    EXPECT_EQ(times, std::vector<int>(m, 1));
    if (kBits == 4 && m % 2 == 1) {
      EXPECT_EQ(codes[size - 1] >> 4, std::byte{kPadding});
    }
  }
}
TEST(CodeLayout, PacksCodesOfEveryWidth) {
  expect_packs<1>();
  expect_packs<2>();
  expect_packs<4>();
  expect_packs<8>();
  expect_packs<16>();
}

// A bit that changes is a code's or padding's, and is seen as such.
template <unsigned kBits>
void expect_sees_padding() {
  constexpr std::uint32_t kMask = (1u << kBits) - 1, kPadding = kMask & 0xAu;
  const auto code = [](std::size_t i) { return static_cast<std::uint32_t>(i) & kMask; };
  for (std::size_t m = 0; m < 40; ++m) {
    const std::size_t size = code_layout::bytes(m, kBits);
    std::vector<std::byte> codes(128);
    code_layout::pack<kBits, kPadding>(codes.data(), m, code);
    EXPECT_TRUE((code_layout::is_padded<kBits, kPadding>(codes.data(), m)));
    for (std::size_t bit = 0; bit < 8 * size; ++bit) {
      auto changed = codes;
      changed[bit / 8] ^= std::byte{1} << static_cast<int>(bit % 8);
      bool is_code_changed = false;
      code_layout::unpack<kBits>(changed.data(), m, [&](std::size_t i, std::uint32_t got) {
        is_code_changed = is_code_changed || got != code(i);
      });
      EXPECT_EQ((code_layout::is_padded<kBits, kPadding>(changed.data(), m)), is_code_changed)
          << "bit " << bit << " of " << m << " codes";
    }
  }
}
TEST(CodeLayout, SeesWrongPadding) {
  expect_sees_padding<1>();
  expect_sees_padding<2>();
  expect_sees_padding<4>();
  expect_sees_padding<8>();
  expect_sees_padding<16>();
}

}  // namespace
}  // namespace dp
