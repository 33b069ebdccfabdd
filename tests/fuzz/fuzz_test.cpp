// Every target on its seeds, whole and damaged. The damage is the same in each run.
//
// DP_FUZZ_INPUTS says how many damaged inputs each target gets, and an expensive one a part of;
// default 3,000.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <string>

#include "tests/fuzz/targets.hpp"

namespace dp::fuzz {
namespace {

std::size_t mutations() {
  const char* text = std::getenv("DP_FUZZ_INPUTS");
  return text == nullptr ? 3'000 : static_cast<std::size_t>(std::strtoull(text, nullptr, 10));
}

class Damage {
 public:
  explicit Damage(std::uint64_t seed) : random_(seed) {}

  void apply(Bytes& bytes, const Bytes& other) {
    for (std::size_t times = 1 + below(3); times > 0; --times) once(bytes, other);
  }

 private:
  std::size_t below(std::size_t n) { return n == 0 ? 0 : static_cast<std::size_t>(random_() % n); }
  std::uint8_t byte() { return static_cast<std::uint8_t>(random_()); }

  void once(Bytes& bytes, const Bytes& other) {
    const std::size_t n = bytes.size(), at = below(n);
    const auto place = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    switch (below(7)) {
      case 0:
        if (n > 0) bytes[at] ^= static_cast<std::uint8_t>(1u << below(8));
        break;
      case 1:
        if (n > 0) bytes[at] = byte();
        break;
      case 2:  // a number that is far too large, or not one
        for (std::size_t i = at; i < std::min(n, at + 8); ++i) bytes[i] = 0xff;
        break;
      case 3:
        bytes.resize(at);
        break;
      case 4:
        bytes.insert(place, 1 + below(40), byte());
        break;
      case 5:  // a part of another seed
        bytes.insert(place, other.begin() + static_cast<std::ptrdiff_t>(below(other.size())),
                     other.end());
        break;
      default:
        if (n > 0) bytes.erase(place, place + static_cast<std::ptrdiff_t>(1 + below(n - at)));
        break;
    }
  }

  std::mt19937_64 random_;
};

TEST(Fuzz, DamagedSeedsEndInAnErrorAtMost) {
  for (const Target& target : targets()) {
    SCOPED_TRACE(std::string(target.name));
    const std::vector<Bytes> seeds = target.seeds();
    for (const Bytes& seed : seeds) EXPECT_NO_THROW(target.run(seed));
    target.run({});
    Damage damage(1);
    for (std::size_t i = 0; i < mutations() / target.cost; ++i) {
      Bytes bytes = seeds[i % seeds.size()];
      damage.apply(bytes, seeds[(i / seeds.size()) % seeds.size()]);
      ASSERT_NO_THROW(target.run(bytes)) << "input " << i;
    }
  }
}

}  // namespace
}  // namespace dp::fuzz
