// One target for libFuzzer: the one that DP_FUZZ_TARGET names when it is compiled. If the variable
// DP_FUZZ_SEEDS names a folder, the target's seeds are written there first.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>

#include "tests/fuzz/targets.hpp"

namespace {

const dp::fuzz::Target& target() {
  static const auto& found =
      *std::ranges::find(dp::fuzz::targets(), DP_FUZZ_TARGET, &dp::fuzz::Target::name);
  return found;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  GTEST_FLAG_SET(break_on_failure, true);
  if (const char* folder = std::getenv("DP_FUZZ_SEEDS")) {
    int number = 0;
    for (const dp::fuzz::Bytes& seed : target().seeds()) {
      std::ofstream(std::string(folder) + "/seed" + std::to_string(number++), std::ios::binary)
          .write(reinterpret_cast<const char*>(seed.data()),
                 static_cast<std::streamsize>(seed.size()));
    }
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  target().run({data, size});
  return 0;
}
