// Values that C++ and make_golden.py derive in the same way from a name and a position, so that
// fixtures store only results. See the script's `derived` and `initial`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace dp::test {

// A deterministic function of position with values in [-1, 1).
class Derived {
 public:
  explicit constexpr Derived(std::string_view name) {
    for (const char c : name) key_ = (key_ ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  }
  [[nodiscard]] constexpr double operator()(std::size_t position) const {
    std::uint64_t x = key_ + position * 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    x ^= x >> 31;
    return static_cast<double>(x >> 11) * 0x1.0p-52 - 1.0;
  }

 private:
  std::uint64_t key_ = 0xCBF29CE484222325u;
};

}  // namespace dp::test
